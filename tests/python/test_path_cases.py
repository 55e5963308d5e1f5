# SPDX-License-Identifier: Apache-2.0
"""One table of paths (tests/api/paths.json), through Python, C++, C and the program: the same
leaves, and the same errors."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

import pytest

import stepwell
from stepwell._pytree.records import ROOT
from stepwell._pytree.tree import path_text

CASES = json.loads((pathlib.Path(__file__).parents[1] / "api" / "paths.json").read_text())["cases"]
BUILD = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"])
ERRORS = {stepwell.PathNotFoundError: "nothing", stepwell.AmbiguousPathError: "ambiguous",
          stepwell.InvalidArgumentError: "malformed"}
CODES = {5: {"nothing"}, 3: {"ambiguous", "malformed"}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("paths") / "store"
    layer = {"kernel": 1, "bias": 2}
    with stepwell.open(path) as store:
        store.save(1, {"params": {"enc": layer, "dec": layer}, "layers": [{"w": 1}, {"w": 2}],
                       "a/b": {"*": 10, "?": 11, "[": 12, "\\": 13}, "d": {0: 1, "0": 2},
                       "t": {True: 1, "True": 2, ("a", 1): {"w": 3}}})
        store.save(2, items={"data": {"position": 3, "state": 4},
                             "state": {"w": 1, "state": {"x": 2}}})
        store.save(3, {"state": {"x": 1}, "y": 2})
        store.wait()
    return path


def ident(case: dict[str, Any]) -> str:
    return f"{case['step']}:{case.get('path', case.get('components'))}"


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_python(root: pathlib.Path, case: dict[str, Any]) -> None:
    path = case["path"] if "path" in case else tuple(case["components"])
    with stepwell.open(root, "r") as store:
        source = store[case["step"]]._source
        try:
            _, found = source.select(path, whole=True)
        except stepwell.Error as error:
            assert ERRORS[type(error)] == case.get("error"), error
            return
    tree = found.tree
    taken = tree.leaves(found.number) if found.number is not None else found.leaves
    assert [path_text(tree.components(leaf, ROOT)) for leaf in taken] == case.get("leaves")


def run_cases(program: list[str], cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(program, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("interface", ["cpp", "c"])
def test_c_and_cpp(root: pathlib.Path, interface: str) -> None:
    cases = [case for case in CASES if interface == "cpp" or "path" in case]
    results = run_cases([str(BUILD / "tests" / "api" / "stepwell_paths"), str(root), interface],
                        cases)
    for case, result in zip(cases, results, strict=True):
        if "error" in case:
            assert case["error"] in CODES.get(result.get("error"), ()), (case, result)
        else:
            assert result.get("leaves") == case["leaves"], case


@pytest.mark.parametrize("case", [case for case in CASES if "path" in case], ids=ident)
def test_program(root: pathlib.Path, case: dict[str, Any]) -> None:
    program = str(BUILD / "api" / "cli" / "stepwell")
    done = subprocess.run([program, "show", "--json", str(root), str(case["step"]), case["path"]],
                          capture_output=True, text=True, check=False)
    if "error" in case:
        assert done.returncode == (3 if case["error"] == "nothing" else 2), done.stderr
        return
    leaves = [entry for entry in json.loads(done.stdout)["entries"] if entry["kind"] != "node"]
    only_state = case["step"] != 2  # the name of the item is left out
    assert [f"state/{leaf['path']}" if only_state else leaf["path"]
            for leaf in leaves] == case["leaves"]
