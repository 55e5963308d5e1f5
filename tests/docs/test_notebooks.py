# SPDX-License-Identifier: Apache-2.0
"""The notebooks of api/examples run in a kernel of Jupyter, cell by cell, and what they show."""

from __future__ import annotations

import pathlib

import jupytext
import nbclient
import nbformat
import pytest

import stepwell

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "api/examples/notebooks"
# What cells show, as HTML or as text.
SHOWN = {
    "first_steps": ["read-only&gt;: 20 steps</caption>", "<caption>step 59, committed ",
                    "<treescope-"],
    "from_orbax_v1": ["ArrayMetadata", "<caption>step 8: 3 leaves"],
    "from_orbax_v0": [],
    "from_flax": ["Model"],
    "from_equinox": ["MLP"],
}


@pytest.fixture
def kernel(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The kernel's working directory; its environment is that of this process."""
    package = pathlib.Path(stepwell.__file__).parents[1]
    for name, value in {"PYTHONPATH": package, "JAX_PLATFORMS": "cpu",
                        "IPYTHONDIR": tmp_path / "ipython",
                        "JUPYTER_RUNTIME_DIR": tmp_path / "jupyter"}.items():
        monkeypatch.setenv(name, str(value))
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def execute(notebook: nbformat.NotebookNode, kernel: pathlib.Path) -> list[str]:
    """What its cells show."""
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3",
                            resources={"metadata": {"path": str(kernel)}}).execute()
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            shown += [data.get("text/html", data.get("text/plain"))] if data else []
    return shown


def test_every_notebook_is_named_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_it_runs(name: str, kernel: pathlib.Path) -> None:
    shown = execute(jupytext.read(FOLDER / f"{name}.py", fmt="py:percent"), kernel)
    for wanted in SHOWN[name]:
        assert wanted in "".join(shown), shown


def test_a_cell_that_fails_is_caught(kernel: pathlib.Path) -> None:
    notebook = jupytext.reads("# %%\nx = 1\n\n# %%\nassert x == 2\n", fmt="py:percent")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="assert x == 2"):
        execute(notebook, kernel)
