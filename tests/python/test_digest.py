# SPDX-License-Identifier: Apache-2.0
"""Digests of trees and steps, against the definition in the docstring of stepwell.digest, computed
here by other means; and steps that are compared with trees."""

from __future__ import annotations

import collections
import enum
import hashlib
import json
import pathlib
import struct
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from equality import bits
from flax import nnx
from group_runs import machines, run
from test_damage import flip
from test_leaves import DTYPES, PYTHON_VALUES, sample

import stepwell

Point = collections.namedtuple("Point", "x y")


class Color(enum.Enum):
    RED = 1


def defined(tree: Any) -> str:
    """The digest of dicts, lists, NumPy arrays and Python values, as the docstring defines it."""
    lines = []

    def walk(node: Any, path: list[Any]) -> None:
        if isinstance(node, dict):
            for key, child in node.items():
                walk(child, [*path, key if type(key) in (int, str) else [repr(key)]])
        elif isinstance(node, (list, tuple)):
            for index, child in enumerate(node):
                walk(child, [*path, index])
        else:
            dtype, shape, content = leaf(node)
            sha = hashlib.sha256(content).hexdigest()
            lines.append(json.dumps([path, dtype, shape, sha], separators=(",", ":")) + "\n")

    walk(tree, [])
    return hashlib.sha256("".join(sorted(lines)).encode("ascii")).hexdigest()


def leaf(node: Any) -> tuple[str, list[int] | None, bytes]:
    if isinstance(node, (np.ndarray, np.generic)):
        whole = np.asarray(node)
        small = whole.dtype.name in ("int2", "int4")
        content = (whole.astype(np.int8) if small else whole).tobytes("C")
        return whole.dtype.name, list(whole.shape), content
    if node is None:
        return "none", None, b""
    content = {bool: lambda: b"\1" if node else b"\0", str: lambda: node.encode(
        "utf-8", "surrogatepass"), bytes: lambda: node, int: lambda: digits(node).encode(),
        float: lambda: struct.pack("<d", node),
        complex: lambda: struct.pack("<dd", node.real, node.imag)}[type(node)]()
    return type(node).__name__, None, content


def digits(number: int) -> str:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return str(number)
    finally:
        sys.set_int_max_str_digits(limit)


def saved_digest(store: stepwell.Store, tree: Any, step: int = 0) -> str:
    """The digest of the tree, after it was found to be that of the step and of what is loaded."""
    store.save(step, tree, if_exists="replace").result()
    found = stepwell.digest(tree)
    assert store.digest(step) == found == stepwell.digest(store.load(step))
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7, 11, 13)], ids=str)
def test_every_dtype_and_shape(store, dtype, shape):
    array = sample(dtype, shape)
    found = saved_digest(store, {"x": array})
    assert found == defined({"x": array})
    if array.size:
        other = array.reshape(-1).copy()
        other[-1] = sample(dtype, (100,))[[bits(each) for each in sample(dtype, (100,))].index(
            next(bits(each) for each in sample(dtype, (100,)) if bits(each) != bits(other[-1])))]
        assert stepwell.digest({"x": other.reshape(shape)}) != found
        assert stepwell.digest({"x": array.reshape(1, *shape)}) != found
        assert stepwell.digest({"y": array}) != found


def test_values_and_keys(store):
    assert saved_digest(store, PYTHON_VALUES) == defined(PYTHON_VALUES)
    tree = {"a/b": 1, "*": {"": 2}, 5: 3, -1: {True: 1.5, None: "x", (1, "a"): b"y"}, "é\udcff": 4}
    assert saved_digest(store, tree) == defined(tree)
    assert stepwell.digest({"x": 1}) != stepwell.digest({"x": 1.0}) != stepwell.digest({"x": True})
    assert stepwell.digest({"x": "1"}) != stepwell.digest({"x": b"1"})
    assert stepwell.digest({"1": 0}) != stepwell.digest({1: 0})
    assert stepwell.digest({"x": -0.0}) != stepwell.digest({"x": 0.0})
    assert stepwell.digest({"x": np.float32(1)}) == stepwell.digest({"x": np.array(1, np.float32)})


def test_containers_count_by_their_keys(store):
    w = np.arange(6.0).reshape(2, 3)
    plain = {"p": {"x": w, "y": 1}, "l": [w, 2], "c": {"Color.RED": w}}
    tree = {"c": {Color.RED: jnp.asarray(w, jnp.float32)}, "l": (w, 2), "p": Point(w, 1),
            "nothing": {}, "neither": []}
    plain["c"] = {"Color.RED": w.astype(np.float32)}
    assert saved_digest(store, tree) == stepwell.digest(plain)
    assert stepwell.digest(dict(reversed(plain.items()))) == stepwell.digest(plain)


def test_nnx_keys_and_functions(store):
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    plain = {"kernel": np.asarray(model.kernel[...]), "bias": np.asarray(model.bias[...])}
    assert saved_digest(store, state) == defined(plain)
    keys = jax.random.split(jax.random.key(7), 3)
    tree = {"keys": keys, "f": len, "jit": jax.jit(lambda x: x)}
    assert saved_digest(store, tree) == defined({"keys": np.asarray(jax.random.key_data(keys))})
    assert stepwell.digest(keys) == stepwell.digest(jax.random.key_data(keys))


def test_memory_order_and_bytes_in_front_do_not_count(store):
    base = np.arange(2400.0).reshape(40, 60)
    for array in (base.T, base[::2, ::-3], np.asfortranarray(base), base[::-1],
                  np.broadcast_to(np.float32(3), (4, 5)), base.astype(">f8"),
                  np.arange(5, dtype=">i4"), np.float64(2)):
        native = np.ascontiguousarray(array, np.asarray(array).dtype.newbyteorder("="))
        native = native.reshape(np.shape(array))
        assert saved_digest(store, {"x": array}) == defined({"x": native})
    junk = np.array([0x0F, 0xF8], np.uint8).view(ml_dtypes.int4)
    assert stepwell.digest(junk) == stepwell.digest(np.array([-1, -8], ml_dtypes.int4))


def test_large_arrays_go_in_parts(store, monkeypatch):
    import stepwell._load.slicing as slicing
    import stepwell._pytree.digest as of_trees

    monkeypatch.setattr(slicing, "PART_BYTES", 1000)
    monkeypatch.setattr(of_trees, "_HASHED_AT_ONCE", 1000)
    base = np.random.default_rng(0).standard_normal((3, 50, 70)).astype(np.float32)
    tree = {"x": base, "t": base.T, "f": np.asfortranarray(base), "s": base[:, ::2, ::-1]}
    plain = {name: np.ascontiguousarray(array) for name, array in tree.items()}
    store.save(0, tree, chunks=stepwell.ChunkShape(4096, (2, 1))).result()
    assert store.digest(0) == stepwell.digest(tree) == defined(plain)
    assert store.verify(0, against=tree).ok
    tree["s"] = tree["s"].copy()
    tree["s"][1, 20, 69] += 1
    tree["s"][2, 0, 0] += 1
    assert [str(each.message) for each in store.verify(0, against=tree).problems] == [
        "differs in 2 of 5,250 elements"]


def test_meshes_chunks_codecs_and_differences_do_not_count(run_jax, tmp_path):
    status, out, err = run_jax("""
import sys, jax, numpy as np, stepwell
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("a", "b"))
w = np.random.default_rng(1).standard_normal((64, 48)).astype(np.float32)
for number, spec in enumerate([P("a", "b"), P("b"), P(None, ("a", "b")), P()]):
    array = jax.device_put(w, NamedSharding(mesh, spec))
    for codec in ("raw", "blosc"):
        with stepwell.open(f"{sys.argv[1]}{number}{codec}", codec=codec, delta=True) as store:
            store.save(0, {"w": array + 1e-3}).result()
            store.save(1, {"w": array}, chunks=stepwell.ChunkShape(4096, (1,))).result()
            store.save(2, {"w": array}).result()
            print(store.digest(1), store.digest(), stepwell.digest({"w": array}))
            assert store.verify(against={"w": array}).ok
            assert stepwell.digest({"w": store[2]["w"]}) == store.digest(2)  # views are data
            (problem,) = store.verify(0, against={"w": array}).problems
            assert problem.message == "differs in 3,072 of 3,072 elements", problem
""", tmp_path / "run", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert status == 0, err
    w = np.random.default_rng(1).standard_normal((64, 48)).astype(np.float32)
    assert set(out.split()) == {defined({"w": w})}


def test_parts_of_a_step(store):
    tree = {"a": {"w": np.arange(4), "b": 1}, "c": np.ones(3)}
    store.save(0, tree, items={"data": stepwell.Json({"epoch": [1, 2]})}).result()
    assert store.digest(0, "state/a") == stepwell.digest(tree["a"])
    assert store.digest(0, "state/a/w") == stepwell.digest(tree["a"]["w"])
    for path in ("state/**", "*/a/*", "data"):
        assert store.digest(0, path) == stepwell.digest(store.load(0, path))
    assert store.digest() == stepwell.digest({"state": tree, "data": {"epoch": [1, 2]}})
    with pytest.raises(stepwell.PathNotFoundError):
        store.digest(0, "state/d")
    with pytest.raises(stepwell.StepNotFoundError):
        store.digest(9)
    with pytest.raises(stepwell.InvalidArgumentError):
        store.digest(0, 5)


def test_what_is_no_data_is_refused():
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(stepwell.UnsupportedLeafError, match="cannot take the digest of 2 leaves"):
        stepwell.digest({"a": object(), "b": {"c": deleted}})
    with pytest.raises(stepwell.UnsupportedLeafError, match="the tree itself"):
        stepwell.digest(object())
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(stepwell.UnsupportedLeafError, match="nested"):
        stepwell.digest(cycle)


def test_without_jax(store):
    store.save(0, {"w": jnp.arange(5), "k": jax.random.key(1), "n": 2}).result()
    code = ("import sys, stepwell; store = stepwell.open(sys.argv[1], 'r'); "
            "print(store.digest(), stepwell.digest(store.load()), 'jax' in sys.modules)")
    out = subprocess.run([sys.executable, "-c", code, store.path], check=True, text=True,
                         stdout=subprocess.PIPE).stdout.split()
    assert out == [store.digest(), store.digest(), "False"]


def test_verify_names_what_differs(store):
    tree = {"w": np.arange(6, dtype=np.float32), "n": 1, "t": np.ones(2), "s": "a", "gone": 5,
            "d": np.zeros(3, np.int32), "k": jax.random.key(0)}
    store.save(3, tree).result()
    store.save(4, {"other": 1}).result()
    assert store.verify(3, against=tree).ok and store.verify(3, against=store.load(3)).ok
    w = tree["w"].copy()
    w[[1, 4]] = np.float32("nan"), -0.0
    changed = {"w": w, "n": 1.0, "t": np.ones(3), "s": "b", "new": np.zeros(1),
               "d": np.zeros(3, np.int64), "k": jax.random.key(1)}
    report = store.verify(3, against=changed)
    assert not report.ok and report.steps == 1
    assert {each.path: each.message for each in report.problems} == {
        "w": "differs in 2 of 6 elements", "n": "is int in the step, and float in the tree",
        "t": "is float64[2] in the step, and float64[3] in the tree",
        "s": "is another value in the tree", "gone": "is not in the tree",
        "new": "is in the tree, and not in the step",
        "d": "is int32[3] in the step, and int64[3] in the tree",
        "k": "differs in 1 of 2 elements"}
    assert {each.step for each in report.problems} == {3}
    assert store.verify(against={"other": 1}).ok  # the newest
    assert not store.verify(against=None).ok
    assert store.verify().ok and store.verify().steps == 2
    with pytest.raises(stepwell.UnsupportedLeafError, match="cannot compare the step with"):
        store.verify(3, against={"w": object()})
    with pytest.raises(stepwell.StepNotFoundError):
        store.verify(7, against=tree)


def test_damage_is_reported_not_compared(tmp_path):
    w = np.random.default_rng(0).standard_normal(100_000)
    with stepwell.open(tmp_path / "run") as store:
        store.save(0, {"w": w}).result()
    flip(tmp_path / "run", w.tobytes()[4000:4016])
    with stepwell.open(tmp_path / "run", "r") as store:
        (problem,) = store.verify(0, against={"w": w + 1}).problems
        assert problem.path == "w" and "differs in" not in problem.message
        with pytest.raises(stepwell.CorruptionError):
            store.digest()


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_of_many_processes(tmp_path: pathlib.Path, disks: str):
    two = machines(tmp_path, 0, 1) if disks == "local" else [tmp_path / "store"] * 2
    leaves = {str(process): ["rows", "both", "whole", "scalar", "empty"] for process in range(2)}
    said = run(two, [["open", {"disks": disks}], ["save", {"step": 1, "leaves": leaves}],
                     ["content", {"step": 1}], ["close", {}]])
    one, other = (each.gave(2) for each in said)
    assert one == other and one[0] == one[1]
