# SPDX-License-Identifier: Apache-2.0
"""The notebooks of api/examples run in a kernel of Jupyter, cell by cell, and what they show."""

from __future__ import annotations

import pathlib

import jupytext
import nbclient
import pytest

from notebooks import execute

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "api/examples/notebooks"
# Texts that cells must show, as HTML or as text.
SHOWN = {
    "first_steps": ["read-only&gt;</caption>", "<caption>20 steps</caption>",
                    "<caption>step 59, committed ",
                    "<treescope-"],
    "from_orbax_v1": ["ArrayMetadata", "<caption>step 8: 3 leaves"],
    "from_orbax_v0": [],
    "from_flax": ["Model"],
    "from_equinox": ["MLP"],
}


def test_every_notebook_is_named_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_it_runs(name: str, tmp_path: pathlib.Path) -> None:
    shown = execute(jupytext.read(FOLDER / f"{name}.py", fmt="py:percent"), tmp_path)
    for wanted in SHOWN[name]:
        assert wanted in "".join(shown), shown


def test_a_cell_that_fails_is_caught(tmp_path: pathlib.Path) -> None:
    notebook = jupytext.reads("# %%\nx = 1\n\n# %%\nassert x == 2\n", fmt="py:percent")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="assert x == 2"):
        execute(notebook, tmp_path)
