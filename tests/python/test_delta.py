# SPDX-License-Identifier: Apache-2.0
"""Steps that are stored as differences are as steps that are stored whole, through every door."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import stepwell
from equality import same
from group_runs import machines, run
from group_values import values
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp_v1

MIB = 1 << 20


class Training:
    """A state in which few elements change from step to step, by a little."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.weights = {
            "bf16": self.rng.standard_normal((512, 1024)).astype(ml_dtypes.bfloat16),
            "f32": self.rng.standard_normal((256, 1024)).astype(np.float32),
            "f16": self.rng.standard_normal((300, 7)).astype(np.float16),
            "ints": self.rng.integers(-100, 100, (700, 30), np.int32),
        }

    def next(self, share: float = 0.01) -> dict[str, Any]:
        self.count += 1
        for name, leaf in self.weights.items():
            leaf = leaf.copy()
            changed = self.rng.random(leaf.shape) < share
            bits = leaf.view({2: np.int16, 4: np.int32}[leaf.dtype.itemsize])
            bits[changed] += self.rng.choice([-1, 1, 2], changed.sum()).astype(bits.dtype)
            self.weights[name] = leaf
        return {"w": dict(self.weights), "count": self.count}


def owned(store: stepwell.Store) -> list[int]:
    return [store[step].owned_bytes for step in store]


def make_numpy(tree: Any) -> Any:
    return tree


def make_jax(tree: Any) -> Any:
    return {"w": jax.tree.map(jnp.asarray, tree["w"]), "count": tree["count"]}


def make_sharded(tree: Any) -> Any:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec())
    return {"w": jax.device_put(tree["w"], sharding), "count": tree["count"]}


@pytest.mark.parametrize("make", [make_numpy, make_jax, make_sharded])
@pytest.mark.parametrize("session", [1, 4, 100])
def test_a_sparse_change_takes_a_fraction(path: pathlib.Path, make: Any, session: int) -> None:
    training = Training()
    wanted = []
    for begin in range(0, 12, session):
        with stepwell.open(path, delta=True) as store:
            for step in range(begin, min(begin + session, 12)):
                wanted.append(training.next())
                store.save(step, make(wanted[-1])).result()
    with stepwell.open(path, mode="r") as store:
        first, *others = owned(store)
        assert first > 2 * MIB and max(others) < first / 8
        for step in store:
            assert store[step].stored_bytes < 1.5 * first
            assert same(store.load(step), wanted[step]), step
        assert store.verify().ok
        assert np.array_equal(store.load(11, "w/f32")[3:5], wanted[11]["w"]["f32"][3:5])


def test_a_compressed_keyframe_leaves_more_for_differences(tmp_path: pathlib.Path) -> None:
    """Half of the elements change: one difference fits behind a raw keyframe, two behind a
    compressed one. No step is read with more than one and a half times its bytes."""
    owned_bytes = {}
    for codec in ("raw", "blosc"):
        rng = np.random.default_rng(0)
        leaf = rng.standard_normal((512, 1024)).astype(ml_dtypes.bfloat16)
        path = tmp_path / codec
        with stepwell.open(path, delta=True, codec=codec) as store:
            for step in range(9):
                leaf = leaf.copy()
                changed = rng.random(leaf.shape) < 0.5
                leaf.view(np.int16)[changed] += rng.integers(-60, 60, changed.sum(), np.int16)
                store.save(step, {"x": leaf}).result()
                assert np.array_equal(store.load(step, "x").view(np.int16), leaf.view(np.int16))
                assert store[step].stored_bytes <= 1.5 * leaf.nbytes
            owned_bytes[codec] = sum(owned(store)[1:])
            assert owned_bytes[codec] < 0.8 * 8 * leaf.nbytes
    assert owned_bytes["blosc"] < 0.85 * owned_bytes["raw"]


def test_without_the_option_nothing_is_a_difference(path: pathlib.Path) -> None:
    training = Training()
    with stepwell.open(path) as store:
        for step in range(3):
            store.save(step, training.next()).result()
        assert all(store[step].owned_bytes == store[step].stored_bytes for step in store)
    with pytest.raises(stepwell.InvalidArgumentError, match="mode='a'"):
        stepwell.open(path, mode="r", delta=True)
    with pytest.raises(stepwell.InvalidArgumentError, match="delta must be True or False"):
        stepwell.open(path, delta=1)  # type: ignore[arg-type]


def test_saves_that_are_not_waited_for(path: pathlib.Path) -> None:
    training = Training()
    wanted = []
    with stepwell.open(path, delta=True, keep=stepwell.policy.LatestN(5)) as store:
        for step in range(30):
            wanted.append(training.next())
            store.save(step, wanted[-1])
        store.wait()
        assert len(store) == 5
        for step in store:
            assert same(store.load(step), wanted[step]), step


def test_each_way_out_gives_the_whole_step(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    training = Training()
    wanted = []
    with stepwell.open(path, delta=True) as store:
        for step in range(6):
            wanted.append(training.next())
            store.save(step, wanted[-1]).result()
        store.branch("b")
        for step in (0, 2, 4):
            store.delete(step)
        store.reclaim()
        assert store[5].owned_bytes < store[5].stored_bytes / 8
        for number, mode in enumerate(("auto", "copy", "link")):
            store.export(5, tmp_path / f"x{number}", mode=mode)
            with ocp_v0.StandardCheckpointer() as checkpointer:
                restored = checkpointer.restore(tmp_path / f"x{number}" / "state")
            assert same(jax.tree.map(np.asarray, restored["w"]), wanted[5]["w"])
            loaded = ocp_v1.load(tmp_path / f"x{number}")
            assert same(jax.tree.map(np.asarray, loaded["w"]), wanted[5]["w"])
        store.export(5, tmp_path / "arrays.safetensors", to="safetensors", path="w")
        store.export(5, tmp_path / "arrays.npz", to="npz", path="w/f32")
        store.import_checkpoint(tmp_path / "x1", step=20).result()
        assert same(store.load(20), wanted[5])
        store.push(5, f"file://{tmp_path}/pushed")
        training.next()
        store.save(30, wanted[5]).result()
        assert same(store.load(30), wanted[5])
    with stepwell.open(path, branch="b", delta=True) as branch:
        assert same(branch.load(4), wanted[4])
        branch.save(9, wanted[1]).result()
        assert branch[9].owned_bytes < branch[9].stored_bytes / 3
        assert same(branch.load(9), wanted[1]) and branch.verify().ok
    with stepwell.open(tmp_path / "pulled", delta=True) as pulled:
        pulled.pull(f"file://{tmp_path}/pushed")
        assert same(pulled.load(5), wanted[5])
        pulled.save(6, wanted[4]).result()
        assert same(pulled.load(6), wanted[4])


@pytest.mark.parametrize("local", [False, True])
def test_processes_that_save_together(tmp_path: pathlib.Path, local: bool) -> None:
    """Each process stores the differences of its part; an export, which encodes anew, has all."""
    root = tmp_path / "store"
    roots = machines(tmp_path, 0, 1) if local else root
    place = str(tmp_path / "x")
    leaves = {str(process): ["sparse", "rows"] for process in range(2)}
    export = ["export_together", {"dest": place, "step": 6}] if local else \
        ["export", {"process": 0, "dest": place, "step": 6}]
    saves = [["save", {"step": step, "leaves": leaves}] for step in range(1, 7)]
    said = run(roots, [["open", {"delta": True, **({"disks": "local"} if local else {})}], *saves,
                       ["delete", {"steps": [1, 3]}], ["reclaim", {}], export, ["verify", {}],
                       ["close", {}]])
    for process in said:
        assert process.status == 0, process.output[-2000:]
        assert process.gave(len(saves) + 4)[1] == []
    restored = ocp_v1.load(place)
    assert np.array_equal(np.asarray(restored["params"]["sparse"]), values("sparse", 6))
    if local:
        return
    with stepwell.open(root, "r") as store:
        assert store[6].owned_bytes < store[6].stored_bytes / 4
        for step in (2, 4, 5, 6):
            assert np.array_equal(store.load(step, "params/sparse"), values("sparse", step))
