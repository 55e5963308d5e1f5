# SPDX-License-Identifier: Apache-2.0
"""Mistakes that are easily made, and what the error says of them."""

from __future__ import annotations

import errno
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

import stepwell
from stepwell import _stepwell
from stepwell.compat import flax, orbax_v1
from stepwell.compat import orbax as orbax_v0


def make_state():
    return {"params": np.ones(3), "apply": len}


FUNCTIONS = [make_state, jax.jit(make_state), lambda: 1]


@pytest.mark.parametrize("function", FUNCTIONS, ids=["def", "jit", "lambda"])
def test_a_function_in_place_of_a_tree(store, function):
    for name, call in (
        ("the state", lambda: store.save(1, function)),
        ("item 'params'", lambda: store.save(1, items={"params": function})),
        ("init", lambda: store.load_or(function)),  # before there is a step, too
    ):
        with pytest.raises(stepwell.InvalidArgumentError,
                           match=f"{name} is the function .*: call it?"):
            call()
    store.save(1, make_state()).result()
    for call in (lambda: store.load(1, like=function), lambda: store.load_or(function)):
        with pytest.raises(stepwell.InvalidArgumentError, match="is the function .*: call it?"):
            call()
    with pytest.raises(stepwell.MismatchError, match="params: stored .*: call it?"):
        store.load(1, like={"params": function})


def test_a_step_that_is_still_being_saved(store, monkeypatch):
    with pytest.raises(stepwell.StepNotFoundError, match="has no step yet$"):
        store.load()
    monkeypatch.setattr(store._pending, "steps", lambda: [3])  # as of a slow disk
    with pytest.raises(stepwell.StepNotFoundError, match="yet; step 3 is being saved: wait"):
        store.load()
    for read in (store.load, store.tree, store.__getitem__):
        with pytest.raises(stepwell.StepNotFoundError, match="; step 3 is being saved: wait"):
            read(3)
        with pytest.raises(stepwell.StepNotFoundError, match="has no steps$"):
            read(4)


def test_a_mutable_array_is_saved_by_its_value(store):
    ref = jax.new_ref(jnp.ones(2))
    with pytest.raises(stepwell.UnsupportedLeafError, match="w: is a jax.Ref: save its value, ref"):
        store.save(0, {"w": ref})
    store.save(0, {"w": ref[...]}).result()


def test_a_step_of_which_nothing_was_saved(store):
    store._put(1, {"state": len}).result()  # save() itself refuses this
    assert store.load(1) == {}
    assert store.load(1, like={}) == {}


def test_arguments_in_the_wrong_order(store):
    state = {"w": np.arange(10_000)}
    store.save(1, state).result()
    for call in (lambda: store.save(state, 1), lambda: store.load(state, 1),
                 lambda: store.delete(state["w"][None])):
        with pytest.raises(stepwell.InvalidArgumentError,
                           match=r"must be an int, not an? (dict|array int64\[.*\])") as info:
            call()
        assert "the step comes first: save(step, state)" in str(info.value)
        assert len(str(info.value)) < 200
    with pytest.raises(stepwell.InvalidArgumentError, match="a step must be an int, not True"):
        store.save(True, state)
    with pytest.raises(stepwell.InvalidArgumentError, match="; pass a tree to load into as like="):
        store.load(1, state)
    with pytest.raises(stepwell.InvalidArgumentError, match="items must be a dict .*, not a list"):
        store.save(2, items=[("a", 1)])


@pytest.mark.parametrize("step", ["latest", -1])
def test_the_newest_step_has_no_other_name(store, step):
    with pytest.raises(stepwell.InvalidArgumentError,
                       match="a step must be .*; load.. loads the newest step, and store.latest"):
        store.load(step)


@pytest.mark.parametrize(("metrics", "why"), [
    ({"a": {"b": [1, object()]}}, r"metrics\['a'\]\['b'\]\[1\] is an object"),
    ({"ok": 1, "a": np.ones(2)}, r"metrics\['a'\] is an array float64\[2\]; pass its .tolist\(\)"),
    ({"a": {("x", 1): 2}}, r"metrics\['a'\] has the key \('x', 1\); keys must be str"),
])
def test_what_is_not_json_is_named(store, metrics, why):
    with pytest.raises(stepwell.InvalidArgumentError, match=f"metrics is not JSON: {why}"):
        store.save(1, 1, metrics=metrics)


@pytest.mark.parametrize(("stored", "like"), [
    (np.ones(3), jnp.ones(3, jnp.bfloat16)), (np.ones(3), np.ones(3, np.float32)),
    (np.float32(1), np.int8(0)), (jnp.float32(1), 0)], ids=str)
def test_dtypes_that_differ_name_cast(store, stored, like):
    store.save(1, {"x": stored, "y": 1}).result()
    with pytest.raises(stepwell.MismatchError, match="cast=True converts dtypes"):
        store.load(1, like={"x": like, "y": 1})
    store.load(1, like={"x": like, "y": 1}, cast=True)
    with pytest.raises(stepwell.MismatchError) as info:
        store.load(1, like={"x": np.ones(4), "y": "1"})
    assert "cast" not in str(info.value)


def test_thousands_of_mismatches(store):
    count = 4000
    store.save(1, {f"layer_{i}": 1 for i in range(count)}).result()
    with pytest.raises(stepwell.MismatchError) as info:
        store.load(1, like={f"block_{i}": 1 for i in range(count)})
    assert len(info.value.mismatches) == 2 * count
    assert len(info.value.missing) == len(info.value.unexpected) == count
    lines = str(info.value).splitlines()
    assert len(lines) == 23
    assert lines[1] == "  block_0: missing in the store, wanted int"
    assert lines[-2] == "  … and 7,980 more, in the exception's `mismatches`"
    assert lines[-1].startswith('missing="target" takes what is not stored from `like`; unexpected')
    with pytest.raises(stepwell.UnsupportedLeafError) as info:
        store.save(2, [object()] * count)
    assert len(info.value.paths) == count and len(str(info.value).splitlines()) == 22


def test_only_the_mismatches_shown_look_for_nearest_names(store, monkeypatch):
    calls = []
    find = _stepwell.StepTree.nearest

    def counted(tree, number, name, taken):
        calls.append(name)
        return find(tree, number, name, taken)

    monkeypatch.setattr(_stepwell.StepTree, "nearest", counted)
    store.save(1, {f"layer_{i}": 1 for i in range(100)}).result()
    with pytest.raises(stepwell.MismatchError):
        store.load(1, like={f"lair_{i}": 1 for i in range(100)})
    assert len(calls) == 20


def test_the_nearest_name_is_one_that_like_lacks(store):
    store.save(1, {"kernel_0": 1, "kernel_1": 1, "encoder": {"w": 1, "b": 2}}).result()
    with pytest.raises(stepwell.MismatchError) as info:
        store.load(1, like={"kernel_0": 1, "kernel_2": 1, "encodr": {"w": 1, "b": 2}})
    messages = {m.path: m.message for m in info.value.mismatches}
    assert messages["kernel_2"].endswith("(nearest: 'kernel_1')")
    assert messages["encodr/w"].endswith("(nearest: 'encoder')")


def test_a_store_that_this_process_has_open(store, path):
    with pytest.raises(stepwell.LockedError, match="this one.*, which has it open already: use "):
        stepwell.open(path)


def test_a_full_disk_says_what_to_do():
    error = stepwell.NoSpaceError("write: No space left on device")
    assert str(error) == "write: No space left on device"
    error.errno = errno.ENOSPC
    for word in ("store.delete(", "stepwell rm", "keep=", "reclaim()"):
        assert word in str(error)


def test_urls_that_obstore_would_open(store, monkeypatch):
    store.save(1, 1).result()
    for name in ("obstore", "obstore.store", "s3fs", "boto3"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    with pytest.raises(stepwell.Error, match="pip install 'obstore>="):
        store.push(1, "s3://bucket/run")


@pytest.mark.parametrize("url", ["s3:/user:pw@bucket/run", pathlib.Path("s3://user:pw@bucket/run"),
                                 "file:/tmp/bucket/run"], ids=str)
def test_a_url_with_one_slash(store, tmp_path, monkeypatch, url):
    store.save(1, {"w": np.zeros(1)}).result()
    monkeypatch.chdir(tmp_path)
    before = os.listdir(tmp_path)
    for call in (lambda: store.push(1, url), lambda: store.push(1, url, layout="stepwell"),
                 lambda: store.pull(url), lambda: store.push_following(url),
                 lambda: stepwell.open(url, mode="r"), lambda: stepwell.pushed_steps(url),
                 lambda: stepwell.delete_pushed(url, 1)):
        with pytest.raises(stepwell.InvalidArgumentError,
                           match="'(s3://|file:///).*bucket/run' was given with too few slashes"
                           ) as caught:
            call()
        assert "pw" not in str(caught.value)
    assert os.listdir(tmp_path) == before


def test_a_layout_that_push_does_not_have(store, tmp_path):
    store.save(1, {"w": np.zeros(1)}).result()
    with pytest.raises(stepwell.InvalidArgumentError,
                       match="layout is one of v0, v1, stepwell, not 'v2'"):
        store.push(1, tmp_path / "bucket", layout="v2")


def test_changing_a_pushed_run_where_it_lies(store, tmp_path):
    store.save(1, {"w": np.zeros(1)}).result()
    store.push(1, tmp_path / "bucket", layout="stepwell")
    with stepwell.open(f"file://{tmp_path}/bucket", mode="r") as run:
        for change in (lambda: run.taint(1, "bad"), lambda: run.untaint(1), lambda: run.pin(1),
                       lambda: run.rollback(1), lambda: run.delete(1),
                       lambda: run.save(2, {"w": np.zeros(1)})):
            with pytest.raises(stepwell.PermissionDeniedError,
                               match="is a pushed run, which is only read: change the step in the "
                                     "store that it was pushed from, and push it again"):
                change()


@pytest.mark.parametrize("url", ["gs://bucket/run", "s3://bucket/run", pathlib.Path("gs://b/run"),
                                 epath.Path("gs://bucket/run"), "file:///run"], ids=str)
def test_a_url_where_a_local_path_is_meant(store, tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    state = {"w": np.ones(2)}
    with pytest.raises(stepwell.InvalidArgumentError, match="is a URL"):
        store.load_or(state, source=url)
    store.save(1, state).result()
    calls = [
        lambda: stepwell.open(url), lambda: store.export(1, url), lambda: store.orbax_view(url),
        lambda: store.import_checkpoint(url, step=2),
        lambda: store[1].write_files("state", url),
        lambda: orbax_v1.save(url, state), lambda: orbax_v1.load(url),
        lambda: orbax_v1.save_async(url, state), lambda: orbax_v1.training.Checkpointer(url),
        lambda: orbax_v0.CheckpointManager(url),
        lambda: orbax_v0.StandardCheckpointer().save(url, state),
        lambda: orbax_v0.PyTreeCheckpointer().save(url, state),
        lambda: orbax_v0.PyTreeCheckpointer().restore(url),
        lambda: flax.save_checkpoint(url, state, 1), lambda: flax.restore_checkpoint(url, None),
    ]
    before = sorted(os.listdir())
    for i, call in enumerate(calls):
        with pytest.raises(stepwell.InvalidArgumentError, match="is a URL"):
            call()
            pytest.fail(f"call {i} took it for a path")
    assert sorted(os.listdir()) == before
