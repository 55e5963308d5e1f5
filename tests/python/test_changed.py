# SPDX-License-Identifier: Apache-2.0
"""Store.changed against NumPy; and what it reads, which is nothing if records can tell."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equality import bits
from group_runs import machines, run
from test_damage import flip
from test_leaves import DTYPES, sample

import stepwell

Point = collections.namedtuple("Point", "x y")
MIB = 1 << 20


def chunks_read(store: stepwell.Store) -> int:
    return store.stats()["last_load"]["chunks"]


def paths(found: stepwell.Changed) -> tuple[list[Any], list[Any], list[Any]]:
    return list(found.added), list(found.removed), list(found.changed)


def different(a: np.ndarray, b: np.ndarray) -> int:
    """The number of elements whose bits differ."""
    one, other = (np.frombuffer(bits(each)[-1], np.uint8) for each in (a, b))
    return int((one != other).reshape(a.size, -1).any(axis=1).sum()) if a.size else 0


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (7, 11, 13)], ids=str)
def test_every_dtype_and_shape(store, dtype, shape):
    a = sample(dtype, shape)
    b = a[::-1].copy() if a.ndim else np.roll(sample(dtype, (2,)), 1)[0].reshape(())
    store.save(1, {"x": a, "same": a}).result()
    store.save(2, {"x": b, "same": a.copy()}).result()
    count = different(a, b)
    found = store.changed(1, 2, elements=True)
    assert paths(found) == ([], [], ["x"] if count else [])
    assert found.unchanged == 2 - len(found.changed) and found.same == (count == 0)
    if count:
        leaf = found.changed["x"]
        assert (leaf.elements, leaf.chunks_changed, leaf.chunks) == (count, 1, 1)
        assert leaf.before == leaf.after == stepwell.LeafInfo("array", shape, dtype, a.nbytes)
        assert (leaf.path, leaf.item, leaf.nbytes_changed) == ("x", "state", a.nbytes)
    plain = store.changed(1, 2)
    assert list(plain.changed) == list(found.changed) and chunks_read(store) == 0
    assert all(leaf.elements is None for leaf in plain.changed.values())


def test_bits_count_not_values(store):
    quiet = np.array([0x7FC00000, 0x7FC00000], np.uint32).view(np.float32)
    other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    a = {"nan": quiet, "zero": np.zeros(3), "float": 0.0, "nans": float("nan")}
    store.save(1, a).result()
    b = {"nan": other, "zero": -np.zeros(3), "float": -0.0, "nans": float("nan")}
    store.save(2, b).result()
    found = store.changed(1, 2, elements=True)
    assert {path: leaf.elements for path, leaf in found.changed.items()} == {
        "nan": 1, "zero": 3, "float": None}


def test_chunks_and_bytes(store):
    a = noise(10, 1000, 1000)
    b = a.copy()
    b[3, 7, 9] += 1
    b[7:] = 0
    store.save(1, {"x": a}).result()
    store.save(2, {"x": b}).result()
    view = store[1]["x"]
    leaf = store.changed(1, 2).changed["x"]
    grid = [-(-extent // chunk) for extent, chunk in zip(view.shape, view.chunk_shape, strict=True)]
    sizes = []
    for index in np.ndindex(*grid):
        box = tuple(slice(i * chunk, (i + 1) * chunk)
                    for i, chunk in zip(index, view.chunk_shape, strict=True))
        if (a[box] != b[box]).any():
            sizes.append(a[box].nbytes)
    assert (leaf.chunks_changed, leaf.chunks) == (len(sizes), np.prod(grid))
    assert leaf.nbytes_changed == sum(sizes) < a.nbytes
    counted = store.changed(1, 2, elements=True).changed["x"]
    assert counted.elements == (a != b).sum() and counted.chunks_changed == len(sizes)
    assert chunks_read(store) == 2 * len(sizes)  # and no other


def test_no_chunk_is_read(path):
    """Whatever has become of the chunks."""
    with stepwell.open(path, codec="raw") as store:
        for step in (1, 2):
            store.save(step, {"w": noise(1000, 300, seed=step), "b": noise(5000)}).result()
    for array in (noise(1000, 300, seed=1), noise(1000, 300, seed=2), noise(5000)):
        flip(path, array.reshape(-1)[-100:].tobytes())
    with stepwell.open(path, mode="r") as store:
        for step in (1, 2):
            with pytest.raises(stepwell.CorruptionError):
                store.load(step)
        found = store.changed(1, 2)
        assert paths(found) == ([], [], ["w"]) and found.unchanged == 1
        assert store.stats()["last_load"]["bytes_read"] == 0
        with pytest.raises(stepwell.CorruptionError, match=r"step 1.*w|w.*step 1"):
            store.changed(1, 2, elements=True)


@pytest.mark.parametrize("chunks", [stepwell.ChunkShape(4096, (1,)), stepwell.ChunkShape(8192)])
def test_another_chunking_costs_a_read_and_is_no_change(store, chunks):
    a = noise(150, 60)
    store.save(1, {"x": a, "y": a}).result()
    store.save(2, {"x": a, "y": a + 1}, chunks=chunks).result()
    found = store.changed(1, 2)
    assert paths(found) == ([], [], ["y"]) and chunks_read(store) > 2
    leaf = found.changed["y"]
    assert leaf.chunks_changed == leaf.chunks and leaf.nbytes_changed == a.nbytes
    b = a.copy()
    b[70, 30] = 9
    store.save(3, {"x": b, "y": a}).result()
    for steps in ((2, 3), (3, 2)):
        found = store.changed(*steps, "x", elements=True)
        leaf = found.changed["x"]
        assert (leaf.chunks_changed, leaf.elements) == (1, 1)


def test_a_large_array_in_another_chunking(store):
    """More than is compared at one time."""
    a = np.arange(12 * MIB, dtype=np.float32).reshape(3072, 4096)
    b = a.copy()
    b[::100, 5] += 1
    store.save(1, {"x": a}).result()
    store.save(2, {"x": a}, chunks=stepwell.ChunkShape(MIB, (1,))).result()
    store.save(3, {"x": b}, chunks=stepwell.ChunkShape(MIB, (1,))).result()
    assert store.changed(1, 2).same
    leaf = store.changed(1, 3, elements=True).changed["x"]
    assert (leaf.elements, leaf.chunks_changed) == (31, 1) and leaf.chunks > 40


def test_dtype_shape_and_kind(store):
    key = jax.random.key(3)
    old = {"dtype": np.ones(3), "shape": np.ones((2, 3)), "int": 1, "true": 1, "text": "1",
           "leaf": np.ones(3), "key": key, "rbg": jax.random.key(1, impl="rbg")}
    new = {"dtype": np.ones(3, np.float32), "shape": np.ones((3, 2)), "int": 1.0, "true": True,
           "text": b"1", "leaf": 1, "key": jax.random.key_data(key), "rbg": jax.random.key(
               1, impl="unsafe_rbg")}
    store.save(1, old).result()
    store.save(2, new).result()
    found = store.changed(1, 2, elements=True)
    assert set(found.changed) == set(old) and found.unchanged == 0 and chunks_read(store) == 0
    assert all(leaf.elements is None and leaf.chunks_changed == leaf.chunks
               for leaf in found.changed.values())
    assert str(found.changed["shape"].before) == "float64[2, 3]"
    assert found.changed["leaf"].after.kind == "int"
    assert "shape  float64[2, 3] -> float64[3, 2]  1 of 1 chunk" in repr(found)


def test_where_an_array_was_is_no_change(store):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = np.arange(16, dtype=np.float32)
    for step, array in enumerate((x, jnp.asarray(x), jax.device_put(x, sharding))):
        store.save(step, {"x": array, "weak": np.float32(1) if step else jnp.float32(1)}).result()
    assert store.changed(0, 1).same and store.changed(1, 2).same and store.changed(2, 0).same


def test_python_values(store):
    old = {"int": 2**70, "str": "a", "bytes": b"", "none": None, "complex": 1j, "long": "a" * 5000,
           "longer": "a" * 5000, "huge": b"x" * (9 * MIB), "same": "s" * 2000}
    new = {**old, "int": 2**70 + 1, "str": "b", "complex": -1j, "long": "a" * 4999 + "b",
           "longer": "a" * 5001, "huge": b"x" * (9 * MIB - 1) + b"y"}
    store.save(1, old).result()
    store.save(2, new).result()
    found = store.changed(1, 2, elements=True)
    assert set(found.changed) == {"int", "str", "complex", "long", "longer", "huge"}
    assert chunks_read(store) == 0
    assert found.changed["str"].chunks == found.changed["str"].nbytes_changed == 0
    assert (found.changed["huge"].chunks_changed, found.changed["huge"].chunks) == (1, 9)


def test_paths(store):
    store.save(1, {"a": {"x": 1, "y": 2}, "b": 3, "old": 4}).result()
    store.save(2, {"a": {"x": 1, "y": 3, "z": 0}, "b": 4}).result()
    assert paths(store.changed(1, 2)) == (["a/z"], ["old"], ["a/y", "b"])
    assert paths(store.changed(2, 1)) == (["old"], ["a/z"], ["a/y", "b"])
    assert paths(store.changed(1, 2, "a")) == (["a/z"], [], ["a/y"])
    assert paths(store.changed(1, 2, ("a", "y"))) == ([], [], ["a/y"])
    assert paths(store.changed(1, 2, "*/*")) == (["a/z"], [], ["a/y"])
    assert paths(store.changed(1, 2, "old")) == ([], ["old"], [])
    assert paths(store.changed(1, 2, "a/z")) == (["a/z"], [], [])
    with pytest.raises(stepwell.PathNotFoundError, match="step 1 has nothing at .odl."):
        store.changed(1, 2, "odl")
    with pytest.raises(stepwell.InvalidArgumentError, match="elements must be True or False"):
        store.changed(1, 2, elements=1)
    with pytest.raises(stepwell.InvalidArgumentError, match="a path must be"):
        store.changed(1, 2, 3)
    with pytest.raises(TypeError):
        found = store.changed(1, 2)
        found.changed["a"] = found.changed["b"]


def test_leaves_that_are_spelled_alike(store):
    store.save(1, {"p": Point(np.ones(3), 1), 1: "int", "1": "text"}).result()
    store.save(2, {"p": {"x": np.ones(3), "y": 2}, 1: "other", "1": "others"}).result()
    assert paths(store.changed(1, 2)) == ([], [], [(1,), ("1",), "p/y"])
    store.save(3, np.ones(3)).result()
    store.save(4, np.zeros(3)).result()
    assert paths(store.changed(3, 4)) == ([], [], [""])
    assert "(the state)" in repr(store.changed(3, 4))


def test_items(store, tmp_path):
    for name, text in (("same", "1"), ("other", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("content")
        (tmp_path / name / "more").write_text(text)
    store.save(0, {"w": 1}).result()
    store.save(1, items={"state": {"w": 1}, "json": stepwell.Json({"lr": 1, "n": [1]}),
                         "files": stepwell.Files(tmp_path / "same")}).result()
    store.save(2, items={"state": {"w": 1}, "json": stepwell.Json({"lr": 2, "n": [1]}),
                         "files": stepwell.Files(tmp_path / "other")}).result()
    assert [(leaf.path, leaf.item) for leaf in store.changed(1, 2).changed.values()] == [
        ("files/more", "files"), ("json/lr", "json")]
    assert store.changed(0, 1, "w").same and store.changed(1, 0, "w").same
    assert len(store.changed(0, 1).added) == 4 and store.changed(0, 1).unchanged == 1


def test_steps_that_are_replaced_deleted_and_of_other_sessions(path):
    with stepwell.open(path) as store:
        for step in range(4):
            store.save(step, {"x": noise(1000, seed=step // 2), "n": step}).result()
        store.save(1, {"x": noise(1000, seed=9), "n": 1}, if_exists="replace").result()
        assert list(store.changed(0, 1).changed) == ["n", "x"]
        store.delete(2)
        with pytest.raises(stepwell.StepNotFoundError, match="no step 2; the nearest steps are 1"):
            store.changed(2, 3)
    with stepwell.open(path) as store, stepwell.open(path, mode="r") as reader:
        store.save(9, {"x": noise(1000, seed=1), "n": 9}).result()
        for each in (store, reader):
            assert list(each.changed(3, 9).changed) == ["n"]
            assert list(each.changed(9, 1).changed) == ["n", "x"]
            with pytest.raises(stepwell.StepNotFoundError, match="no step 2"):
                each.changed(3, 2)
        store.branch("other")
        with stepwell.open(path, branch="other") as branch:
            branch.save(10, {"x": noise(1000, seed=1), "n": 9}).result()
            assert branch.changed(9, 10).same
            assert list(branch.changed(0, 10).changed) == ["n", "x"]
        with store.draft(11) as draft:
            draft.add({"x": noise(1000, seed=1)})
            draft.add({"n": 9})
        assert store.changed(9, 11).same
    for wrong in ((-1, 3), ("a", 3), (3, None)):
        with pytest.raises(stepwell.InvalidArgumentError), stepwell.open(path, "r") as reader:
            reader.changed(*wrong)
    with pytest.raises(stepwell.Error, match="closed"):
        reader.changed(3, 9)


def random_tree(random: np.random.Generator, depth: int = 0) -> Any:
    kind = random.integers(0, 8 if depth < 3 else 6)
    if kind == 0:
        return int(random.integers(0, 3))
    if kind == 1:
        return float(random.choice([0.0, -0.0, 1.5, float("nan")]))
    if kind == 2:
        return str(random.choice(["a", "b", "c" * 1500]))
    if kind < 6:
        dtype = random.choice(["f4", "i2", "c16", "?"])
        shape = tuple(random.integers(0, 4, random.integers(0, 4)))
        return random.integers(0, 2, shape).astype(dtype)
    names = random.choice(list("abcde"), random.integers(1, 5), replace=False)
    return {str(name): random_tree(random, depth + 1) for name in names}


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: leaf for key, child in tree.items()
            for name, leaf in leaves(child, f"{path}/{key}" if path else key).items()}


def test_random_trees(store):
    random = np.random.default_rng(11)
    steps = []
    for step in range(60):
        tree = {"root": random_tree(random), "x": random_tree(random)}
        steps.append(leaves(tree))
        store.save(step, tree)
    store.wait()
    for _ in range(300):
        a, b = (int(step) for step in random.integers(0, len(steps), 2))
        one, other = steps[a], steps[b]
        found = store.changed(a, b, elements=True)
        assert set(found.added) == set(other) - set(one)
        assert set(found.removed) == set(one) - set(other)
        both = set(one) & set(other)
        assert set(found.changed) == {path for path in both
                                      if bits(one[path]) != bits(other[path])}
        assert found.unchanged == len(both) - len(found.changed)
        for path, leaf in found.changed.items():
            x, y = one[path], other[path]
            if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and (
                    x.dtype == y.dtype and x.shape == y.shape):
                assert leaf.elements == different(x, y)
            else:
                assert leaf.elements is None
        assert list(found.changed) == list(store.changed(a, b).changed)


LEAVES = ["rows", "both", "tuple", "whole", "scalar", "empty", "large", "prime"]


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_steps_of_several_processes(tmp_path: pathlib.Path, disks: str) -> None:
    two = machines(tmp_path, 0, 1) if disks == "local" else [tmp_path / "store"] * 2
    four = machines(tmp_path, 0, 1, 2, 3) if disks == "local" else [tmp_path / "store"] * 4
    every = {str(process): LEAVES for process in range(4)}
    acts: list[Any] = [
        ["open", {"disks": disks}], ["save", {"step": 1, "leaves": every}],
        ["save", {"step": 2, "content": 1, "leaves": every}],
        ["save", {"step": 3, "leaves": every}],
        ["changed", {"steps": [1, 2], "elements": False}],
        ["changed", {"steps": [2, 3], "elements": False}],
        ["changed", {"steps": [2, 3], "elements": True}],
        ["changed", {"steps": [2, 9], "elements": True}], ["close", {}]]
    reads = 0
    for said in run(two, acts):
        assert said.gave(4) == [{}, len(LEAVES) + 3, 0]
        changed, unchanged, read = said.gave(5)
        assert (sorted(changed), unchanged, read) == (
            ["count", "host", *sorted(f"params/{name}" for name in LEAVES if name != "empty")],
            2, 0)
        assert all(one == other for one, other, _ in changed.values())
        counted, _, read = said.gave(6)
        reads += read
        assert {path: leaf[:2] for path, leaf in counted.items()} == {
            path: leaf[:2] for path, leaf in changed.items()}
        assert counted["params/prime"][2] == 2097166 and counted["params/both"][2] == 64
        assert said.lines[7]["error"] == "StepNotFoundError"
    chunks = 2 * sum(leaf[0] for leaf in counted.values())
    assert reads == (chunks if disks == "local" else 2 * chunks)  # each its own, or all
    # Other processes, on another mesh: other shards, and so other chunks.
    for said in run(four, [
            ["open", {"disks": disks}], ["save", {"step": 4, "content": 1, "leaves": every}],
            ["changed", {"steps": [1, 4], "elements": False}],
            ["changed", {"steps": [3, 4], "elements": True}], ["close", {}]],
            processes=4, devices=8):
        changed, unchanged, read = said.gave(2)
        assert (changed, unchanged) == ({}, len(LEAVES) + 3)
        assert said.gave(3)[0]["params/large"][2] == 64 * 4096
    if disks == "local":
        return
    with stepwell.open(two[0], "r") as store:  # a process alone
        assert store.changed(1, 4).same and chunks_read(store) > 0
        assert store.changed(1, 2).same and chunks_read(store) == 0
        assert store.changed(2, 3, "params/prime").changed["params/prime"].chunks > 1
