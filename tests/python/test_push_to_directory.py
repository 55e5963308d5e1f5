# SPDX-License-Identifier: Apache-2.0
"""Pushes to directories: durable when they return, private as their store, and within their place
whatever others have planted there."""

from __future__ import annotations

import concurrent.futures
import json
import os
import stat
import threading
from pathlib import Path

import numpy as np
import obstore.store
import pytest
import stepwell
from stepwell._runtime import durable
from transfers import equal, other, saved, small_files, state

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")

MiB = 1 << 20


def test_a_push_takes_the_place_of_another_at_once_and_leaves_nothing(
        saved: stepwell.Store, other: stepwell.Store, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "large").write_bytes(os.urandom(9 * MiB))
    saved.save(8, state(), items={"f": stepwell.Files(tmp_path / "files")}).result()
    place = tmp_path / "bucket" / "run"
    saved.push(7, place)
    (place / "notes.txt").write_text("mine")  # no push made it
    inode = place.stat().st_ino
    saved.push(8, place, if_exists="replace")
    assert place.stat().st_ino != inode
    assert (place / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path / "bucket") == ["run"]
    assert not [path for path in tmp_path.iterdir() if ".push-" in path.name]
    other.pull(place)
    equal(other.load(8, "state"), state())


def test_two_pushes_to_one_place_at_a_time_are_refused(
        saved: stepwell.Store, tmp_path: Path) -> None:
    place = tmp_path / "7"
    with durable.Folder(str(place)):
        with pytest.raises(stepwell.LockedError):
            saved.push(7, place)
    saved.push(7, place)


def test_a_link_in_a_place_is_not_followed(saved: stepwell.Store, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "d").mkdir()
    (victim / "precious").write_text("precious")
    (victim / "precious").chmod(0o640)
    place = tmp_path / "place"
    place.mkdir()
    forged = {"format": "stepwell-push", "version": 1, "step": 7,
              "objects": {"state/precious": None, "alias": None}}
    (place / "stepwell.push.json").write_text(json.dumps(forged))
    (place / "state").symlink_to(victim)
    (place / "alias").symlink_to(victim / "precious")
    (place / "_CHECKPOINT_METADATA").symlink_to(victim / "precious")
    saved.push(7, place)
    assert sorted(path.name for path in victim.rglob("*")) == ["d", "precious"]
    assert (victim / "precious").read_text() == "precious"
    assert stat.S_IMODE((victim / "precious").stat().st_mode) == 0o640
    assert not [path for path in place.rglob("*") if path.is_symlink()]


def test_a_link_in_the_place_of_the_list_is_not_read(
        saved: stepwell.Store, other: stepwell.Store, tmp_path: Path) -> None:
    saved.push(7, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "stepwell.json").symlink_to(tmp_path / "a" / "stepwell.json")
    with pytest.raises(stepwell.CheckpointNotFoundError):
        other.pull(tmp_path / "b")
    os.mkfifo(tmp_path / "c")
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "stepwell.json")
    with pytest.raises(stepwell.CheckpointNotFoundError):
        other.pull(tmp_path / "d")


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_a_push_is_as_private_as_its_store(tmp_path: Path, mode: int) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "large").write_bytes(bytes(9 * MiB))
    (tmp_path / "private").mkdir(mode)
    (tmp_path / "private").chmod(mode)
    with stepwell.open(tmp_path / "private") as store:
        store.save(1, state(), items={"f": stepwell.Files(tmp_path / "files")}).result()
        store.push(1, tmp_path / "bucket" / "1")
    made = [tmp_path / "bucket", *(tmp_path / "bucket").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {mode}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {mode & 0o666}


def test_what_could_not_be_removed_blocks_no_push(
        saved: stepwell.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = obstore.store.MemoryStore()
    monkeypatch.setattr(durable, "remove_tree", lambda path: None)  # EIO at each unlink
    saved.push(7, bucket, prefix="a")
    assert [path for path in tmp_path.iterdir() if ".push-" in path.name]
    saved.push(7, bucket, prefix="a", if_exists="replace")
    monkeypatch.undo()
    saved.push(7, bucket, prefix="b")  # another one, which removes what the first has left
    assert not [path for path in tmp_path.iterdir() if ".push-" in path.name]


def test_a_pull_beside_pushes_that_replace_each_other_is_one_of_them(
        saved: stepwell.Store, other: stepwell.Store, tmp_path: Path) -> None:
    place = tmp_path / "run"
    states = {step: {"a": np.full(50_000, step), "b": [step] * step} for step in (8, 9)}
    for step, tree in states.items():
        saved.save(step, tree).result()
    saved.push(8, place)
    pulled = threading.Event()

    def push() -> None:
        number = 8
        while not pulled.is_set():
            number = 17 - number
            saved.push(number, place, if_exists="replace")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(push)
        try:
            for _ in range(25):
                step = other.pull(place, if_exists="replace").step
                equal(other.load(step), states[step])
        finally:
            pulled.set()
        pushing.result()
    assert not [path for path in tmp_path.iterdir() if ".pull-" in path.name]
