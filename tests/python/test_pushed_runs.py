# SPDX-License-Identifier: Apache-2.0
"""Runs in object stores: each push sends what the place lacks, each pull fetches what the store
lacks."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import obstore.store
import pytest
import stepwell
from stepwell._remote import object_store
from transfers import Faulty, bucket, other, places

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Pair(NamedTuple):
    first: Any
    second: Any


def exactly(one: Any, two: Any) -> None:
    """Compares types and bits."""
    if isinstance(one, jax.Array) and jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        assert jax.random.key_impl(one) == jax.random.key_impl(two)
        one, two = jax.random.key_data(one), jax.random.key_data(two)
    if isinstance(one, (np.ndarray, jax.Array)):
        left, right = np.asarray(one), np.asarray(two)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()
    elif isinstance(one, dict):
        assert type(one) is type(two) and one.keys() == two.keys()
        for key in one:
            exactly(one[key], two[key])
    elif isinstance(one, (list, tuple)):
        assert type(one).__name__ == type(two).__name__ and len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            exactly(left, right)
    else:
        assert type(one) is type(two) and one == two


def lora(step: int, megabytes: int) -> dict[str, Any]:
    """A base, and an adapter of a hundredth of it that changes with each step."""
    rng = np.random.default_rng(1)
    rows = megabytes * 256
    return {"base": {"w": rng.standard_normal((rows, 1024)).astype(np.float32),
                     "count": np.arange(1000)},
            "adapter": np.random.default_rng(step).standard_normal((rows // 100, 1024)).astype(
                np.float32)}


def sparse(steps: int) -> list[dict[str, Any]]:
    """bf16 weights of which 1 % of the elements change from step to step."""
    rng = np.random.default_rng(2)
    w = rng.standard_normal(1 << 22).astype(ml_dtypes.bfloat16)
    states = []
    for _ in range(steps):
        changed = rng.choice(len(w), len(w) // 100, replace=False)
        w = w.copy()
        w[changed] = (w[changed].astype(np.float32) * 1.01).astype(ml_dtypes.bfloat16)
        states.append({"w": w.reshape(1024, -1), "step": len(states)})
    return states


def unnamed(place: Any) -> set[str]:
    """Data that no list names, and markers."""
    from stepwell import _stepwell

    there = place.list()
    named = {f"data/{each.name}" for key in there if key.startswith("steps/")
             for each in _stepwell.pushed_head(bytes(place.read(key, 0, there[key]))).objects}
    assert named <= there.keys()
    return {key for key in there if key not in named
            and not key.startswith("steps/") and key != "stepwell-run.json"}


def opened(place: Any, **keywords: Any) -> Any:
    return object_store.open_object_store(place, keywords.get("prefix", ""), None)


def test_twenty_steps_of_lora(store: stepwell.Store, other: stepwell.Store, bucket: Faulty
                              ) -> None:
    full = 8 << 20
    for step in range(20):
        store.save(step, lora(step, 8)).result()
        sent = store.push(step, bucket, layout="stepwell")
        assert sent.step == step and not sent.skipped
        if step == 0:
            assert full < sent.sent_bytes < 1.1 * full
        else:
            assert 0 < sent.sent_bytes < 0.02 * full
        assert 1.0 * full < sent.size_bytes < 1.1 * full
    assert [each.step for each in stepwell.pushed_steps(bucket)] == [*range(20)]
    assert sum(bucket.list().values()) < 1.4 * full
    for step in range(20):
        got = other.pull(bucket, step)
        assert got.step == step
        assert got.received_bytes < (1.1 if step == 0 else 0.02) * full
        exactly(other.load(step), lora(step, 8))
    assert other.stats()["space"]["live_bytes"] < 1.4 * full
    assert not unnamed(bucket)


@pytest.mark.parametrize("delta_there", [False, True])
def test_differences_go_as_differences(tmp_path: Path, other: stepwell.Store, bucket: Faulty,
                                       delta_there: bool) -> None:
    states = sparse(8)
    full = states[0]["w"].nbytes
    with stepwell.open(tmp_path / "deltas", delta=True) as store:
        for step, state in enumerate(states):
            store.save(step, state).result()
        for step in range(8):
            sent = store.push(step, bucket, layout="stepwell").sent_bytes
            assert sent < (1.1 if step == 0 else 0.1) * full
    with stepwell.open(tmp_path / "there", delta=delta_there) as there:
        for step, state in enumerate(states):
            got = there.pull(bucket, step).received_bytes
            assert got < (1.1 if step == 0 else 0.1) * full
            exactly(there.load(step), state)
    # A consumer that has nothing takes the whole chain; one that missed steps, what is between.
    assert other.pull(bucket).received_bytes < 1.6 * full
    exactly(other.load(7), states[7])
    with stepwell.open(tmp_path / "late") as late:
        late.pull(bucket, 2)
        assert late.pull(bucket, 6).received_bytes < 0.3 * full
        exactly(late.load(6), states[6])


def test_a_step_in_the_middle_of_a_chain_is_pushed_first(tmp_path: Path, other: stepwell.Store,
                                                         bucket: Faulty) -> None:
    states = sparse(6)
    full = states[0]["w"].nbytes
    with stepwell.open(tmp_path / "deltas", delta=True) as store:
        for step, state in enumerate(states):
            store.save(step, state).result()
        assert 1.0 * full < store.push(4, bucket, layout="stepwell").sent_bytes < 1.6 * full
        for step in (0, 5, 2):  # steps before it are beginnings of its chain
            assert store.push(step, bucket, layout="stepwell").sent_bytes < 0.1 * full
    for step in (5, 0, 2, 4):
        other.pull(bucket, step)
        exactly(other.load(step), states[step])
    assert not unnamed(bucket)


def everything(tmp_path: Path) -> dict[str, Any]:
    return {
        "params": {"w": jnp.arange(70000, dtype=jnp.float32).reshape(7, -1),
                   "b": np.arange(9).astype(ml_dtypes.bfloat16), "i4": jnp.arange(5).astype("int4"),
                   "empty": np.zeros((0, 3)), "scalar": np.float32(3), "bool": np.array([True]),
                   "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4))},
        "opt": [Pair(jnp.ones(3), None), (1, 2.5, "text", b"bytes", True, 1 + 2j), {}],
        "key": jax.random.key(7), 3: {"n": 10**30, "long": "ä" * 3_000_000},
        "object": {"none": None, "list": []},
    }


def test_there_and_back_is_what_was_saved(store: stepwell.Store, other: stepwell.Store,
                                          tmp_path: Path, bucket: Faulty) -> None:
    tree = everything(tmp_path)
    (tmp_path / "files/below").mkdir(parents=True)
    (tmp_path / "files/below/a").write_bytes(os.urandom(5000))
    items = {"state": tree, "extra": {"x": np.arange(5)}, "js": stepwell.Json({"a": [1, None]}),
             "files": stepwell.Files(tmp_path / "files")}
    store.save(7, items=items, metadata={"note": "ä", "n": [1]}, metrics={"loss": 0.5}).result()
    store.push(7, bucket, layout="stepwell", verify=True)
    report = other.pull(bucket)
    assert (report.step, report.skipped) == (7, False)
    for one, two in ((store[7], other[7]),):
        assert one.metadata == two.metadata and one.metrics == two.metrics
        assert one.items == two.items
    names = ["state", "extra", "js", "files"]
    exactly(store.load(7, items=names), other.load(7, items=names))
    exactly(other.load(7, "state/params/w"), np.asarray(tree["params"]["w"]))
    loaded = other.load(7, "state", like=tree)
    exactly(jax.random.key_data(loaded["key"]), jax.random.key_data(tree["key"]))
    assert not other.changed(7, 7).changed
    # Again into the same store, and items alone into another.
    assert other.pull(bucket, if_exists="skip").skipped
    with pytest.raises(stepwell.StepExistsError):
        other.pull(bucket)
    assert other.pull(bucket, if_exists="replace").received_bytes < 100_000  # the list
    with stepwell.open(tmp_path / "third") as third:
        third.pull(bucket, items=["extra"])
        assert third[7].items == ("extra",) or list(third[7].items) == ["extra"]
        assert third[7].metrics in (None, {})
        with pytest.raises(stepwell.PathNotFoundError, match="no item 'nope'"):
            third.pull(bucket, items=["nope"], if_exists="replace")


@pytest.mark.parametrize("kind", ["obstore local", "obstore memory", "path", "URL", "fsspec local",
                                  "fsspec memory", "fsspec URL"])
def test_every_kind_of_place(store: stepwell.Store, other: stepwell.Store, tmp_path: Path, kind: str
                             ) -> None:
    place, keywords = places(tmp_path)[kind]
    for step in (3, 5, 4):
        store.save(step, lora(step, 3)).result()
        store.push(step, place, layout="stepwell", **keywords)
    assert [each.step for each in stepwell.pushed_steps(place, **keywords)] == [3, 4, 5]
    with pytest.raises(stepwell.StepExistsError, match="step 4 already"):
        store.push(4, place, layout="stepwell", **keywords)
    assert store.push(4, place, layout="stepwell", if_exists="skip", **keywords).skipped
    gone = stepwell.delete_pushed(place, 3, **keywords)
    assert (gone.step, gone.objects >= 0) == (3, True)
    with pytest.raises(stepwell.StepNotFoundError, match="no step 3; the nearest: 4, 5"):
        other.pull(place, 3, **keywords)
    with pytest.raises(stepwell.StepNotFoundError, match="no step 3"):
        stepwell.delete_pushed(place, 3, **keywords)
    assert other.pull(place, **keywords).step == 5
    assert other.pull(place, 4, **keywords).received_bytes < 300_000
    for step in (4, 5):
        exactly(other.load(step), lora(step, 3))


def test_a_directory_is_as_private_as_the_store(store: stepwell.Store, tmp_path: Path) -> None:
    os.chmod(store.path, 0o750)
    store.save(1, {"w": np.arange(5)}).result()
    store.push(1, tmp_path / "place/run", layout="stepwell")
    for base, folders, names in os.walk(tmp_path / "place"):
        for name in folders:
            assert os.stat(os.path.join(base, name)).st_mode & 0o777 == 0o750
        for name in names:
            assert os.stat(os.path.join(base, name)).st_mode & 0o777 == 0o640
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(tmp_path / "place/run/steps")
    os.symlink(tmp_path / "elsewhere", tmp_path / "place/run/steps")
    with pytest.raises(stepwell.StorageError, match="symbolic link"):
        store.push(1, tmp_path / "place/run", layout="stepwell")
    assert not os.listdir(tmp_path / "elsewhere")


@pytest.mark.parametrize("delta", [False, True])
def test_deleting_breaks_no_other_step(tmp_path: Path, bucket: Faulty, delta: bool) -> None:
    states = sparse(5) if delta else [lora(step, 2) for step in range(5)]
    with stepwell.open(tmp_path / "store", delta=delta) as store:
        for step, state in enumerate(states):
            store.save(step, state).result()
            store.push(step, bucket, layout="stepwell")
        whole = {key: bytes(bucket.read(key, 0, size)) for key, size in bucket.list().items()}
        orders = list(itertools.permutations(range(5)))
        in_memory = "Memory" in type(bucket._inner._store).__name__ if hasattr(
            bucket._inner, "_store") else False
        for order in orders if in_memory and not delta else orders[::13]:
            for key in bucket.list().keys() - whole.keys():
                bucket.delete(key)
            for key, data in whole.items():
                bucket._inner.put(key, data)
            for number, step in enumerate(order):
                stepwell.delete_pushed(bucket, step)
                left = sorted(order[number + 1:])
                assert [each.step for each in stepwell.pushed_steps(bucket)] == left
                assert not unnamed(bucket)
            assert bucket.list().keys() == {"stepwell-run.json"}
    # What is left of one order is exact, step by step.
    for key, data in whole.items():
        bucket._inner.put(key, data)
    for number, step in enumerate((2, 0, 4, 1)):
        stepwell.delete_pushed(bucket, step)
        with stepwell.open(tmp_path / f"fresh{number}") as fresh:
            for each in stepwell.pushed_steps(bucket):
                fresh.pull(bucket, each.step)
                exactly(fresh.load(each.step), states[each.step])


def test_a_step_replaced(store: stepwell.Store, other: stepwell.Store, bucket: Faulty) -> None:
    for step in (1, 2):
        store.save(step, lora(step, 3)).result()
        store.push(step, bucket, layout="stepwell")
    other.pull(bucket, 1)
    store.save(1, lora(9, 3), if_exists="replace").result()
    sent = store.push(1, bucket, layout="stepwell", if_exists="replace").sent_bytes
    assert sent < 200_000
    assert not unnamed(bucket)
    assert other.pull(bucket, 1, if_exists="replace").received_bytes < 200_000
    other.pull(bucket, 2)
    exactly(other.load(1), lora(9, 3))
    exactly(other.load(2), lora(2, 3))


def test_branches_and_copies_push_to_one_run(store: stepwell.Store, other: stepwell.Store,
                                             tmp_path: Path, bucket: Faulty) -> None:
    store.save(1, lora(1, 3)).result()
    store.push(1, bucket, layout="stepwell")
    store.branch("side")
    store.close()
    shutil.copytree(store.path, tmp_path / "copy")
    with stepwell.open(store.path, branch="side") as side, \
            stepwell.open(tmp_path / "copy") as copy:
        side.save(2, lora(2, 3)).result()
        copy.save(3, lora(3, 3)).result()
        for one, step in ((copy, 3), (side, 2)):
            assert one.push(step, bucket, layout="stepwell").sent_bytes < 200_000
    for step in (1, 2, 3):
        other.pull(bucket, step)
        exactly(other.load(step), lora(step, 3))


def test_grids_and_codecs_of_others(tmp_path: Path, other: stepwell.Store, bucket: Faulty) -> None:
    """A pull keeps the chunks' shapes; what a place has in another encoding is not sent again."""
    w = np.zeros((512, 512), np.float32)
    w[:, ::7] = 1.5
    with stepwell.open(tmp_path / "one", codec="raw") as one, \
            stepwell.open(tmp_path / "two", codec="blosc") as two:
        chunks = {"w": stepwell.ChunkShape(max_bytes=65536)}
        one.save(1, {"w": w}, chunks=chunks).result()
        two.save(2, {"w": w}, chunks=chunks).result()
        assert one.push(1, bucket, layout="stepwell").sent_bytes > w.nbytes
        assert two.push(2, bucket, layout="stepwell").sent_bytes < 10_000
    other.pull(bucket, 1)
    assert other[1]["w"].chunk_shape == (32, 512)
    assert other.pull(bucket, 2).received_bytes < 10_000
    exactly(other.load(2), {"w": w})


def test_places_of_the_other_kind_are_refused(store: stepwell.Store, other: stepwell.Store,
                                              tmp_path: Path) -> None:
    store.save(1, {"w": np.arange(5)}).result()
    store.push(1, tmp_path / "run", layout="stepwell")
    with pytest.raises(stepwell.StepExistsError, match="is a pushed run"):
        store.push(1, tmp_path / "run")
    store.push(1, tmp_path / "single")
    with pytest.raises(stepwell.StepExistsError, match="not a pushed run"):
        store.push(1, tmp_path / "single", layout="stepwell")
    with pytest.raises(stepwell.CheckpointNotFoundError, match="not a pushed run"):
        stepwell.delete_pushed(tmp_path / "single", 1)
    with pytest.raises(stepwell.InvalidArgumentError, match="for Orbax checkpoints"):
        store.push(1, tmp_path / "run", layout="stepwell", leaves="jax")
    with pytest.raises(stepwell.InvalidArgumentError, match="inside the store"):
        store.push(1, os.path.join(store.path, "run"), layout="stepwell")
    assert sorted((each.step, os.path.basename(each.url))
                  for each in stepwell.pushed_steps(tmp_path)) == [(1, "run"), (1, "single")]
    stepwell.delete_pushed(tmp_path / "run", 1)
    with pytest.raises(stepwell.CheckpointNotFoundError, match="without steps"):
        other.pull(tmp_path / "run")
    assert not [name for name in os.listdir(tmp_path) if "pushrun" in name or "pullrun" in name]


def test_a_run_below_a_place(store: stepwell.Store, other: stepwell.Store, tmp_path: Path) -> None:
    for step in (1, 2):
        store.save(step, {"w": np.arange(step)}).result()
        store.push(step, tmp_path / "above/run", layout="stepwell")
    assert other.pull(tmp_path / "above").step == 2
    assert other.pull(tmp_path / "above", 1).step == 1


def test_read_only_and_newest(store: stepwell.Store, other: stepwell.Store, bucket: Faulty) -> None:
    store.save(1, {"w": np.arange(5)}).result()
    store.save(2, {"w": np.arange(6)}).result()
    with stepwell.open(store.path, mode="r") as reader:
        seen: list[tuple[int, int]] = []
        assert reader.push(None, bucket, layout="stepwell",
                           progress=lambda done, total: seen.append((done, total))).step == 2
    assert seen and seen[-1][0] == seen[-1][1]
    other.pull(bucket)
    exactly(other.load(2), {"w": np.arange(6)})
