# SPDX-License-Identifier: Apache-2.0
"""Store.update: a tree in memory, brought from one step to another."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stepwell
from equality import bits, same
from group_runs import run
from group_values import LEAVES
from test_leaves import DTYPES, sample

MIB = 1 << 20


def bytes_read(store: stepwell.Store) -> int:
    return store.stats()["last_load"]["bytes_read"]


def mutate(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """A little of it changed, or all, or nothing."""
    share = rng.choice([0.0, 0.01, 1.0], p=[0.4, 0.4, 0.2])
    changed = rng.random(array.shape) < share
    other = rng.permutation(sample(array.dtype, (max(array.size, 1),)))[:array.size]
    return np.where(changed, other.reshape(array.shape), array).astype(array.dtype)


class Run:
    """Steps of random states."""

    def __init__(self, path: Path, **options: Any) -> None:
        rng = np.random.default_rng(0)
        self.steps: list[dict[str, Any]] = []
        arrays = {str(dtype): sample(dtype, (37, 61)) for dtype in DTYPES}
        arrays |= {"scalar": np.float32(1.5), "0-d": np.array(3, np.int64),
                   "empty": np.zeros((0, 3)),
                   "large": rng.standard_normal((600, 1000)).astype(np.float32),
                   "column": np.asfortranarray(rng.standard_normal((300, 400)))}
        self.store = stepwell.open(path, **options)
        for step in range(8):
            state = {"arrays": {name: mutate(rng, np.asarray(array)) if name != "scalar"
                                else np.float32(step // 3) for name, array in arrays.items()},
                     "values": {"int": step // 2, "text": "abc" * (step // 4), "none": None,
                                "long": bytes(5000) + bytes([step // 3])}}
            arrays = state["arrays"]
            self.store.save(step, state).result()
            self.steps.append(copy.deepcopy(state))


@pytest.fixture(scope="module", params=[{"delta": True}, {"delta": True, "codec": "blosc"}, {},
                                        {"codec": "raw"}], ids=str)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Run(tmp_path_factory.mktemp("run") / "store", **request.param)
    yield made
    made.store.close()


@pytest.mark.parametrize("since, to", [(0, 1), (0, 7), (3, 4), (6, None), (7, 0), (5, 2), (4, 4)])
def test_random_histories(history: Run, since: int, to: int | None) -> None:
    tree = copy.deepcopy(history.steps[since])
    leaves = dict(tree["arrays"])
    updated = history.store.update(tree, since, to)
    wanted = history.steps[7 if to is None else to]
    assert same(updated, wanted)
    for name, leaf in updated["arrays"].items():
        assert leaf is leaves[name] or not isinstance(leaf, np.ndarray)
        if leaf.ndim == 2 and isinstance(leaf, np.ndarray):
            assert leaf.strides == leaves[name].strides
    again = history.store.update(updated, 7 if to is None else to, since)
    assert same(again, history.steps[since])


def test_as_jax_arrays(history: Run) -> None:
    names = [name for name, leaf in history.steps[0]["arrays"].items()
             if jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype]
    for since, to in ((0, 3), (6, 7), (7, 1)):
        tree = {name: jnp.asarray(history.steps[since]["arrays"][name]) for name in names}
        like = {name: tree.get(name, ...) for name in history.steps[0]["arrays"]}
        updated = history.store.update(like, since, to, path="arrays")
        for name in names:
            before, wanted = (history.steps[step]["arrays"][name] for step in (since, to))
            assert bits(np.asarray(updated[name])) == bits(np.asarray(jnp.asarray(wanted)))
            if bits(before) == bits(wanted):
                assert updated[name] is tree[name]
            assert bits(tree[name]) == bits(jnp.asarray(before))  # jax arrays never change


def test_only_what_differs_is_read(path: Path) -> None:
    rng = np.random.default_rng(0)
    state = {name: rng.integers(0, 256, 4 * MIB, np.uint8) for name in "abcd"}
    with stepwell.open(path, codec="raw") as store:
        store.save(0, state).result()
        after = {**state, "b": state["b"].copy()}
        after["b"][MIB + 7] ^= 1
        store.save(1, after).result()
        tree = copy.deepcopy(state)
        assert same(store.update(tree, 0), after)
        assert MIB <= bytes_read(store) <= MIB + 2 * 4096
        assert store.stats()["last_load"]["chunks"] == 1
        assert store.update(tree, 1) is tree


def test_of_differences_only_those_behind_the_step_are_read(path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 256, 1024)).astype(np.float32)
    with stepwell.open(path, codec="raw", delta=True) as store:
        for step in range(6):
            store.save(step, {"w": weights.copy()}).result()
            weights.view(np.int32)[:, rng.integers(0, 256, 20), rng.integers(0, 1024, 20)] += 1
        tree = store.load(2)
        wanted = store.load(5)
        whole = bytes_read(store)
        assert same(store.update(tree, 2), wanted)
        assert 0 < bytes_read(store) < whole / 20
        same_way = bytes_read(store)
        assert same(store.update(tree, 5, to=2), store.load(2))  # back: whole chunks
        assert bytes_read(store) > same_way


def test_a_tree_that_does_not_hold_the_step_is_refused(history: Run) -> None:
    refused = set()
    for since, to in ((1, 0), (2, 4), (3, 1), (7, 4)):
        for name, array in history.steps[since]["arrays"].items():
            one, other = (np.asarray(history.steps[step]["arrays"][name]) for step in (since, to))
            if array.ndim < 2 or one.tobytes() == other.tobytes():
                continue
            wrong = copy.deepcopy(history.steps[since])
            wrong["arrays"][name][:] = other
            kept = copy.deepcopy(wrong)
            with pytest.raises(stepwell.InvalidArgumentError) as info:
                history.store.update(wrong, since, to)
            assert f"arrays/{name} does not hold step {since}: load step {to}" in str(info.value)
            assert same(wrong, kept)
            refused.add(name)
    assert len(refused) > len(DTYPES)


def test_damage_leaves_the_tree_as_it_was(path: Path) -> None:
    rng = np.random.default_rng(0)
    state = {name: rng.standard_normal((3, 256, 1024)).astype(np.float32) for name in "abc"}
    states = []
    with stepwell.open(path, codec="raw", delta=True) as store:
        for step in range(4):
            store.save(step, state).result()
            states.append(copy.deepcopy(state))
            for leaf in state.values():
                leaf.view(np.int32)[:, step::50] += 1
    (segment,) = [each for each in (path / "segments").iterdir() if each.suffix == ".seg"]
    intact = segment.read_bytes()
    damaged = 0
    for at in range(0, len(intact), 150_001):
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(bytes([intact[at] ^ 4]))
        for since, to in ((0, 3), (2, 3), (3, 1)):
            tree = copy.deepcopy(states[since])
            arrays = dict(tree)
            with stepwell.open(path, mode="r") as store:
                try:
                    updated = store.update(tree, since, to)
                except stepwell.CorruptionError as error:
                    damaged += 1
                    assert ".seg" in str(error)
                    assert same(tree, states[since])
                else:
                    assert same(updated, states[to])
                assert all(tree[name] is array for name, array in arrays.items())
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(intact[at:at + 1])
    assert damaged > 3


def test_steps_that_are_gone(path: Path) -> None:
    with stepwell.open(path, keep=stepwell.policy.LatestN(2)) as store:
        for step in range(4):
            store.save(step, {"w": np.full(5, step)}).result()
        tree = {"w": np.full(5, 0)}
        with pytest.raises(stepwell.StepNotFoundError, match="no step 0.*load a step"):
            store.update(tree, 0)
        with pytest.raises(stepwell.StepNotFoundError, match="no step 1"):
            store.update(tree, 2, to=1)
        assert tree["w"].tolist() == [0] * 5
        store.save(3, {"w": np.full(5, 30)}, if_exists="replace").result()
        with pytest.raises(stepwell.InvalidArgumentError, match="'?w.* does not hold step 3"):
            store.update({"w": np.full(5, 3)}, 3, to=2)
        store.delete([2, 3])
        with pytest.raises(stepwell.StepNotFoundError):
            store.update(tree, 2)


def test_other_leaves(path: Path) -> None:
    first = {"a": np.zeros(3), "b": np.zeros(4)}
    with stepwell.open(path) as store:
        for step, state in enumerate([
                first, {**first, "c": np.ones(1)}, {"a": np.ones(3)},
                {**first, "b": np.zeros((2, 2))}, {**first, "b": np.zeros(4, np.float32)},
                {**first, "b": 3}, {"a": np.ones(3), "b": np.zeros(4)}]):
            store.save(step, state).result()
        tree = copy.deepcopy(first)
        for to, kind, said in ((1, "unexpected", "c: only step 1 has it"),
                               (2, "missing", "b: only step 0 has it"),
                               (3, "shape", r"b: float64\[4\] in step 0, float64\[2, 2\] in"),
                               (4, "dtype", "b: float64.* in step 0, float32.* in step 4"),
                               (5, "dtype", "b: .*int.* in step 5")):
            with pytest.raises(stepwell.MismatchError, match=said) as info:
                store.update(tree, 0, to)
            assert len(getattr(info.value, kind)) == 1
            assert f"load step {to}" in str(info.value)
        for wrong in ({"a": np.zeros(3)}, {**first, "c": 1}, {**first, "b": np.zeros(5)}):
            with pytest.raises(stepwell.MismatchError, match="does not hold step 0"):
                store.update(wrong, 0)
        with pytest.raises(stepwell.InvalidArgumentError, match="'a' of the tree has no value"):
            store.update({**first, "a": jax.ShapeDtypeStruct((3,), np.float64)}, 0)
        with pytest.raises(stepwell.InvalidArgumentError, match="glob"):
            store.update({"a": tree["a"]}, 0, path="*")
        assert same(tree, first)
        assert same(store.update(tree, 0), {"a": np.ones(3), "b": np.zeros(4)})


def test_arrays_that_cannot_be_written(path: Path) -> None:
    with stepwell.open(path) as store:
        for step in range(2):
            store.save(step, {"a": np.full(4, step), "b": np.full(4, step), "c": np.ones(2)}
                       ).result()
        both = np.zeros(4, int)
        with pytest.raises(stepwell.InvalidArgumentError, match="'a' and 'b' share memory"):
            store.update({"a": both, "b": both, "c": np.ones(2)}, 0)
        donated = jnp.ones(2)
        donated.delete()
        with pytest.raises(stepwell.InvalidArgumentError, match="'c' of the tree has no value"):
            store.update({"a": both, "b": both.copy(), "c": donated}, 0)
        fixed = np.zeros(4, int)
        fixed.flags.writeable = False
        with pytest.raises(stepwell.InvalidArgumentError, match="'b' is read-only"):
            store.update({"a": both, "b": fixed, "c": np.ones(2)}, 0)
        assert both.tolist() == [0] * 4
        grid = np.zeros((4, 2), int)  # columns of one array do not overlap
        unwritten = np.ones(2)
        unwritten.flags.writeable = False
        tree = store.update({"a": grid[:, 0], "b": grid[::-1, 1], "c": unwritten}, 0)
        assert grid.tolist() == [[1, 1]] * 4 and tree["c"] is unwritten



def test_memory_of_other_orders(path: Path) -> None:
    rng = np.random.default_rng(0)
    states = [rng.integers(0, 9, (50, 40)).astype(np.int64) for _ in range(2)]
    with stepwell.open(path) as store:
        for step, state in enumerate(states):
            store.save(step, {"x": state}).result()
        for make in (np.asfortranarray, lambda x: x[::-1].copy()[::-1],
                     lambda x: np.repeat(x, 2, axis=1)[:, ::2], lambda x: x.astype(">i8")):
            leaf = make(states[0])
            assert store.update({"x": leaf}, 0)["x"] is leaf
            np.testing.assert_array_equal(leaf, states[1])


def test_keys_weak_types_values_and_objects(path: Path) -> None:
    def state(n: int) -> dict[str, Any]:
        generator = np.random.default_rng(n)
        return {"key": jax.random.key(n), "keys": jax.random.split(jax.random.key(n), 3),
                "weak": jnp.asarray(float(n)) * 1.0, "old": jax.random.key(7, impl="rbg"),
                "step": n, "name": f"run {n}", "rate": n / 3, "flag": n > 0,
                "generator": generator, "numpy": np.float32(n), "where": (1, [n, None])}

    with stepwell.open(path) as store:
        for step in range(2):
            store.save(step, state(step)).result()
        tree = state(0)
        updated = store.update(tree, 0)
        wanted = state(1)
        assert updated["generator"] is tree["generator"]
        assert updated["generator"].random() == wanted["generator"].random()
        assert updated["old"] is tree["old"]
        for each in (updated, wanted):
            del each["generator"]
        assert same(updated, wanted)


def test_sharded_arrays_keep_their_shardings(run_jax: Any, path: Path) -> None:
    status, out, err = run_jax(f"support = {str(Path(__file__).parent / 'support')!r}" + """
import sys, jax, ml_dtypes, numpy as np, stepwell
sys.path.insert(0, support)
from equality import same
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
rng = np.random.default_rng(0)
first = {name: rng.standard_normal((512, 1024)).astype(ml_dtypes.bfloat16) for name in "abc"}
specs = {"a": P("x", "y"), "b": P(None, "y"), "c": P()}
second = {name: leaf.copy() for name, leaf in first.items()}
second["a"].view(np.int16)[3::100] += 1
second["b"].view(np.int16)[-1, -1] += 1
third = {name: (leaf * 3).astype(leaf.dtype) for name, leaf in first.items()}

def put(tree, specs):
    tree = {name: jax.device_put(leaf, NamedSharding(mesh, specs[name]))
            for name, leaf in tree.items()}
    keys = jax.device_put(jax.random.split(jax.random.key(len(specs)), 8),
                          NamedSharding(mesh, P("x")))
    return {**tree, "keys": keys}

with stepwell.open(sys.argv[1], delta=True) as store:
    for step, each in enumerate((first, second, third)):
        store.save(step, put(each, specs)).result()
    # On another mesh no device has whole chunks.
    for others in (specs, {"a": P("y", None), "b": P("x"), "c": P("y", "x")}):
        tree = put(first, others)
        updated = store.update(tree, 0, 1)
        assert updated["c"] is tree["c"] and updated["keys"] is tree["keys"]
        assert same(updated, put(second, others))
        assert same(tree, put(first, others))
        assert same(store.update(updated, 1), put(third, others))
        assert same(store.update(updated, 1, 0), tree)
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


def test_steps_with_other_chunks(path: Path) -> None:
    rng = np.random.default_rng(0)
    states = [{"x": rng.standard_normal((64, 1024)).astype(np.float32)} for _ in range(2)]
    with stepwell.open(path) as store:
        for step, state in enumerate(states):
            store.save(step, state, chunks=stepwell.ChunkShape(8192 << step)).result()
        assert same(store.update(copy.deepcopy(states[0]), 0), states[1])


def test_items_and_parts(path: Path) -> None:
    with stepwell.open(path) as store:
        for step in range(2):
            store.save(step, items={"params": {"w": np.full(9, step)}, "rest": {"n": step}}
                       ).result()
        tree = store.load(0)
        assert same(store.update(tree, 0), store.load(1))
        part = store.load(0, "params")
        assert store.update(part, 0, path="params")["w"] is part["w"]
        assert part["w"].tolist() == [1] * 9
        leaf = store.load(0, "params/w")
        assert store.update(leaf, 0, path="params/w") is leaf and leaf.tolist() == [1] * 9
        with pytest.raises(stepwell.PathNotFoundError):
            store.update(part, 0, path="nothing")


def test_after_reclaim(path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((256, 1024)).astype(np.float32)
    with stepwell.open(path, codec="raw", delta=True) as store:
        for step in range(12):
            store.save(step, {"w": weights.copy(), "noise": rng.bytes(MIB)}).result()
            weights.view(np.int32)[step::40] += 1
        tree = store.load(9)
        store.delete(list(range(9)))
        store.reclaim()
        assert same(store.update(tree, 9), store.load(11))


def test_closed(path: Path) -> None:
    with stepwell.open(path) as store:
        store.save(0, {"w": np.zeros(3)}).result()
    with pytest.raises(stepwell.Error, match="closed"):
        store.update({"w": np.zeros(3)}, 0)


TRAINER = """
import sys, numpy as np, stepwell
rng = np.random.default_rng(0)
state = {"w": rng.standard_normal((512, 512)).astype(np.float32), "n": 0}
with stepwell.open(sys.argv[1], delta=True, keep=stepwell.policy.LatestN(3)) as store:
    for step in range(40):
        state["n"] = step
        state["w"].view(np.int32)[step::40] += 1
        store.save(step, state).result()
        if step == 0:
            print("ready", flush=True)
            sys.stdin.readline()
"""


def test_beside_a_trainer(path: Path) -> None:
    """Each state that a follower has is a step, whatever goes meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", TRAINER, str(path)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        wanted = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
        wanted.view(np.int32)[0::40] += 1
        done, updates = 0, 0
        with stepwell.open(path, mode="r") as store:
            follower = store.follow(timeout=300)
            held = next(follower)
            state = store.load(held)
            process.stdin.write("go\n")
            process.stdin.flush()
            for step in follower:
                try:
                    state = store.update(state, held, step)
                    updates += 1
                except stepwell.StepNotFoundError:
                    try:
                        state = store.load(step)
                    except stepwell.StepNotFoundError:
                        continue
                held = step
                for each in range(done + 1, step + 1):
                    wanted.view(np.int32)[each::40] += 1
                done = step
                assert state["n"] == step
                np.testing.assert_array_equal(state["w"], wanted)
                if step == 39:
                    break
        assert updates > 0
    finally:
        process.kill()
        process.communicate()


def test_a_step_that_was_saved_anew_is_not_the_one_that_was_followed(path: Path) -> None:
    """Leaves that only the first of the two commits changed are not what the tree has."""
    def state(w: int, v: int) -> dict[str, Any]:
        return {"w": np.full(5000, w), "v": np.full(5000, v)}

    with stepwell.open(path) as store:
        store.save(7, state(1, 1)).result()
        follower = store.follow()
        held = next(follower)
        tree = store.load(held)
        store.save(7, state(2, 1), if_exists="replace").result()
        with pytest.raises(stepwell.StepNotFoundError, match="step 7 was saved anew.*load a step"):
            store.update(tree, held, 7)
        store.save(8, state(2, 3)).result()
        step = next(follower)
        with pytest.raises(stepwell.StepNotFoundError, match="step 7 was saved anew"):
            store.update(tree, held, step)
        assert same(tree, state(1, 1))
        assert next(store.follow(start=held)) == 8
        tree = store.load(step)
        store.save(9, state(2, 4)).result()
        assert same(store.update(tree, step), state(2, 4))
        store.rollback(8)
        assert list(store.follow(start=step, timeout=0)) == []
        store.save(8, state(5, 5), if_exists="replace").result()
        assert list(store.follow(start=step, timeout=0)) == [8]
        tree, step = store.load(8), store[8].step
        store.save(8, state(6, 5), if_exists="replace").result()
        with pytest.raises(stepwell.StepNotFoundError, match="step 8 was saved anew"):
            store.update(tree, pickle.loads(pickle.dumps(step)), 8)
        assert store.update(tree, 8, 8) is tree  # a plain int knows no better


def test_a_step_of_several_processes(tmp_path: Path) -> None:
    """Shards of a prime length have chunk grids of their own."""
    path = tmp_path / "store"
    every = {str(process): [*LEAVES, "prime", "sparse"] for process in range(2)}
    for said in run(path, [["open", {"delta": True}],
                           *[["save", {"step": step, "content": step, "leaves": every}]
                             for step in (1, 2, 3)], ["close", {}]]):
        assert [line for line in said.lines if line.get("error")] == []
    with stepwell.open(path, mode="r") as store:
        assert list(store.follow(timeout=0)) == [3]
        for since, to in ((1, 3), (2, 3), (3, 1)):
            tree = store.load(since)
            arrays = tree["params"].copy()
            assert same(store.update(tree, since, to), store.load(to))
            assert all(tree["params"][name] is array for name, array in arrays.items())
        tree = store.load(1)
        tree["params"]["prime"][-1] += 1
        with pytest.raises(stepwell.InvalidArgumentError, match="prime does not hold step 1"):
            store.update(tree, 1)
