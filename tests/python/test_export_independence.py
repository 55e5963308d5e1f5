# SPDX-License-Identifier: Apache-2.0
"""Exports and the store that they come from never change each other: neither when the store goes
on, reclaims or is deleted, nor when Orbax and TensorStore add to exports or delete them."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import stepwell
import tensorstore as ts
from orbax.checkpoint import v1 as ocp_v1

STEPS = range(1, 7)
MODES = ["link", "copy"]

pytestmark = [
    # Orbax leaves its own event loops to the garbage collector, which warns of them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
]


def state(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {
        "w": rng.standard_normal((300, 700)).astype(np.float32),  # uneven edges
        "flat": np.full((500, 500), step, np.int32),  # compressed
        "deep": [{"b": rng.integers(0, 9, 50)}, {"b": step / 3}],
        "step": step,
        "name": f"step {step}",
    }


def arrays(step: int) -> dict[str, Any]:
    """Without what Orbax v0 does not save."""
    return {key: value for key, value in state(step).items() if key != "name"}


def same(stored: Any, loaded: Any) -> bool:
    if isinstance(stored, dict):
        return stored.keys() == loaded.keys() and all(same(stored[k], loaded[k]) for k in stored)
    if isinstance(stored, list):
        return len(stored) == len(loaded) and all(map(same, stored, loaded))
    if isinstance(stored, np.ndarray):
        return stored.dtype == loaded.dtype and np.array_equal(stored, np.asarray(loaded))
    return bool(stored == loaded)


def digests(folder: pathlib.Path) -> dict[str, bytes]:
    """Digests every file below."""
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).digest()
            for file in sorted(folder.rglob("*")) if file.is_file()}


def filled(path: pathlib.Path) -> stepwell.Store:
    store = stepwell.open(path)
    for step in STEPS:
        store.save(step, state(step))
    store.wait()
    return store


def check_store(store: stepwell.Store, steps: Any = STEPS) -> None:
    """Every byte of it."""
    assert store.steps() == list(steps)
    report = store.verify()
    assert report.steps == len(list(steps)) and not report.problems
    for step in steps:
        assert same(state(step), store.load(step))


class Closed:
    """A store that nobody has open: its files are the same, byte for byte, when this ends."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        self.before = digests(self.path)
        self.modes = {file: file.stat().st_mode for file in self.path.rglob("*")}

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            return
        assert digests(self.path) == self.before
        assert {file: file.stat().st_mode for file in self.path.rglob("*")} == self.modes
        with stepwell.open(self.path) as store:
            check_store(store)


@pytest.fixture
def store_path(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    yield tmp_path / "store"


@pytest.mark.parametrize(("mode", "zarr"), [("link", 3), ("copy", 2)])
def test_an_export_stays_whatever_becomes_of_the_store(
        tmp_path: pathlib.Path, store_path: pathlib.Path, mode: str, zarr: int) -> None:
    exports = {step: tmp_path / f"x{step}" for step in (2, 5)}
    store = filled(store_path)
    for step, place in exports.items():
        assert store.export(step, place, mode=mode, zarr=zarr).mode == mode
    before = {step: digests(place) for step, place in exports.items()}

    def check() -> None:
        for step, place in exports.items():
            assert digests(place) == before[step]
            assert same(state(step), ocp_v1.load(place))

    store.delete(list(STEPS))
    store.reclaim()
    check()
    for step in range(100, 140):  # segments are used again
        store.save(step, state(step))
        if step > 102:
            store.wait()
            store.delete(step - 3)
    store.reclaim()
    check()
    store.close()
    with stepwell.open(store_path) as store:
        check_store(store, range(137, 140))
        store.delete([137, 138, 139])
        store.reclaim()
    check()
    shutil.rmtree(store_path)
    check()


@pytest.mark.parametrize("mode", MODES)
def test_a_manager_goes_on_in_the_root(
        tmp_path: pathlib.Path, store_path: pathlib.Path, mode: str) -> None:
    """Real saves beside exported steps; `max_to_keep` deletes exported ones."""
    root = tmp_path / "root"
    with filled(store_path) as store:
        for step in (2, 3, 4):
            store.export(step, root, mode=mode, layout="v0", unnamed_default=True)
    kept = digests(root / "4")
    options = ocp_v0.CheckpointManagerOptions(max_to_keep=3, cleanup_tmp_directories=True)
    with Closed(store_path), ocp_v0.CheckpointManager(root, options=options) as manager:
        assert list(manager.all_steps()) == [2, 3, 4]
        for step in (10, 11):
            manager.save(step, args=ocp_v0.args.StandardSave(arrays(step)))
        manager.wait_until_finished()
        assert sorted(manager.all_steps()) == [4, 10, 11]
        for step in (4, 10, 11):
            tree = state(step) if step == 4 else arrays(step)
            assert same(tree, manager.restore(step, args=ocp_v0.args.StandardRestore()))
        assert digests(root / "4") == kept
        manager.delete(4)
    assert sorted(path.name for path in root.iterdir()) == ["10", "11"]
    with stepwell.open(store_path) as store:
        store.export(4, root, mode=mode, layout="v0", unnamed_default=True)
        assert digests(root / "4").keys() == kept.keys()
        theirs = {step: digests(root / str(step)) for step in (10, 11)}
        store.delete(list(STEPS))
        store.reclaim()
    assert {step: digests(root / str(step)) for step in (10, 11)} == theirs
    with ocp_v0.CheckpointManager(root) as manager:
        assert same(state(4), manager.restore(4, args=ocp_v0.args.StandardRestore()))


@pytest.mark.parametrize("mode", MODES)
def test_orbax_sees_nothing_of_exports_that_died(
        tmp_path: pathlib.Path, store_path: pathlib.Path, mode: str) -> None:
    """An export that is killed before its rename leaves no step, and no obstacle."""
    v0, v1 = tmp_path / "v0", tmp_path / "v1"
    v1.mkdir()
    with filled(store_path) as store:
        for step in (2, 5):
            store.export(step, v0, mode=mode, layout="v0", unnamed_default=True)
            store.export(step, v1 / str(step), mode=mode)
        for root in (v0, v1):
            dead = (root / "5").rename(root / "5.orbax-checkpoint-tmp")
            (dead / "stepwell-export.lock").touch()
            (dead / "commit_success.txt").unlink()
        with ocp_v0.CheckpointManager(v0) as manager:
            assert list(manager.all_steps()) == [2] and manager.latest_step() == 2
        with ocp_v1.training.Checkpointer(v1) as checkpointer:
            assert [c.step for c in checkpointer.checkpoints] == [2]
        store.export(5, v0, mode=mode, layout="v0", unnamed_default=True)
        store.export(5, v1 / "5", mode=mode)
    for root in (v0, v1):
        assert sorted(path.name for path in root.iterdir()) == ["2", "5"]
    with ocp_v0.CheckpointManager(v0) as manager:
        assert list(manager.all_steps()) == [2, 5]
        assert same(state(5), manager.restore(5, args=ocp_v0.args.StandardRestore()))
    assert same(state(5), ocp_v1.load(v1 / "5"))


@pytest.mark.parametrize("mode", MODES)
def test_orbax_v1_saves_beside_over_and_deletes(
        tmp_path: pathlib.Path, store_path: pathlib.Path, mode: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with filled(store_path) as store:
        for step in (2, 3, 4, 5):
            store.export(step, root / str(step), mode=mode)
    others = digests(root / "5")
    with Closed(store_path):
        ocp_v1.save(root / "2", state(20), overwrite=True)
        assert same(state(20), ocp_v1.load(root / "2"))
        ocp_v1.delete(root / "3")
        assert not (root / "3").exists()
        with ocp_v1.training.Checkpointer(root) as checkpointer:
            assert [c.step for c in checkpointer.checkpoints] == [2, 4, 5]
            checkpointer.save(6, state(6), overwrite=True)
            checkpointer.delete(4)
            assert same(state(5), checkpointer.load(5))
            assert same(state(6), checkpointer.load(6))
        assert digests(root / "5") == others


@pytest.mark.parametrize(("mode", "zarr"), [("link", 3), ("copy", 2)])
def test_orbax_adds_leaves_to_an_export(
        tmp_path: pathlib.Path, store_path: pathlib.Path, mode: str, zarr: int) -> None:
    """A partial save that begins with an export: Orbax writes into its directory."""
    target = tmp_path / "partial"
    ocp_v1.partial.save(target, {"probe": np.ones(3)})
    session, = tmp_path.glob("partial*")
    shutil.rmtree(session)
    with filled(store_path) as store:
        store.export(3, session, mode=mode, zarr=zarr)
        store.export(3, tmp_path / "other", mode=mode, zarr=zarr)
    other = digests(tmp_path / "other")
    more = {"more": np.arange(90_000, dtype=np.float64), "deep2": {"x": np.ones(2)}}
    context = ocp_v1.Context()
    context.array.saving.use_zarr3 = zarr == 3
    with Closed(store_path), context:
        ocp_v1.partial.save(target, more)
        ocp_v1.partial.finalize(target)
        loaded = ocp_v1.load(target)
        assert same(state(3) | more, loaded)
        assert digests(tmp_path / "other") == other


def kvstore_of(place: pathlib.Path) -> dict[str, Any]:
    return {"driver": "ocdbt", "base": f"file://{place}/state/"}


@pytest.mark.parametrize(("mode", "zarr"), [("link", 3), ("copy", 2)])
def test_tensorstore_writes_into_an_export(
        tmp_path: pathlib.Path, store_path: pathlib.Path, mode: str, zarr: int) -> None:
    """Keys and arrays added, changed and deleted in the exported database."""
    place = tmp_path / "x"
    with filled(store_path) as store:
        for name, step in {"x": 4, "same": 4, "next": 5}.items():
            store.export(step, tmp_path / name, mode=mode, zarr=zarr)
    others = {name: digests(tmp_path / name) for name in ("same", "next")}
    driver = "zarr3" if zarr == 3 else "zarr"

    def array(name: str) -> dict[str, Any]:
        return {"driver": driver, "kvstore": {**kvstore_of(place), "path": f"{name}/"}}

    new = np.random.default_rng(9).standard_normal((400, 400))
    with Closed(store_path):
        kvstore = ts.KvStore.open(kvstore_of(place)).result()
        keys = kvstore.list().result()
        kvstore.write(b"note", b"n" * 5000).result()
        ts.open(array("new"), create=True, dtype=ts.float64, shape=new.shape).result().write(
            new).result()
        changed = ts.open(array("w")).result()
        changed[10:20, 30:40].write(np.zeros((10, 10), np.float32)).result()
        kvstore.delete_range(ts.KvStore.KeyRange(b"flat/", b"flat0")).result()

        again = ts.KvStore.open(kvstore_of(place)).result()
        left = set(again.list().result())
        assert {b"note"} | {key for key in keys if not key.startswith(b"flat/")} <= left
        assert not any(key.startswith(b"flat/") for key in left)
        wanted = state(4)["w"]
        wanted[10:20, 30:40] = 0
        assert np.array_equal(ts.open(array("w")).result().read().result(), wanted)
        assert np.array_equal(ts.open(array("new")).result().read().result(), new)
        assert {name: digests(tmp_path / name) for name in others} == others
        for name, step in {"same": 4, "next": 5}.items():
            assert same(state(step), ocp_v1.load(tmp_path / name))
    # Additions survive the store's end, too.
    with stepwell.open(store_path) as store:
        store.delete(list(STEPS))
        store.reclaim()
        store.save(7, state(7)).result()
    assert np.array_equal(ts.open(array("w")).result().read().result(), wanted)
    assert same(state(5), ocp_v1.load(tmp_path / "next"))


@pytest.mark.parametrize("mode", MODES)
def test_exports_are_deleted_under_a_store_that_works(
        tmp_path: pathlib.Path, store_path: pathlib.Path, mode: str) -> None:
    with filled(store_path) as store:
        for round_ in range(3):
            for step in store.steps()[:3]:
                store.export(step, tmp_path / f"x{step}", mode=mode)
            new = 20 + round_
            handle = store.save(new, state(new))
            for place in tmp_path.glob("x*"):
                shutil.rmtree(place)
            handle.result()
            store.reclaim()
            check_store(store, [*STEPS, *range(20, new + 1)])
        store.delete([20, 21, 22])
        store.reclaim()
        assert store.stats()["space"]["linked_bytes"] == 0
    with Closed(store_path):
        pass
