# SPDX-License-Identifier: Apache-2.0
"""The program on the directories of facades: their roots, and single checkpoints."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import orbax.checkpoint.experimental.v1 as orbax
import pytest
import stepwell
from program import document, error, ok, run
from stepwell.compat import orbax_v1 as ocp

# Orbax leaves its own event loops to the garbage collector, which warns of them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def state(step: int) -> dict[str, np.ndarray]:
    return {"w": np.arange(300_000.0) * step}


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    with ocp.training.Checkpointer(tmp_path / "run") as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state(step))
    return tmp_path / "run"


def flip(path: pathlib.Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


def largest(folder: pathlib.Path) -> pathlib.Path:
    return max((each for each in folder.rglob("*") if each.is_file()),
               key=lambda each: each.stat().st_size)


def test_ls_finds_the_store_in_a_root(root: pathlib.Path) -> None:
    assert [each["step"] for each in document("ls", root)["steps"]] == [1, 2]
    assert ok("ls", root) == ok("ls", root / ".stepwell")
    assert document("show", root, 2)["step"]["step"] == 2
    ok("cat", root, 1, "w")


def test_a_link_is_not_another_store(root: pathlib.Path) -> None:
    (root.parent / "newest").symlink_to(root)
    assert [each["step"] for each in document("ls", root.parent)["steps"]] == [1, 2]


def test_several_stores_in_a_root_are_named(root: pathlib.Path) -> None:
    shutil.copytree(root / ".stepwell", root / ".stepwell-checkpoint_0")
    told = error("ls", root, status=1)
    assert f"{root}/.stepwell, {root}/.stepwell-checkpoint_0" in told
    with pytest.raises(stepwell.FormatError, match="the stores in it are"):
        stepwell.open(root, mode="r")
    assert len(document("verify", root)["stores"]) == 2


def test_open_names_the_store_in_a_root_and_in_a_checkpoint(
        root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ocp.save(tmp_path / "single", state(1))
    store = next((tmp_path / "single").glob("*/.stepwell"))
    for mode in ("r", "a"):
        with pytest.raises(stepwell.FormatError, match=f"the store is {root}/.stepwell"):
            stepwell.open(root, mode=mode)
        with pytest.raises(stepwell.FormatError, match=f"the store is {store}"):
            stepwell.open(tmp_path / "single", mode=mode)
    assert [each["step"] for each in document("ls", tmp_path / "single")["steps"]] == [0]


def test_open_of_what_orbax_wrote_names_the_doors(tmp_path: pathlib.Path) -> None:
    orbax.save(tmp_path / "root" / "1", state(1))
    for path in (tmp_path / "root", tmp_path / "root" / "1", tmp_path / "root" / "1" / "state"):
        with pytest.raises(stepwell.FormatError, match="import_checkpoint.*compat.orbax reads"):
            stepwell.open(path)
    with pytest.raises(stepwell.FormatError, match="no STEPWELL file$"):
        stepwell.open(tmp_path / "root" / "1" / "state" / "d")


def test_changes_need_the_store_itself(root: pathlib.Path) -> None:
    assert f"the store is {root}/.stepwell" in error("rm", root, 1, status=1)
    ok("rm", root / ".stepwell", 1)


def test_verify_of_a_root(root: pathlib.Path) -> None:
    report = document("verify", root)
    assert report["ok"] and [each["steps"] for each in report["stores"]] == [2]
    assert "2 steps" in ok("verify", root)
    assert document("verify", root, "--step", 2)["stores"][0]["steps"] == 1
    error("verify", root, "--step", 3, status=3)
    segment = largest(root / ".stepwell" / "segments")
    flip(segment, len(segment.read_bytes().rstrip(b"\0")) // 2)
    report = document("verify", root, status=4)
    assert not report["ok"] and report["problems"]
    assert "damaged" in run("verify", root).stdout


def test_verify_of_a_root_checks_what_it_shows(root: pathlib.Path) -> None:
    flip(root / "2" / "_CHECKPOINT_METADATA", 5)
    report = document("verify", root, status=4)
    assert [each["file"] for each in report["problems"]] == [f"{root}/2/_CHECKPOINT_METADATA"]


def test_verify_of_a_single_checkpoint(tmp_path: pathlib.Path) -> None:
    ocp.save(tmp_path / "single", state(1))
    report = document("verify", tmp_path / "single")
    assert report["ok"] and report["stores"][0]["steps"] == 1
    data = largest(tmp_path / "single")
    flip(data, len(data.read_bytes().rstrip(b"\0")) // 2)
    assert document("verify", tmp_path / "single", status=4)["problems"]


def test_verify_beside_a_step_of_orbax(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    from orbax.checkpoint import v1 as real

    with real.training.Checkpointer(tmp_path / "other") as checkpointer:
        checkpointer.save(7, state(7))
    shutil.copytree(tmp_path / "other" / "7", root / "7")
    report = document("verify", root, status=9)
    assert [each["path"] for each in report["checkpoints"] if not each["checked"]] == [
        str(root / "7")]
    assert report["stores"][0]["steps"] == 2
