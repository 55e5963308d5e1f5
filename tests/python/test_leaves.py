# SPDX-License-Identifier: Apache-2.0
"""Every dtype and every kind of leaf, bit for bit."""

from __future__ import annotations

import re
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from equality import bits

import stepwell
from stepwell._pytree import dtypes

DTYPES = sorted(dtypes.NUMBERS, key=lambda dtype: dtypes.NUMBERS[dtype])


def sample(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Every bit pattern that the type can have, NaNs and negative zeros among them."""
    count = int(np.prod(shape))
    random = np.random.default_rng(0)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(bool)
    low, high = {"int2": (-2, 2), "int4": (-8, 8), "uint2": (0, 4), "uint4": (0, 16)}.get(
        dtype.name, (0, 0))
    if high:  # sign-extended, as ml_dtypes keeps them
        return random.integers(low, high, shape).astype(np.int8).astype(dtype)
    if dtype.name == "float4_e2m1fn":
        return random.integers(0, 16, count).astype(np.uint8).view(dtype).reshape(shape)
    raw = random.integers(0, 256, count * dtype.itemsize).astype(np.uint8)
    return raw.view(dtype).reshape(shape)


def test_all_dtypes_are_known():
    names = {dtype.name for dtype in DTYPES}
    assert {"bool", "int2", "uint4", "int64", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu",
            "float4_e2m1fn", "complex64", "complex128"} <= names
    assert len(DTYPES) == 28


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (7, 11, 13)], ids=str)
def test_numpy_arrays(store, dtype, shape):
    array = sample(dtype, shape)
    store.save(0, {"x": array}).result()
    loaded = store.load(0, "x")
    assert bits(loaded) == bits(array)
    assert loaded.flags.writeable and loaded.flags.c_contiguous
    assert bits(store.load(0, "x", like=np.zeros(shape, dtype))) == bits(array)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.name not in ("int64", "uint64", "float64",
                                                                      "complex128")], ids=str)
def test_jax_arrays(store, dtype):
    array = jnp.asarray(sample(dtype, (9, 5)))
    store.save(0, {"x": array}).result()
    loaded = store.load(0, like={"x": jax.ShapeDtypeStruct((9, 5), dtype)})["x"]
    assert bits(loaded) == bits(array)
    assert bits(store.load(0, "x")) == bits(np.asarray(array))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_scalars(store, dtype):
    scalar = sample(dtype, (1,))[0]
    store.save(0, {"x": scalar}).result()
    assert bits(store.load(0, "x")) == bits(scalar)
    assert bits(store.load(0, "x", like=scalar)) == bits(scalar)


def test_negative_small_ints_keep_their_memory(store):
    array = np.array([-8, -1, 7], ml_dtypes.int4)
    store.save(0, array).result()
    assert store.load(0).astype(int).tolist() == [-8, -1, 7]


def test_nan_payloads_and_negative_zeros(store):
    patterns = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x00000001], np.uint32)
    tree = {"np": patterns.view(np.float32), "jax": jnp.asarray(patterns.view(np.float32)),
            "py": struct.unpack("<d", struct.pack("<Q", 0x7FF8DEADBEEF0001))[0], "zero": -0.0,
            "complex": complex(-0.0, float("nan")), "np0": np.float32(-0.0)}
    store.save(0, tree).result()
    loaded = store.load(0)
    assert loaded["np"].tobytes() == patterns.tobytes()
    assert loaded["jax"].tobytes() == patterns.tobytes()
    assert bits(loaded["py"]) == bits(tree["py"])
    assert bits(loaded["zero"]) == bits(-0.0)
    assert bits(loaded["complex"].real) == bits(-0.0)
    assert bits(loaded["np0"]) == bits(np.float32(-0.0))
    into = store.load(0, "jax", like=jax.ShapeDtypeStruct((5,), jnp.float32))
    assert np.asarray(into).tobytes() == patterns.tobytes()


PYTHON_VALUES = [0, -1, 2**63, -(2**200), 10**5000, True, False, 0.5, float("inf"), 1 + 2j, "",
                 "é☃", "\udcff", "x" * 5000, b"", b"\x00\xff", b"y" * 5000, None]


def test_python_values(round_trip):
    loaded = round_trip(PYTHON_VALUES)
    assert loaded == PYTHON_VALUES
    assert [type(value) for value in loaded] == [type(value) for value in PYTHON_VALUES]


def test_non_contiguous_arrays(store):
    base = np.arange(24.0).reshape(4, 6)
    tree = {"transposed": base.T, "strided": base[::2, ::-3], "fortran": np.asfortranarray(base),
            "broadcast": np.broadcast_to(np.float32(3), (4, 5)), "big": base.astype(">f8"),
            "big_int": np.arange(5, dtype=">i4"), "reversed": base[::-1]}
    store.save(0, tree).result()
    for name, array in tree.items():
        np.testing.assert_array_equal(store.load(0, name), array)
        assert store.load(0, name).dtype.isnative


def test_memmap(store, tmp_path):
    array = np.memmap(tmp_path / "map", np.float32, "w+", shape=(10,))
    array[:] = 3
    store.save(0, {"x": array}).result()
    assert store.load(0, "x").tolist() == [3] * 10


def test_texts_and_keys_of_numpy_are_those_of_python(round_trip):
    state = {"names": [np.str_("a"), np.bytes_(b"b")], np.int64(3): np.str_("")}
    loaded = round_trip(state)
    assert loaded == {"names": ["a", b"b"], 3: ""}
    assert [type(each) for each in loaded["names"]] == [str, bytes]


def test_masked_arrays_are_refused(store):
    with pytest.raises(stepwell.UnsupportedLeafError, match="x: is a MaskedArray"):
        store.save(0, {"x": np.ma.array([1, 2], mask=[0, 1])})


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_prng_keys(round_trip, store, impl):
    key = jax.random.key(7, impl=impl)
    loaded = round_trip({"one": key, "many": jax.random.split(key, 6).reshape(2, 3)})
    assert jax.random.key_impl(loaded["one"]) == jax.random.key_impl(key)  # without `like`, too
    assert bits(loaded["one"]) == bits(key)
    assert store.tree(0)["many"].kind == "key"
    abstract = jax.eval_shape(lambda: {"one": key, "many": jax.random.split(key, 6).reshape(2, 3)})
    restored = store.load(0, like=abstract)
    assert bits(restored["one"]) == bits(key)
    other = jax.random.key(0, impl="rbg" if impl == "threefry2x32" else "threefry2x32")
    # The store and the target spell kinds and shapes alike, as jax.random.key(impl=) does.
    spelled = {name: f"key<{name}> uint32[{2 if name == 'threefry2x32' else 4}]"
               for name in (impl, str(jax.random.key_impl(other)))}
    stored, wanted = map(re.escape, spelled.values())
    for like in (other, jax.eval_shape(lambda: other)):
        with pytest.raises(stepwell.MismatchError, match=f"stored {stored}, wanted {wanted}$"):
            store.load(0, "one", like=like)


def test_legacy_prng_keys(round_trip):
    round_trip({"key": jax.random.PRNGKey(0)})


def test_weak_types_and_commitment(round_trip):
    device = jax.devices()[0]
    round_trip({"weak": jnp.asarray(3), "weak_vector": jnp.asarray(2.0) * 1,
                "free": jnp.ones(3), "bound": jax.device_put(jnp.ones(3), device)})


def test_large_arrays_of_many_chunks(store):
    random = np.random.default_rng(1)
    tree = {"f32": random.standard_normal((1237, 1031)).astype(np.float32),
            "zeros": np.zeros((3000, 1000), np.float32),
            "odd": random.integers(0, 255, 4_000_037).astype(np.uint8)}
    store.save(0, tree).result()
    for name, array in tree.items():
        assert bits(store.load(0, name)) == bits(array)
    np.testing.assert_array_equal(store[0]["f32"][100:200, ::7], tree["f32"][100:200, ::7])
