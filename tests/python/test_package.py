# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it does, its version, its types."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stepwell

ROOT = Path(__file__).resolve().parents[2]


def test_jax_is_not_imported(run_python, path):
    status, out, err = run_python("""
import sys, numpy as np, stepwell
with stepwell.open(sys.argv[1]) as store:
    store.save(0, {"x": np.ones(3), "n": [1, None]}).result()
    print(store.load(0, like={"x": np.zeros(3), "n": [0, None]})["n"], store.tree(0)["x"].shape)
print([name for name in ("jax", "flax", "equinox", "orbax", "tensorstore") if name in sys.modules])
""", path)
    assert (status, out) == (0, "[1, None] (3,)\n[]\n"), err


def test_without_jax_installed(run_python, path):
    status, out, err = run_python("""
import sys
sys.modules["jax"] = None  # importing it fails
import numpy as np, stepwell
with stepwell.open(sys.argv[1]) as store:
    store.save(0, {"x": np.ones(3)}).result()
    print(store.load_or({"x": np.zeros(3)})[1])
""", path)
    assert (status, out) == (0, "1\n"), err


def test_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert stepwell.__version__ == project["version"]


def test_public_names():
    for name in stepwell.__all__:
        assert getattr(stepwell, name).__doc__, name


@pytest.fixture(scope="module")
def types_of_libraries(tmp_path_factory):
    """mypy's findings about JAX and NumPy are the same for both."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.parametrize("checked", [["-p", "stepwell"],
                                     sorted((ROOT / "api/examples").rglob("*.py"))],
                         ids=["package", "examples"])
def test_types(checked, types_of_libraries):
    package = Path(stepwell.__file__).parent
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir",
         types_of_libraries, *checked], capture_output=True, text=True,
        env={"MYPYPATH": str(package.parent), "PATH": "/usr/bin:/bin"})
    assert result.returncode == 0, result.stdout + result.stderr


def test_types_of_the_examples_by_pyright():
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "-p", ROOT / "pyproject.toml", "--pythonpath",
         sys.executable], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(stepwell.__file__).parents[1])})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 errors, 0 warnings" in result.stdout
