# SPDX-License-Identifier: Apache-2.0
"""Steps of a root that people copy, move, link and replace: each path, by every door, gives the
bytes that are there, or an error; never those of another store, never zeros."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import orbax.checkpoint as real_v0
import orbax.checkpoint.experimental.v1 as real_v1
import pytest

import stepwell
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as v1

SIZE = 300_000


def state(value: float) -> dict[str, Any]:
    return {"w": np.full(SIZE, value, np.float32)}


def make_root(path: pathlib.Path, values: dict[int, float]) -> None:
    with v1.training.Checkpointer(path) as checkpointer:
        for step, value in values.items():
            checkpointer.save(step, state(value), overwrite=True, force=True)


def value_of(tree: Any) -> float:
    array = np.asarray(tree["w"])
    assert array.shape == (SIZE,) and (array == array[0]).all()
    return float(array[0])


def by_v0(path: pathlib.Path) -> float:
    with v0.CheckpointManager(path.parent, options=v0.CheckpointManagerOptions(
            read_only=True, step_name_format=Named(path.name))) as manager:
        restored = manager.restore(1, args=v0.args.Composite(state=v0.args.StandardRestore()))
    return value_of(restored["state"])


class Named:
    """A format of names that knows one directory, as step 1."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build_name(self, step: int) -> str:
        return f"{step}"

    def find_all(self, base: Any) -> Any:
        yield self.find_step(base, 1)

    def find_step(self, base: Any, step: int) -> Any:
        return real_v0.path.step.Metadata(step=step, path=base / self.name)


def by_import(path: pathlib.Path) -> float:
    with stepwell.open(path.parent / ".import-test") as store:
        store.import_checkpoint(path, 0, if_exists="replace").result()
        return value_of(store.load(0))


def by_load_or(path: pathlib.Path) -> float:
    with stepwell.open(path.parent / ".load-or-test") as store:
        return value_of(store.load_or(state(-1), source=path)[0])


DOORS: dict[str, Callable[[pathlib.Path], float]] = {
    "v1.load": lambda path: value_of(v1.load(path)),
    "v0.Checkpointer": lambda path: value_of(v0.Checkpointer(
        v0.CompositeCheckpointHandler()).restore(path)["state"]),
    "import": by_import,
    "load_or": by_load_or,
    "Orbax v1": lambda path: value_of(real_v1.load(path)),
    "Orbax v0": lambda path: value_of(real_v0.StandardCheckpointer().restore(path / "state")),
}


def check(path: pathlib.Path, value: float) -> None:
    got = {name: door(path) for name, door in DOORS.items()}
    assert got == dict.fromkeys(DOORS, value)


def copy(source: pathlib.Path, target: pathlib.Path, *options: str) -> None:
    subprocess.run(["cp", *(options or ("-r",)), source, target], check=True)


def test_a_copy_in_another_root_is_what_was_copied(tmp_path):
    make_root(tmp_path / "a", {3: 1.0})
    make_root(tmp_path / "b", {3: 2.0})
    copy(tmp_path / "a/3", tmp_path / "b/33")
    check(tmp_path / "b/33", 1.0)
    check(tmp_path / "b/3", 2.0)
    with v1.training.Checkpointer(tmp_path / "b") as checkpointer:
        assert [each.step for each in checkpointer.checkpoints] == [3, 33]
        assert value_of(checkpointer.load(33)) == 1.0
        checkpointer.delete(33)
    assert not (tmp_path / "b/33").exists()
    check(tmp_path / "a/3", 1.0)


@pytest.mark.parametrize("options", [("-r",), ("-a",), ("-al",), ("-rL",)], ids=lambda o: o[0])
def test_a_copy_in_the_same_root_outlives_its_step(tmp_path, options):
    make_root(tmp_path / "run", {3: 1.0, 4: 2.0})
    copy(tmp_path / "run/3", tmp_path / "run/backup_3", *options)
    make_root(tmp_path / "run", {3: 7.0})
    check(tmp_path / "run/backup_3", 1.0)
    check(tmp_path / "run/3", 7.0)
    with v1.training.Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.delete(3)
    with stepwell.open(tmp_path / "run/.stepwell") as store:
        store.reclaim()
        for step in range(5, 9):  # what was given back is used again
            store.save(step, state(9.0)).result()
    check(tmp_path / "run/backup_3", 1.0)
    check(tmp_path / "run/4", 2.0)


def test_a_copy_beside_a_step_of_that_number_elsewhere(tmp_path):
    make_root(tmp_path / "a", {3: 1.0})
    options = v0.CheckpointManagerOptions(step_prefix="ckpt")
    with v0.CheckpointManager(tmp_path / "b", options=options) as manager:
        manager.save(3, args=v0.args.Composite(state=v0.args.StandardSave(state(2.0))))
    copy(tmp_path / "a/3", tmp_path / "b/3")
    check(tmp_path / "b/3", 1.0)
    check(tmp_path / "b/ckpt_3", 2.0)


def test_a_step_that_was_replaced_by_a_copy_is_the_copy(tmp_path):
    make_root(tmp_path / "run", {3: 1.0, 4: 2.0})
    shutil.rmtree(tmp_path / "run/4")
    copy(tmp_path / "run/3", tmp_path / "run/4")
    check(tmp_path / "run/4", 1.0)
    with v1.training.Checkpointer(tmp_path / "run") as checkpointer:
        assert value_of(checkpointer.load(4)) == 1.0  # as Orbax has it
    check(tmp_path / "run/4", 1.0)


def test_a_link_to_a_step_is_listed_and_followed(tmp_path):
    make_root(tmp_path / "a", {3: 1.0})
    (tmp_path / "new").mkdir()
    os.symlink(tmp_path / "a/3", tmp_path / "new/3")
    check(tmp_path / "new/3", 1.0)
    with v1.training.Checkpointer(tmp_path / "new") as checkpointer:
        assert [each.step for each in checkpointer.checkpoints] == [3]
        assert value_of(checkpointer.load(3)) == 1.0
        checkpointer.save(4, state(4.0))
        checkpointer.delete(3)
    assert not os.path.lexists(tmp_path / "new/3")
    check(tmp_path / "a/3", 1.0)


def test_all_steps_copied_without_the_store_go_on(tmp_path):
    make_root(tmp_path / "run", {3: 1.0, 4: 2.0})
    (tmp_path / "to").mkdir()
    subprocess.run("cp -rL run/* to/", shell=True, check=True, cwd=tmp_path)
    for value, step in ((1.0, 3), (2.0, 4)):
        check(tmp_path / f"to/{step}", value)
    with v0.CheckpointManager(tmp_path / "to") as manager:
        assert manager.all_steps() == [3, 4]
        manager.save(5, args=v0.args.Composite(state=v0.args.StandardSave(state(5.0))))
        manager.wait_until_finished()
        assert manager.all_steps() == [3, 4, 5]
    check(tmp_path / "to/5", 5.0)
    check(tmp_path / "to/3", 1.0)


@pytest.mark.parametrize("options", [("-r",), ("-a",), ("-al",)], ids=lambda o: o[0])
def test_a_copied_root_goes_on_by_itself(tmp_path, options):
    make_root(tmp_path / "run", {3: 1.0, 4: 2.0})
    copy(tmp_path / "run", tmp_path / "other", *options)
    make_root(tmp_path / "other", {3: 7.0, 5: 8.0})
    make_root(tmp_path / "run", {4: 9.0, 6: 6.0})
    for name, values in (("run", {3: 1.0, 4: 9.0, 6: 6.0}),
                         ("other", {3: 7.0, 4: 2.0, 5: 8.0})):
        for step, value in values.items():
            check(tmp_path / name / str(step), value)
        with stepwell.open(tmp_path / name / ".stepwell", mode="r") as store:
            assert store.steps() == sorted(values) and store.verify().ok


def test_a_moved_root_is_the_same(tmp_path):
    make_root(tmp_path / "run", {3: 1.0})
    (tmp_path / "run").rename(tmp_path / "moved")
    check(tmp_path / "moved/3", 1.0)
    make_root(tmp_path / "moved", {4: 2.0})
    check(tmp_path / "moved/4", 2.0)


def test_tar_and_rsync_give_whole_checkpoints(tmp_path):
    make_root(tmp_path / "run", {3: 1.0})
    subprocess.run("tar cf - run/3 | (mkdir out && tar xf - -C out)", shell=True, check=True,
                   cwd=tmp_path)
    shutil.rmtree(tmp_path / "run")
    check(tmp_path / "out/run/3", 1.0)


def test_a_rotten_copy_is_an_error_never_other_bytes(tmp_path):
    make_root(tmp_path / "run", {3: 1.0})
    copy(tmp_path / "run/3", tmp_path / "copy")
    data = max((path for path in (tmp_path / "copy").rglob("*") if path.is_file()),
               key=lambda path: path.stat().st_size)
    with open(data, "r+b") as file:
        file.seek(data.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    for door in (by_import, by_load_or):
        with pytest.raises(stepwell.CorruptionError):
            door(tmp_path / "copy")
