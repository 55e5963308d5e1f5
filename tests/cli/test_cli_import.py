# SPDX-License-Identifier: Apache-2.0
"""`stepwell import`: checkpoints that the real Orbax wrote."""

import pathlib
import sys

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


def test_an_export_knows_its_step(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(900, {"x": np.arange(3)}).result()
        writer.export(900, tmp_path / "handed", mode="copy")
        writer.export(900, tmp_path / "linked_v0", layout="v0", zarr=2)
    assert ok("import", tmp_path / "handed", tmp_path / "two").startswith("imported step 900,")
    ok("import", tmp_path / "handed", tmp_path / "two", "--step", 7)  # which goes first
    (tmp_path / "handed").rename(tmp_path / "step_8")  # as does a name
    ok("import", tmp_path / "step_8", tmp_path / "two")
    with stepwell.open(tmp_path / "two") as other:
        assert other.steps() == [7, 8, 900]
        (exported,) = (tmp_path / "linked_v0").iterdir()
        exported.rename(tmp_path / "other")
        handle = other.import_checkpoint(tmp_path / "other", if_exists="replace")
        assert handle.step == 900 and other.load(900)["x"].tolist() == [0, 1, 2]
        (tmp_path / "other" / "stepwell-digests").unlink()
        with pytest.raises(stepwell.InvalidArgumentError, match="pass step="):
            other.import_checkpoint(tmp_path / "other")


def test_words_are_those_of_the_program(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_PYTHON", sys.executable)
    store, typo = tmp_path / "run", tmp_path / "typo" / "run"
    with stepwell.open(store) as writer:
        writer.save(1, {"x": np.ones(2), "c": 1 + 2j, "f4": np.ones(2, "int4")})
    message = error("export", store, 1, tmp_path / "out", "--to", "npz", status=2)
    assert "--on-unsupported skip leaves out" in message and "--on-unsupported widen" not in message
    assert "on_unsupported" not in message
    # The source is none, and no word is said of stores.
    message = error("import", tmp_path / "none", store, status=3)
    assert message == f"stepwell: {tmp_path}/none: there is no such directory\n"
    message = error("ls", typo, status=3)
    assert message.splitlines() == [
        f"stepwell: {typo}: there is no such store; there is no {typo.parent}",
        "  hint: a store is the directory into which a training saved with Stepwell"]
    message = error("reclaim", tmp_path, status=1)
    assert "has no STEPWELL file" in message and "into which a training saved" in message
    # Options that the package names.
    message = error("pull", tmp_path / "x", store, "--option", "region=x", status=2)
    assert "--option" in message and "storage_options" not in message
