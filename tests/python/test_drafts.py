# SPDX-License-Identifier: Apache-2.0
"""Stored parts in what is saved, and steps that several calls fill."""

from __future__ import annotations

import collections
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepwell
from equality import same

Point = collections.namedtuple("Point", "x y")


def odd_state():
    params = {"w": jnp.arange(6.0).reshape(2, 3), "half": jnp.ones(3, jnp.bfloat16)}
    return {"params": params, "opt": optax.adam(0.1).init(params), "point": Point(1, (2.5, None)),
            "list": [np.int8(3), "text", b"bytes", True, 2**70], "empty": {},
            "none": np.zeros((0, 3)),
            "keys": jax.random.split(jax.random.key(3), 4), "weak": jnp.asarray(1.0)}


def described(store, step):
    """All that is stored of a step's state but where."""
    tree = store[step]._source.tree
    return [(tree.components(n)[1:], r.kind, r.value_type, r.container, r.type_name, r.weak_type,
             r.prng_impl, r.sharding, r.shard_shape, r.variable_types)
            for n, r in enumerate(tree.records)]


def test_parts_of_other_steps_keep_what_they_are(store, tmp_path):
    state = odd_state()
    store.save(0, state).result()
    with stepwell.open(tmp_path / "other") as other:
        other.save(0, store[0][""]).result()
        assert described(other, 0) == described(store, 0)
        assert same(other.load(0, like=state), state)
        fresh = jax.tree.map(jnp.zeros_like, state["opt"])
        other.save(1, {**{name: store[0][(name,)] for name in state if name != "opt"},
                       "opt": fresh}).result()
        assert same(other.load(1, like=state), {**state, "opt": fresh})
        other.save(2, items={"params": store[0]["params"], "w": store[0]["params/w"]}).result()
        assert same(other.load(2, items=["params", "w"],
                               like={"params": state["params"], "w": state["params"]["w"]}),
                    {"params": state["params"], "w": state["params"]["w"]})


def test_what_only_describes_a_step_is_not_saved(store):
    store.save(0, {"w": np.arange(3)}).result()
    for described in (store.tree(0), store[0]):
        with pytest.raises(stepwell.UnsupportedLeafError, match="x: is of type stepwell"):
            store.save(1, {"x": described})


def test_sharded_arrays_keep_their_shards(run_jax, path):
    status, out, err = run_jax("""
import sys, jax, numpy as np, stepwell
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
tree = {"w": jax.device_put(np.arange(96.0, dtype=np.float32).reshape(8, 12),
                            NamedSharding(mesh, P("x", "y"))),
        "keys": jax.device_put(jax.random.split(jax.random.key(1), 8), NamedSharding(mesh, P("x")))}
with stepwell.open(sys.argv[1]) as store:
    store.save(0, tree).result()
    store.save(1, {"moved": store[0][""]}).result()
    for name in tree:
        got = store.load(1, as_="jax")["moved"][name]
        assert got.sharding == tree[name].sharding and (got == tree[name]).all()
    assert store[1]["moved/w"].shard_shape == (2, 6)
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


def test_a_draft_becomes_one_step(store):
    state = odd_state()
    with store.draft(5) as draft:
        for name, part in state.items():
            draft.add({name: part})
        assert draft.parts == len(state) and store.steps() == []
    assert store.steps() == [5] and same(store.load(5, like=state), state)
    assert not os.listdir(os.path.join(store.path, "drafts"))
    draft = store.draft(6)
    draft.add({"params": {"w": state["params"]["w"]}}, items={"data": {"n": 1}})
    draft.add({"params": {"half": state["params"]["half"]}})
    assert draft.finalize(metrics={"loss": 0.5}) == 6
    assert store[6].items == ["data", "state"] and store[6].metrics == {"loss": 0.5}
    assert same(store.load(6, "state/params", like=state["params"]), state["params"])
    for call in (lambda: draft.add({"x": 1}), draft.finalize):
        with pytest.raises(stepwell.Error, match="is finished"):
            call()


def test_parts_that_overlap_are_refused(store):
    with store.draft(0) as draft:
        draft.add({"a": {"b": 1}, "list": [1, 2], "leaf": 3}).result()
        for part, why in (({"a": {"b": 2}}, "'state/a/b' already"),
                          ({"a": 2}, "'state/a' already"), ({"list": [1]}, "'state/list' already"),
                          ({"leaf": {"below": 1}}, "'state/leaf' already")):
            with pytest.raises(stepwell.InvalidArgumentError, match=why):
                draft.add(part)
        draft.add({"a": {"c": 2}})
    assert store.load(0) == {"a": {"b": 1, "c": 2}, "list": [1, 2], "leaf": 3}


def test_a_draft_that_is_left_can_be_gone_on_with(store, path):
    with pytest.raises(ZeroDivisionError), store.draft(1) as draft:
        draft.add({"a": np.arange(3)})
        raise ZeroDivisionError
    assert store.steps() == []
    draft = store.draft(1)
    assert draft.parts == 1
    with pytest.raises(stepwell.InvalidArgumentError, match="'state/a' already"):
        draft.add({"a": 1})
    draft.add({"b": 2})
    draft.finalize()
    assert same(store.load(1), {"a": np.arange(3), "b": 2})
    draft = store.draft(1)
    draft.add({"c": 3})
    with pytest.raises(stepwell.StepExistsError):
        draft.finalize()
    assert draft.finalize(if_exists="replace") == 1 and store.load(1) == {"c": 3}
    with pytest.raises(stepwell.InvalidArgumentError, match="is empty"):
        store.draft(2).finalize()
    gone = store.draft(3)
    gone.add({"x": 1})
    gone.discard()
    assert store.draft(3).parts == 0


def test_a_draft_survives_a_killed_process(path, start_python):
    process = start_python("""
import sys, time, numpy as np, stepwell
store = stepwell.open(sys.argv[1])
draft = store.draft(9)
for i in range(4):
    draft.add({f"layer_{i}": np.full(1000, i)}).result()
print("added", flush=True)
time.sleep(600)
""", path)
    assert process.stdout.readline() == "added\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with stepwell.open(path) as store:
        assert store.steps() == []
        with store.draft(9) as draft:
            assert draft.parts == 4
            draft.add({"layer_4": np.full(1000, 4)})
        assert same(store.load(9), {f"layer_{i}": np.full(1000, i) for i in range(5)})


KILLED_BEHIND_THE_COMMIT = """
import os, signal, sys, numpy as np, stepwell
from stepwell._draft import Draft

Draft.discard = lambda self: os.kill(os.getpid(), signal.SIGKILL)
with stepwell.open(sys.argv[1]) as store:
    with store.draft(7) as draft:
        draft.add({"a": np.arange(4)}).result()
"""


def test_a_draft_whose_step_was_committed_goes_with_the_next_open(path, start_python):
    child = start_python(KILLED_BEHIND_THE_COMMIT, path)
    assert child.wait(60) == -signal.SIGKILL
    assert os.listdir(path / "drafts") == ["7"]
    with stepwell.open(path) as store:
        assert same(store.load(7), {"a": np.arange(4)})
        assert os.listdir(path / "drafts") == []


def test_a_draft_whose_step_was_not_saved_stays(path):
    with stepwell.open(path) as store:
        store.save(7, {"old": 1}).result()
        draft = store.draft(7)
        draft.add({"a": np.arange(4)}).result()
        with pytest.raises(stepwell.StepExistsError):
            draft.finalize()
        draft.close()
    # Pretends that the process died within finalize, before the commit.
    (path / "drafts" / "7" / "FINALIZING").write_text('{"after": 1000}')
    with stepwell.open(path) as store:
        assert os.listdir(path / "drafts") == ["7"]
        with store.draft(7) as draft:
            draft.finalize(if_exists="replace")
        assert same(store.load(7), {"a": np.arange(4)})


@pytest.mark.parametrize("name", ["branches", "branches/x", "drafts", "drafts/7"])
def test_links_in_their_places_are_refused(path, tmp_path, name):
    victim = tmp_path / "victim"
    victim.mkdir()
    with stepwell.open(path) as store:
        store.save(1, {"w": np.arange(3)}).result()
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).symlink_to(victim)
        with pytest.raises(stepwell.Error, match="is a symbolic link"):
            store.branch("x") if name.startswith("branches") else store.draft(7)
    stepwell.open(path).close()
    if name.startswith("branches"):
        with pytest.raises(stepwell.Error, match="is a symbolic link"):
            stepwell.open(path, branch="x")
    assert os.listdir(victim) == []
