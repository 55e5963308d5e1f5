# SPDX-License-Identifier: Apache-2.0
"""`stepwell import`: checkpoints that the real Orbax wrote."""

import pathlib

import numpy as np
import orbax.checkpoint as ocp
import pytest
import stepwell
from program import document, error, ok


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("orbax") / "root"
    with ocp.CheckpointManager(path) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave({"w": np.full(3, step)}))
    return path


def test_import_of_a_root(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store = tmp_path / "run"
    text = ok("import", root, store)
    assert [line.split(",")[0] for line in text.splitlines()] == [
        "imported step 1",
        "imported step 2",
    ]
    with stepwell.open(store, "r") as reader:
        assert reader.load(2)["w"].tolist() == [2, 2, 2]
    assert "has step 1 already" in error("import", root, store, status=1)
    report = document("import", root, store, "--if-exists", "skip")
    assert [step["skipped"] for step in report["steps"]] == [True, True]
    report = document("import", root, store, "--step", 2, "--if-exists", "replace")
    assert [(step["step"], step["items"]) for step in report["steps"]] == [(2, ["state"])]


def test_import_of_a_checkpoint(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store = tmp_path / "run"
    ok("import", root / "1", store, "--step", 50, "--item", "default")
    assert document("cat", store, 50, "w", "--full")["value"] == [1, 1, 1]
    assert "no item" in error("import", root / "1", store, "--item", "x", "--step", 3, status=3)
    assert "no step 9" in error("import", root, store, "--step", 9, status=3)
    assert "no such directory" in error("import", tmp_path / "x", store, status=3)
    (tmp_path / "empty").mkdir()
    assert "not an Orbax checkpoint" in error("import", tmp_path / "empty", store, status=2)
    (next((root / "2").glob("default/d/*"))).write_bytes(b"")
    assert "manifest.ocdbt" in error("import", root / "2", store, status=4)
