# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the facades made, and copies of their steps, in a store: all that was saved is
there, or what is wrong with them is said."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import orbax.checkpoint.experimental.v1 as orbax_v1
import pytest

import stepwell
from stepwell.compat import flax as checkpoints
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as v1
from storm import in_a_storm

TREE = {"array": np.arange(500.0), "text": "a text", "few": b"bytes", "many": b"m" * 5000,
        "number": 1 + 2j, "large": 1 << 80, "list": [b"1", 2, 3j], "half": "\ud800",
        "below": {"only": b"here"}}

DELETES = pytest.mark.skipif(not hasattr(orbax_v1, "delete"), reason="this Orbax has no `delete`")


def one_v1(path: pathlib.Path) -> pathlib.Path:
    v1.save(path / "one_1", TREE)
    return path / "one_1"


def without_an_item(path: pathlib.Path) -> pathlib.Path:
    v1.save_checkpointables(path / "one_1", {"state": TREE, "other": {"x": np.arange(3)}})
    v1.delete(path / "one_1", checkpointable_name="other")
    return path / "one_1"


def one_v0(path: pathlib.Path) -> pathlib.Path:
    v0.PyTreeCheckpointer().save(path / "one_1", TREE)
    return path / "one_1"


def copied(path: pathlib.Path) -> pathlib.Path:
    with v0.CheckpointManager(path / "root") as manager:
        manager.save(1, args=v0.args.PyTreeSave(TREE))
    return pathlib.Path(shutil.copytree(path / "root" / "1", path / "copy_1"))


def copied_of_flax(path: pathlib.Path) -> pathlib.Path:
    checkpoints.save_checkpoint(path / "root", TREE, 1)
    return pathlib.Path(shutil.copytree(path / "root" / "checkpoint_1", path / "copy_1"))


MADE = {"v1": one_v1, "v1, an item deleted": without_an_item, "v0": one_v0,
        "a copy of a step": copied, "a copy of Flax's": copied_of_flax}


def imported(path: pathlib.Path, to: pathlib.Path) -> Any:
    with stepwell.open(to) as store:
        store.import_checkpoint(path, 1).result()
        return store.load(1)


def is_whole(loaded: Any) -> bool:
    return (loaded.keys() == TREE.keys() and np.array_equal(loaded["array"], TREE["array"])
            and all(loaded[key] == TREE[key] for key in TREE if key != "array"))


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_all_that_was_saved_is_there(make: Callable[[pathlib.Path], pathlib.Path],
                                     tmp_path: pathlib.Path) -> None:
    """Leaves that Orbax cannot hold, too."""
    made = make(tmp_path)
    assert is_whole(imported(made, tmp_path / "store"))
    if make in (copied, one_v1):  # as one checkpoint of its own
        assert is_whole(v1.load(made))


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_a_flipped_byte_is_found(make: Callable[[pathlib.Path], pathlib.Path],
                                 tmp_path: pathlib.Path) -> None:
    """Flips bytes at several places of every file outside the store: an import is whole or an
    error."""
    made = make(tmp_path)
    refused = 0
    for folder, _, names in os.walk(made):
        for name in names if ".stepwell" not in folder else []:
            path = pathlib.Path(folder, name)
            data = path.read_bytes()
            path.unlink()  # others have links to it
            for at in range(0, len(data), 1 + len(data) // in_a_storm(4)):
                flipped = bytearray(data)
                flipped[at] ^= 4
                path.write_bytes(flipped)
                to = tmp_path / f"{name}-{at}"
                try:
                    assert is_whole(imported(made, to)), (path, at)
                except (stepwell.CorruptionError, stepwell.FormatError,
                        stepwell.InvalidArgumentError):
                    refused += 1
                shutil.rmtree(to)
            path.write_bytes(data)
    assert refused > 16
    assert is_whole(imported(made, tmp_path / "store"))


def test_a_part_of_a_checkpoint_is_never_taken_for_all_of_it(tmp_path: pathlib.Path) -> None:
    v1.save_checkpointables(tmp_path / "one_1", {"state": TREE, "z": {"x": 3, "few": b"f"}})
    shutil.copytree(tmp_path / "one_1", tmp_path / "part_1")
    shutil.rmtree(tmp_path / "part_1" / "z")
    shutil.copytree(tmp_path / "one_1" / "z", tmp_path / "item_1")
    with stepwell.open(tmp_path / "store") as store:
        with pytest.raises(stepwell.CorruptionError, match="z/"):
            store.import_checkpoint(tmp_path / "part_1", 1).result()
        store.import_checkpoint(tmp_path / "part_1", 1, items=["state"]).result()
        assert is_whole(store.load(1))
        with pytest.raises(stepwell.CorruptionError, match="stepwell-values"):
            store.import_checkpoint(tmp_path / "item_1", 2).result()
        (tmp_path / "item_1" / "stepwell-values").unlink()
        store.import_checkpoint(tmp_path / "item_1", 2).result()
        assert store.load(2) == {"x": 3}


def test_an_item_is_deleted_of_the_checkpoint_that_is_there(tmp_path: pathlib.Path) -> None:
    """Not of the one that was there before a save which replaces it meanwhile."""
    path = tmp_path / "one_1"
    for _ in range(in_a_storm(5)):
        v1.save_checkpointables(path, {"a": TREE, "x": TREE}, overwrite=True)
        saving = v1.save_checkpointables_async(path, {"a": TREE, "q": TREE, "x": TREE},
                                               overwrite=True)
        v1.delete(path, checkpointable_name="x")
        saving.result()
        with stepwell.open(tmp_path / "store") as store:
            store.import_checkpoint(path, 1, if_exists="replace").result()
            for name in store[1].items:
                assert is_whole(store.load(1, items=[name])[name])


def test_keys_that_are_one_name_for_orbax(tmp_path: pathlib.Path) -> None:
    tree = {1: np.zeros(2), "1": np.ones(2)}
    v1.save(tmp_path / "one", tree)
    checkpoints.save_checkpoint(tmp_path / "flax", tree, 1)
    for load in (lambda: v1.load(tmp_path / "one"),
                 lambda: checkpoints.restore_checkpoint(tmp_path / "flax", None)):
        with pytest.raises(ValueError, match="keys 1 and '1' of a dict are one name"):
            load()


def test_an_item_that_a_copy_lacks_is_an_error(tmp_path: pathlib.Path) -> None:
    """One of which Orbax can hold nothing, or that was lost."""
    items = {"state": {"w": np.arange(3)}, "rng": {"seed": 1 << 80}}
    with v1.training.Checkpointer(tmp_path / "root") as root:
        root.save_checkpointables(1, items)
    shutil.copytree(tmp_path / "root" / "1", tmp_path / "copy_1")
    shutil.copytree(tmp_path / "root" / "1", tmp_path / "part_1")
    shutil.rmtree(tmp_path / "part_1" / "state")
    assert v1.load_checkpointables(tmp_path / "root" / "1")["rng"] == items["rng"]
    assert v1.load(tmp_path / "copy_1")["w"].tolist() == [0, 1, 2]
    for name, lacking in (("copy_1", "rng"), ("part_1", "state")):
        with pytest.raises(ValueError, match=lacking):
            v1.load_checkpointables(tmp_path / name)
        with stepwell.open(tmp_path / f"store {name}") as store:
            with pytest.raises(stepwell.CorruptionError, match="rng"):
                store.import_checkpoint(tmp_path / name).result()
    v1.save_checkpointables(tmp_path / "one_2", items)
    v1.delete(tmp_path / "one_2", checkpointable_name="rng")
    assert imported(tmp_path / "one_2", tmp_path / "store")["w"].tolist() == [0, 1, 2]


def test_a_named_load_of_an_item_that_was_removed_is_a_key_error(tmp_path: pathlib.Path) -> None:
    v1.save_checkpointables(tmp_path / "c", {"one": {"a": 1}, "two": {"c": 3}})
    shutil.rmtree(tmp_path / "c" / "one")
    assert v1.load_checkpointables(tmp_path / "c", {"two": None}) == {"two": {"c": 3}}
    with pytest.raises(KeyError, match="one.*were not found"):
        v1.load_checkpointables(tmp_path / "c", {"one": None})
    with pytest.raises(ValueError, match="lacks.*one"):
        v1.load_checkpointables(tmp_path / "c")
    assert list(v1.checkpointables_metadata(tmp_path / "c").metadata) == ["two"]


@DELETES
def test_orbax_deletes_an_item_of_a_copy(tmp_path: pathlib.Path) -> None:
    with v1.training.Checkpointer(tmp_path / "root") as root:
        root.save_checkpointables(1, {"one": {"a": 1}, "two": {"c": np.arange(9)}})
    copy = tmp_path / "copy_1"
    shutil.copytree(tmp_path / "root" / "1", copy)
    orbax_v1.delete(copy, checkpointable_name="two")
    assert v1.load_checkpointables(copy) == {"one": {"a": 1}}
    with stepwell.open(tmp_path / "store") as store:
        store.import_checkpoint(copy, 1).result()
        assert store.load(1) == {"one": {"a": 1}}
        data = next((copy / "one").rglob("_METADATA"))
        data.write_bytes(data.read_bytes().replace(b"a", b"b", 1))
        with pytest.raises(stepwell.CorruptionError):
            store.import_checkpoint(copy, 2).result()


@DELETES
def test_orbax_deletes_an_item_of_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """Its store, in the first item, has the deleted one still."""
    path = tmp_path / "c"
    v1.save_checkpointables(path, {"one": {"a": 1}, "two": {"b": 2}, "large": {"n": 1 << 80}})
    orbax_v1.delete(path, checkpointable_name="two")
    assert v1.load_checkpointables(path) == {"one": {"a": 1}, "large": {"n": 1 << 80}}
    assert sorted(v1.checkpointables_metadata(path).metadata) == ["large", "one"]
    with pytest.raises(KeyError, match="two.*were not found"):
        v1.load_checkpointables(path, {"two": None})
    v1.delete(path, checkpointable_name="large")
    assert v1.load_checkpointables(path) == orbax_v1.load_checkpointables(path) == {"one": {"a": 1}}


def test_a_directory_that_was_removed_is_told_by_each_facade(tmp_path: pathlib.Path) -> None:
    items = {"one": {"a": 1}, "two": {"b": 2}}
    v1.save_checkpointables(tmp_path / "c", items)
    with v0.CheckpointManager(tmp_path / "root", item_names=tuple(items)) as manager:
        manager.save(1, args=v0.args.Composite(**{
            name: v0.args.StandardSave(tree) for name, tree in items.items()}))
    shutil.copytree(tmp_path / "root" / "1", tmp_path / "copies" / "1")
    for path in (tmp_path / "c", tmp_path / "copies" / "1"):
        shutil.rmtree(path / "two")
        with pytest.raises(ValueError, match="lacks.*two"):
            v1.load_checkpointables(path)
        assert v1.load_checkpointables(path, {"one": None}) == {"one": {"a": 1}}
    with v0.CheckpointManager(tmp_path / "copies", item_names=tuple(items)) as manager:
        with pytest.raises(FileNotFoundError, match="lacks.*two"):
            manager.restore(1)
        with pytest.raises(KeyError, match="two"):
            manager.restore(1, args=v0.args.Composite(two=v0.args.StandardRestore()))
        assert "two" not in manager.item_metadata(1)


@pytest.mark.parametrize("stage", ["recorded", "half removed", "gone"])
def test_a_deletion_by_orbax_that_was_killed(tmp_path: pathlib.Path, stage: str) -> None:
    path = tmp_path / "c"
    v1.save_checkpointables(path, {"one": {"a": 1}, "two": {"b": 2}})
    record = {"checkpointable_name": "two"}
    (path / "_CHECKPOINT_DELETION").write_text(json.dumps(record))
    if stage == "half removed":
        (path / "two" / "_METADATA").unlink()
    elif stage == "gone":
        shutil.rmtree(path / "two")
    assert v1.load_checkpointables(path) == {"one": {"a": 1}}
    assert list(v1.checkpointables_metadata(path).metadata) == ["one"]


class Position:
    """A stateful object, whose item is files."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    async def save(self, directory: Any) -> Any:
        async def write() -> None:
            (await directory.await_creation() / "at.txt").write_text(str(self.at))
        return write()

    async def load(self, directory: Any) -> Any:
        async def read() -> None:
            self.at = int((directory / "at.txt").read_text())
        return read()


def test_the_store_in_an_item_of_files_is_not_one_of_them(tmp_path: pathlib.Path) -> None:
    v1.save_checkpointables(tmp_path / "c", {"aaa": Position(7), "tree": {"a": 1}})
    assert next((tmp_path / "c").glob("*/.stepwell")).parent.name == "aaa"
    with stepwell.open(tmp_path / "store") as store:
        store.import_checkpoint(tmp_path / "c", 1).result()
        store[1].write_files("aaa", tmp_path / "files")
    assert [path.name for path in (tmp_path / "files").rglob("*")] == ["at.txt"]
