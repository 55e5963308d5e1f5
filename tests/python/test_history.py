# SPDX-License-Identifier: Apache-2.0
"""Store.history against NumPy: one leaf in many steps."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equality import bits
from group_runs import machines, run
from group_values import values
from test_damage import flip
from test_leaves import DTYPES, sample

import stepwell


def chunks_read(store: stepwell.Store) -> int:
    return store.stats()["last_load"]["chunks"]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (7, 11, 13)], ids=str)
def test_every_dtype_and_shape(store, dtype, shape):
    steps = [sample(dtype, (4, *shape))[step] for step in range(4)]
    for step, array in enumerate(steps):
        store.save(step, {"x": np.array(array, dtype)}).result()
    found = store.history("x")
    assert found.steps == (0, 1, 2, 3) and isinstance(found, stepwell.History)
    assert (found.values.dtype, found.values.shape) == (dtype, (4, *shape))
    for step in range(4):
        assert bits(found.values[step]) == bits(store.load(step, "x")) or not shape
        assert found.values[step].tobytes() == store.load(step, "x").tobytes()


@pytest.mark.parametrize("index", [
    0, -1, np.s_[2:5], np.s_[::3], np.s_[..., 3], np.s_[:, ::-1], np.s_[1, None, 2:], np.s_[5:2],
    np.s_[::2, ::500], np.s_[-1, ::-7], (), ...,
], ids=str)
def test_slices(store, index):
    steps = [noise(9, 2000, seed=step) for step in range(3)]
    for step, array in enumerate(steps):
        store.save(step, {"x": array}, chunks=stepwell.ChunkShape(8192)).result()
    found = store.history("x", slice=index)
    np.testing.assert_array_equal(found.values, np.stack([array[index] for array in steps]))
    assert found.values.shape == (3, *steps[0][index].shape)


def test_a_slice_reads_its_chunks_alone(store):
    for step in range(5):
        store.save(step, {"x": noise(64, 1024, seed=step)},
                   chunks=stepwell.ChunkShape(4096)).result()
    store.history("x", slice=np.s_[3])
    assert chunks_read(store) == 5
    store.history("x", steps=[1, 2], slice=np.s_[::32])
    assert chunks_read(store) == 4
    for wrong in (64, np.s_[0, 0, 0], np.s_[..., ...]):
        with pytest.raises(IndexError):
            store.history("x", slice=wrong)
    with pytest.raises(TypeError):
        store.history("x", slice=[1, 2])


def test_shared_chunks_are_read_once(store):
    array = noise(512, 1024)
    for step in range(6):
        array = array.copy()
        array[0, 0] = step
        store.save(step, {"x": array, "same": array[1:].copy()}).result()
    found = store.history("same")
    assert chunks_read(store) == -(-511 // store[0]["same"].chunk_shape[0])
    np.testing.assert_array_equal(found.values, np.stack([array[1:]] * 6))
    found = store.history("x")
    assert chunks_read(store) == 2 + 5 and found.values[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_only_that_leaf_is_read(path):
    with stepwell.open(path, codec="raw") as store:
        for step in range(3):
            store.save(step, {"x": noise(100, seed=step), "bad": noise(9000, seed=50 + step)})
    for step in range(3):
        flip(path, noise(9000, seed=50 + step)[:100].tobytes())
    with stepwell.open(path, "r") as store:
        np.testing.assert_array_equal(
            store.history("x").values, np.stack([noise(100, seed=step) for step in range(3)]))
        with pytest.raises(stepwell.CorruptionError, match="bad"):
            store.history("bad")


def test_numbers(store):
    for step in range(4):
        store.save(step, {"int": step, "float": step / 2, "bool": step > 1, "complex": 1j * step,
                          "big": 2**63 + step, "huge": 2**70 + step, "scalar": np.float16(step),
                          "text": "a", "none": None}).result()
    for name, dtype, wanted in (("int", "int64", [0, 1, 2, 3]),
                                ("float", "float64", [0, .5, 1, 1.5]),
                                ("bool", "bool", [False, False, True, True]),
                                ("complex", "complex128", [0, 1j, 2j, 3j]),
                                ("scalar", "float16", [0, 1, 2, 3]),
                                ("big", "uint64", [2**63 + step for step in range(4)])):
        found = store.history(name)
        assert (found.values.dtype, found.values.shape) == (np.dtype(dtype), (4,)), name
        assert found.values.tolist() == wanted and chunks_read(store) <= 4
    assert store.history("int", slice=()).values.tolist() == [0, 1, 2, 3]
    assert store.history("int", slice=(None,)).values.shape == (4, 1)
    with pytest.raises(IndexError):
        store.history("int", slice=0)
    with pytest.raises(stepwell.InvalidArgumentError, match="64 bits"):
        store.history("huge")
    for name, what in (("text", "a str"), ("none", "a None")):
        with pytest.raises(stepwell.InvalidArgumentError, match=what):
            store.history(name)


def test_which_steps(store):
    for step in (0, 3, 6, 9, 12):
        store.save(step, {"n": step, **({"late": step} if step > 5 else {})}).result()
    assert store.history("n").steps == (0, 3, 6, 9, 12)
    for steps, wanted in (([9, 0], [9, 0]), (range(0, 7, 3), [0, 3, 6]), ((3, 3), [3, 3]), (6, [6]),
                          (np.array([12]), [12]), (slice(3, 9), [3, 6]), (slice(None), [
                              0, 3, 6, 9, 12]), (slice(None, 4), [0, 3]), (slice(1, None), [
                                  3, 6, 9, 12]), (slice(0, None, 2), [0, 6, 12])):
        found = store.history("n", steps)
        assert (list(found.steps), found.values.tolist()) == (wanted, wanted), steps
    assert store.history("late").steps == (6, 9, 12)
    assert store.history("late", slice(6, 20)).steps == (6, 9, 12)
    with pytest.raises(stepwell.PathNotFoundError, match="steps 0, 3 have nothing at 'late'"):
        store.history("late", slice(0, 10))
    with pytest.raises(stepwell.PathNotFoundError, match="step 3 has nothing at .late."):
        store.history("late", [3, 6])
    with pytest.raises(stepwell.PathNotFoundError, match="step 12 has nothing at .lat."):
        store.history("lat")
    with pytest.raises(stepwell.StepNotFoundError, match="no step 4; the nearest steps are 3"):
        store.history("n", [3, 4])
    with pytest.raises(stepwell.StepNotFoundError, match="no step in 20:30"):
        store.history("n", slice(20, 30))
    for wrong in ([], "3", [-1], 1.5, slice(-1, 3), slice(0, 3, 0), [None]):
        with pytest.raises(stepwell.InvalidArgumentError):
            store.history("n", wrong)


def test_deleted_and_replaced_steps_and_restarts(path):
    with stepwell.open(path) as store:
        with pytest.raises(stepwell.StepNotFoundError, match="no step yet"):
            store.history("x")
        for step in range(4):
            store.save(step, {"x": np.full(3, step)}).result()
        store.save(2, {"x": np.full(3, 20)}, if_exists="replace").result()
        store.delete(1)
        assert store.history("x", slice=0).values.tolist() == [0, 20, 3]
        with pytest.raises(stepwell.StepNotFoundError, match="no step 1"):
            store.history("x", [0, 1])
    with stepwell.open(path) as store, stepwell.open(path, "r") as reader:
        store.save(4, {"x": np.full(3, 4)}).result()
        for each in (store, reader):
            assert each.history("x", slice=0).values.tolist() == [0, 20, 3, 4]
        store.branch("other", step=2)
        with stepwell.open(path, branch="other") as branch:
            branch.save(3, {"x": np.full(3, -3)}).result()
            assert branch.history("x", slice=0).values.tolist() == [0, 20, -3]
    with pytest.raises(stepwell.Error, match="closed"):
        reader.history("x")


def test_what_differs_among_the_steps(store):
    for step, value in enumerate([np.ones(3), np.ones(3), np.ones(4), np.ones(3, np.float32), 1]):
        store.save(step, {"x": value}).result()
    with pytest.raises(stepwell.MismatchError) as info:
        store.history("x")
    text = str(info.value)
    assert "float64[3] in steps 0, 1, but" in text and "step 2: stored float64[4]" in text
    assert "step 3: stored float32[3]" in text and "step 4: stored int" in text
    assert [mismatch.path for mismatch in info.value.shape] == ["step 2"]
    assert store.history("x", [0, 1]).values.shape == (2, 3)
    assert store.history("x", [2]).values.shape == (1, 4)


def test_paths(store):
    store.save(0, {"a": {"x": 1.0}, "k/v": 2, 1: 3, "1": 4, "list": [5, 6]}).result()
    store.save(1, items={"state": {"a": {"x": 2.0}}, "a": {"y": 1}, "more": {"z": np.ones(2)}}
               ).result()
    store.save(2, np.arange(3)).result()
    assert store.history("a/x") == ((0, 1), pytest.approx([1, 2]))
    assert store.history("state/a/x").steps == store.history(("a", "x")).steps == (0, 1)
    assert store.history("a/y").steps == (1,) and store.history("more/z").values.shape == (1, 2)
    for spelled in ("k/v", r"k\/v", ("k/v",)):
        assert store.history(spelled, [0]).values.tolist() == [2]
    assert store.history((1,)).values.tolist() == [3] and store.history(("1",)).values[0] == 4
    assert store.history("list/1").values.tolist() == [6]
    assert store.history("", [2]).values.tolist() == [[0, 1, 2]]
    assert store.history(None, [2]).steps == (2,)
    with pytest.raises(stepwell.AmbiguousPathError):
        store.history("1")
    with pytest.raises(stepwell.InvalidArgumentError, match="a of step 0 is a node"):
        store.history("a", [0])
    for glob in ("a/*", "**"):
        with pytest.raises(stepwell.InvalidArgumentError, match="glob"):
            store.history(glob, [0])


def test_more_steps_than_are_open_at_one_time(store):
    for step in range(600):
        store.save(step, {"n": step, "x": np.arange(3) + step, "odd": step} if step % 2 else
                   {"n": step, "x": np.arange(3) + step})
    store.wait()
    assert store.history("n").values.tolist() == list(range(600))
    np.testing.assert_array_equal(store.history("x", slice=np.s_[::2]).values,
                                  np.arange(600)[:, None] + np.array([0, 2]))
    assert store.history("odd").steps == tuple(range(1, 600, 2))


def test_like(store):
    for step in range(3):
        store.save(step, {"x": np.arange(12, dtype=np.float32).reshape(3, 4) + step, "n": step,
                          "wide": np.arange(3.0), "far": np.array([2**40]),
                          "key": jax.random.key(step)}).result()
    wanted = store.history("x").values
    for like in (jnp.zeros((3, 4)), jax.ShapeDtypeStruct((3, 4), jnp.float32),
                 jax.sharding.SingleDeviceSharding(jax.devices()[0])):
        made = store.history("x", like=like).values
        assert isinstance(made, jax.Array) and made.dtype == jnp.float32
        np.testing.assert_array_equal(np.asarray(made), wanted)
    assert type(store.history("x", like=np.zeros((3, 4), np.float32)).values) is np.ndarray
    row = store.history("x", slice=0, like=jnp.zeros(4)).values
    assert isinstance(row, jax.Array) and row.shape == (3, 4)
    assert store.history("wide", like=jnp.zeros(3)).values.dtype == jnp.float32
    assert store.history("n", like=jnp.int32(0)).values.tolist() == [0, 1, 2]
    assert store.history("key").values.dtype == np.uint32
    for like, words in ((jnp.zeros((4, 3)), "shape"), (jnp.zeros((3, 4), jnp.int32), "dtype"),
                        (np.zeros((3, 4)), "dtype")):
        with pytest.raises(stepwell.MismatchError) as info:
            store.history("x", like=like)
        assert getattr(info.value, words) and "float32[3, 4] in each step" in str(info.value)
    with pytest.raises(stepwell.MismatchError, match="jax_enable_x64"):
        store.history("far", like=jax.ShapeDtypeStruct((1,), jnp.int32))
    with pytest.raises(stepwell.InvalidArgumentError, match="like must be an array"):
        store.history("x", like="jax")


def test_like_on_a_mesh(run_jax, path):
    status, out, err = run_jax("""
import sys, jax, numpy as np, stepwell
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
sharding = NamedSharding(mesh, P("data", "model"))
with stepwell.open(sys.argv[1]) as store:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    for step in range(3):
        store.save(step, {"x": jax.device_put(x + step, sharding)}).result()
    wanted = np.stack([x, x + 1, x + 2])
    for like in (sharding, store.load(0, "x", as_="jax"),
                 jax.ShapeDtypeStruct((8, 8), np.float32, sharding=sharding)):
        made = store.history("x", like=like).values
        assert made.sharding == NamedSharding(mesh, P(None, "data", "model")), made.sharding
        np.testing.assert_array_equal(np.asarray(made), wanted)
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


def test_random_states(store):
    random = np.random.default_rng(3)
    state: dict[str, Any] = {"w": noise(60, 70), "b": noise(400), "n": 0}
    kept = []
    for step in range(40):
        state = dict(state)
        name = random.choice(["w", "b", "n"])
        if name == "n":
            state["n"] = step
        else:
            array = state[name].copy()
            array[tuple(random.integers(0, extent) for extent in array.shape)] = step
            state[name] = array
        kept.append(state)
        store.save(step, state, chunks=stepwell.ChunkShape(4096))
    store.wait()
    for _ in range(60):
        steps = [int(step) for step in random.integers(0, 40, random.integers(1, 30))]
        name = random.choice(["w", "b", "n"])
        rank = np.ndim(kept[0][name])
        index = tuple(slice(*sorted(random.integers(0, 61, 2)), int(random.integers(1, 9)))
                      for _ in range(rank))
        found = store.history(str(name), steps, slice=index or None)
        np.testing.assert_array_equal(
            found.values, np.stack([np.asarray(kept[step][name])[index] for step in steps]))


HISTORY: list[Any] = ["history", {"path": "params/both", "steps": [3, 1], "slice": 2}]


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_steps_of_several_processes(tmp_path: pathlib.Path, disks: str) -> None:
    roots = machines(tmp_path, 0, 1) if disks == "local" else [tmp_path / "store"] * 2
    acts: list[Any] = [["open", {"disks": disks}], *[["save", {"step": n}] for n in (1, 2, 3)],
                       HISTORY, ["history", {"path": "count"}], ["history", {"path": "host"}],
                       ["history", {"path": "nothing"}],
                       ["history", {"path": "count", "steps": [9]}], HISTORY, ["close", {}]]
    for said in run(roots, acts):
        for number in (4, 9):
            steps, rows = said.gave(number)
            assert steps == [3, 1]
            np.testing.assert_array_equal(rows, [values("both", 3)[2], values("both", 1)[2]])
        assert said.gave(5) == [[1, 2, 3], [1, 2, 3]]
        assert said.gave(6) == [[1, 2, 3], [[step] * 7 for step in (1, 2, 3)]]
        assert "has nothing at" in said.lines[7]["text"]
        assert said.lines[8]["error"] == "StepNotFoundError"
    if disks == "shared":
        with stepwell.open(roots[0], "r") as store:
            np.testing.assert_array_equal(store.history("params/rows").values,
                                          np.stack([values("rows", step) for step in (1, 2, 3)]))
