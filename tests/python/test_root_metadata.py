# SPDX-License-Identifier: Apache-2.0
"""open(metadata=) describes a whole store: the file METADATA."""

from __future__ import annotations

import os
import pathlib
import shutil
import stat
import subprocess

import numpy as np
import pytest
from group_runs import run

import stepwell
from stepwell._runtime import durable

GIVEN = {"run": "α", "config": {"layers": [1, 2], "rate": 0.5, "none": None}}


def test_it_is_kept_and_replaced(path):
    with stepwell.open(path) as store:
        assert store.metadata is None
    with stepwell.open(path, metadata=GIVEN) as store:
        assert store.metadata == GIVEN
        store.save(1, {"x": np.arange(9)}, metadata={"of": "the step"}).result()
    with stepwell.open(path) as store:
        assert store.metadata == GIVEN and store[1].metadata == {"of": "the step"}
    with stepwell.open(path, metadata={"n": np.float32(2.5)}) as store:
        assert store.metadata == {"n": 2.5}
        with stepwell.open(path, mode="r") as reader:
            assert reader.metadata == {"n": 2.5}
    with stepwell.open(path, mode="r", untrusted=True) as reader:
        assert reader.metadata == {"n": 2.5}
    with stepwell.open(path, metadata={}) as store:
        assert store.metadata == {}
    with pytest.raises(stepwell.Error, match="closed"):
        _ = store.metadata


@pytest.mark.parametrize(("metadata", "why"), [
    ([1], "metadata must be a dict"), ({"x": object()}, "metadata is not JSON"),
    ({"x": "y" * (1 << 20)}, "takes 1,048,585 bytes as JSON; a store's has at most 1,048,576"),
])
def test_what_is_refused(path, metadata, why):
    with pytest.raises(stepwell.InvalidArgumentError, match=why):
        stepwell.open(path, metadata=metadata)
    assert not path.exists()
    with pytest.raises(stepwell.InvalidArgumentError, match="needs mode='a'"):
        stepwell.open(path, mode="r", metadata={})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null",
                                     b'{"x":' * 100_000, b" " * ((1 << 20) + 1)],
                         ids=["empty", "cut", "list", "bytes", "null", "deep", "large"])
def test_a_file_that_is_not_such_an_object_is_damage(path, content):
    with stepwell.open(path, metadata=GIVEN) as store:
        store.save(1, {"x": 5}).result()
    (path / "METADATA").write_bytes(content)
    for mode in ("r", "a"):
        with stepwell.open(path, mode=mode) as store:
            with pytest.raises(stepwell.CorruptionError, match=str(path / "METADATA")):
                _ = store.metadata
            assert store.load(1) == {"x": 5}  # the steps do not depend on it
            assert store.verify().ok
    with stepwell.open(path, metadata=GIVEN) as store:
        assert store.metadata == GIVEN


@pytest.mark.parametrize("make", [lambda at: at.symlink_to("/etc/passwd"), os.mkfifo, os.mkdir],
                         ids=["link", "fifo", "folder"])
def test_what_is_not_a_plain_file_is_not_opened(path, make):
    stepwell.open(path).close()
    make(path / "METADATA")
    with stepwell.open(path, mode="r", untrusted=True) as store:
        with pytest.raises(stepwell.CorruptionError, match="METADATA is not a plain file"):
            _ = store.metadata


def test_a_failure_leaves_the_old_one_and_closes_the_store(path, monkeypatch):
    with stepwell.open(path, metadata=GIVEN):
        pass

    def fails(path: str, data: bytes, *, mode: int) -> None:
        raise stepwell.NoSpaceError(f"write {path}: no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "write", fails)
        with pytest.raises(stepwell.NoSpaceError, match="METADATA: no space"):
            stepwell.open(path, metadata={"new": 1})
    with stepwell.open(path) as store:
        assert store.metadata == GIVEN
    with stepwell.open(path, metadata={"new": 1}) as store:
        assert store.metadata == {"new": 1}


def test_what_a_killed_writer_left_of_it_is_removed(path):
    with stepwell.open(path, metadata=GIVEN):
        pass
    left = path / ".stepwell-0123456789abcdef.stepwell-tmp"
    left.write_text('{"ne')
    with stepwell.open(path) as store:
        assert store.metadata == GIVEN
    assert not left.exists()


@pytest.mark.parametrize("private", [True, False])
def test_it_has_the_permissions_of_the_store(path, private):
    stepwell.open(path, private=private, metadata=GIVEN).close()
    modes = {stat.S_IMODE((path / name).stat().st_mode) for name in ("METADATA", "STEPWELL")}
    assert len(modes) == 1


def test_the_engine_and_the_program_leave_it_alone(path, tmp_path):
    with stepwell.open(path, keep=stepwell.policy.LatestN(2), metadata=GIVEN) as store:
        for step in range(30):
            store.save(step, {"x": np.random.rand(10_000)})
        store.wait()
        store.reclaim()
        store.repair()
        assert store.verify().ok
        total = store.stats()["space"]["total_bytes"]
        assert total >= (path / "METADATA").stat().st_blocks * 512
    program = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
    for command in (["doctor", path], ["verify", path], ["stats", path], ["repair", path]):
        done = subprocess.run([program, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with stepwell.open(copy) as store:
        assert store.metadata == GIVEN and store.steps() == [28, 29]


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_processes_agree_on_it(tmp_path, disks):
    roots = [tmp_path / (f"machine_{each}" if disks == "local" else "") / "store"
             for each in range(2)]
    for root in roots:
        root.parent.mkdir(exist_ok=True)
    for said in run(roots, [["open", {"disks": disks, "metadata": GIVEN}], ["save", {"step": 1}],
                            ["metadata", {}], ["close", {}], ["open", {"disks": disks}],
                            ["metadata", {}], ["close", {}]]):
        assert said.gave(2) == said.gave(5) == GIVEN
    assert (roots[0] / "METADATA").exists()
    assert not (roots[0] / "process_1" / "METADATA").exists()
