# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it does, its version, its types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
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
import sysconfig
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


def test_the_module_calls_only_what_the_stable_abi_has(tmp_path: Path) -> None:
    """Wheels for Python 3.12 and later are built for it, where such a Python is."""
    source = tmp_path / "names.c"
    source.write_text('#define Py_LIMITED_API 0x030B0000\n#include <Python.h>\n')
    include = sysconfig.get_paths()["include"]
    declared = "".join(subprocess.run(["g++", "-E", *macros, f"-I{include}", "-xc++", source],
                                      capture_output=True, text=True, check=True).stdout
                       for macros in ([], ["-dM"]))
    names = set(re.findall(r"\bPy\w+", declared + (ROOT / "api/python/stable_abi.h").read_text()))
    assert "PyNumber_Long" in names and "PyLong_FromUnicodeObject" not in names
    called = {(name, file.name) for file in (ROOT / "api/python").glob("*.[hc]*")
              for name in re.findall(r"\b(Py[A-Z]\w*?_\w+)\(", file.read_text())}
    assert len(called) > 50
    assert [call for call in sorted(called)
            if call[0] not in names and not call[0].startswith(("PyArray_", "PyDataType_"))] == []
