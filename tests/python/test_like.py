# SPDX-License-Identifier: Apache-2.0
"""Loading into a target: what leaves become, and what does not fit."""

from __future__ import annotations

import collections
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from equality import bits, same

import stepwell


def test_leaves_become_what_like_has(store):
    store.save(0, {"x": np.arange(3, dtype=np.float32), "y": jnp.ones(2)}).result()
    into = store.load(0, like={"x": jnp.zeros(3), "y": np.zeros(2, np.float32)})
    assert isinstance(into["x"], jax.Array)
    assert type(into["y"]) is np.ndarray
    device = jax.devices()[0]
    bound = jax.device_put(jnp.zeros(3), device)
    assert store.load(0, "x", like=bound).committed
    assert not store.load(0, "x", like=jnp.zeros(3)).committed
    abstract = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert not store.load(0, "x", like=abstract).committed
    placed = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=bound.sharding)
    assert store.load(0, "x", like=placed).sharding == bound.sharding


SCALARS = [(True, np.array(False)), (3, np.array(0)), (3, np.array(0, np.uint8)),
           (0.5, np.array(1.0)), (0.5, np.array(0, np.float16)),
           (0.5, np.array(0, ml_dtypes.bfloat16)),
           (1j, np.array(0j)), (3, np.int64(1)), (0.5, np.float32(1))]


@pytest.mark.parametrize(("scalar", "array"), SCALARS, ids=str)
def test_python_scalars_and_0d_arrays(store, scalar, array):
    store.save(0, {"x": scalar}).result()
    loaded = store.load(0, like={"x": array})["x"]
    assert type(loaded) is type(array)
    assert bits(np.asarray(loaded)) == bits(np.asarray(scalar, array.dtype))
    store.save(1, {"x": np.asarray(scalar, array.dtype)}).result()
    back = store.load(1, like={"x": scalar})["x"]
    assert type(back) is type(scalar)
    assert back == scalar


def test_a_counter_that_became_a_jax_scalar(store):
    store.save(0, {"step": jnp.int32(5)}).result()
    assert bits(store.load(0, like={"step": 0})["step"]) == bits(5)
    store.save(1, {"step": 7}).result()
    assert bits(store.load(1, like={"step": jnp.int32(0)})["step"]) == bits(jnp.int32(7))
    store.save(2, {"step": 2**40}).result()
    with pytest.raises(stepwell.MismatchError, match="1099511627776 does not fit int32"):
        store.load(2, like={"step": jnp.int32(0)})


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float8_e4m3fn])
def test_a_float_that_would_become_an_infinity(store, dtype):
    store.save(0, {"scale": 1e30, "inf": float("inf")}).result()
    like = {"scale": np.zeros((), dtype), "inf": np.float32(0)}
    with pytest.raises(stepwell.MismatchError,
                       match=r"the stored float 1e\+30 does not fit float.*\n.*cast=.wrap") as info:
        store.load(0, like=like)
    assert [mismatch.path for mismatch in info.value.dtype] == ["scale"]
    assert not np.isfinite(store.load(0, like=like, cast="wrap")["scale"])
    like = {"scale": jnp.float32(0), "inf": np.zeros((), np.float16)}
    loaded = store.load(0, like=like)
    assert loaded["inf"] == np.inf and bits(loaded["scale"]) == bits(jnp.float32(1e30))


def test_dtypes_are_compared_as_jax_would_have_them(store):
    store.save(0, {"x": np.arange(3)}).result()
    assert bits(store.load(0, like={"x": jnp.arange(3)})["x"]) == bits(jnp.arange(3))
    with pytest.raises(stepwell.MismatchError, match=r"x: stored int64\[3\], wanted int32\[3\]"):
        store.load(0, like={"x": np.arange(3, dtype=np.int32)})
    with pytest.raises(stepwell.MismatchError, match=r"stored int64\[3\], wanted float32\[3\]"):
        store.load(0, like={"x": jnp.zeros(3)})


def test_x64(run_python, path):
    status, out, err = run_python("""
import sys, jax, jax.numpy as jnp, numpy as np, stepwell
with stepwell.open(sys.argv[1]) as store:
    store.save(0, {"x": np.arange(3) + 2**40}).result()
    x = store.load(0, like={"x": jnp.arange(3)})["x"]
    assert x.dtype == jnp.int64 and x[0] == 2**40, x
    try:
        store.load(0, like={"x": jnp.arange(3, dtype=jnp.int32)})
    except stepwell.MismatchError:
        print("refused")
""", path, JAX_ENABLE_X64="1")
    assert (status, out) == (0, "refused\n"), err


def test_all_mismatches_in_one_error(store):
    store.save(5, {"a": np.zeros((2, 3)), "b": np.zeros(2), "c": 1, "d": {"x": 1}, "e": [1, 2],
                   "kernel": 1, "none": None, "t": "text"}).result()
    like = {"a": np.zeros((3, 2)), "b": np.zeros(2, np.float32), "c": 1.0, "d": 3, "e": [1],
            "kernl": 1, "none": 0, "t": b""}
    with pytest.raises(stepwell.MismatchError) as info:
        store.load(5, like=like)
    messages = {m.path: m.message for m in info.value.mismatches}
    assert messages == {
        "a": "stored float64[2, 3], wanted float64[3, 2]",
        "b": "stored float64[2], wanted float32[2]",
        "c": "stored int, wanted float",
        "d": "stored a dict of 1, wanted int",
        "e/1": "stored int, not in `like`",
        "kernl": "missing in the store, wanted int (nearest: 'kernel')",
        "kernel": "stored int, not in `like`",
        "none": "stored None, wanted int",
        "t": "stored str, wanted bytes",
    }
    text = str(info.value)
    assert text.startswith("step 5: 9 leaves do not fit `like`:\n")
    for path, message in messages.items():
        assert f"\n  {path}: {message}" in text
    assert isinstance(info.value, ValueError)


def test_a_leaf_where_like_has_a_container(store):
    store.save(0, {"a": 1}).result()
    with pytest.raises(stepwell.MismatchError, match="a: stored int, wanted a dict"):
        store.load(0, like={"a": {"b": 1}})


def test_subtree_into_a_target(store):
    store.save(0, {"params": {"w": np.ones(3)}, "opt": {"m": np.zeros(3)}}).result()
    assert store.load(0, "params", like={"w": np.zeros(3)})["w"].tolist() == [1, 1, 1]
    assert store.stats()["last_load"]["bytes_out"] == 24


def test_glob_into_a_flat_dict(store):
    store.save(0, {"p": {"a": np.ones(3, np.float32), "b": 2}}).result()
    out = store.load(0, "p/*", like={"p/a": jnp.zeros(3), "p/b": 0})
    assert isinstance(out["p/a"], jax.Array) and out["p/b"] == 2
    with pytest.raises(stepwell.MismatchError, match="p/b: stored int, not in `like`"):
        store.load(0, "p/*", like={"p/a": jnp.zeros(3)})


def test_an_unusable_like(store):
    store.save(0, {"x": 1}).result()
    with pytest.raises(stepwell.UnsupportedLeafError, match="x: a leaf of type builtins.object"):
        store.load(0, like={"x": object()})


def test_functions_come_from_like(store):
    store.save(0, {"f": len, "x": 1}).result()
    assert store.load(0) == {"x": 1}
    assert store.load(0, like={"f": sum, "x": 0}) == {"f": sum, "x": 1}


def test_load_or(store):
    init = {"x": jnp.zeros(3)}
    assert store.load_or(init) == (init, 0)
    store.save(41, {"x": jnp.ones(3)}).result()
    state, start = store.load_or(init)
    assert start == 42 and state["x"].tolist() == [1, 1, 1]
    with pytest.raises(stepwell.MismatchError):  # never a silent fallback
        store.load_or({"x": jnp.zeros(4)})


def test_sharded_arrays(run_jax, path):
    status, out, err = run_jax("""
import sys, jax, jax.numpy as jnp, numpy as np, stepwell
from jax.sharding import NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 8
mesh = jax.make_mesh((4, 2), ("x", "y"))
array = jnp.arange(64 * 24.0).reshape(64, 24)
specs = {"both": P("x", "y"), "rows": P("x"), "columns": P(None, "y"), "none": P(),
         "joined": P(("x", "y"))}
tree = {k: jax.device_put(array, NamedSharding(mesh, s)) for k, s in specs.items()}
tree["last"] = jax.device_put(array, jax.devices()[7])
keys = jax.random.split(jax.random.key(0), 8)
tree["keys"] = jax.device_put(keys, NamedSharding(mesh, P("x")))
with stepwell.open(sys.argv[1]) as store:
    store.save(0, tree).result()
    for name in specs:
        np.testing.assert_array_equal(store.load(0, name), array)
        noted = store[0][name].sharding
        assert noted["sharding_type"] == "NamedSharding" and noted["axis_names"] == ["x", "y"]
        from orbax.checkpoint._src.metadata.sharding import from_serialized_string
        import json
        again = from_serialized_string(json.dumps(noted)).to_jax_sharding()
        assert again.is_equivalent_to(tree[name].sharding, 2), (again, tree[name].sharding)
    same = store.load(0, like=tree)
    for name in specs:
        assert same[name].sharding == tree[name].sharding and same[name].committed
        np.testing.assert_array_equal(same[name], array)
    assert same["last"].devices() == {jax.devices()[7]}
    assert same["keys"].sharding == tree["keys"].sharding and (same["keys"] == keys).all()
    other = NamedSharding(jax.make_mesh((8,), ("z",)), P("z"))
    moved = store.load(0, "both", like=jax.ShapeDtypeStruct((64, 24), jnp.float32, sharding=other))
    assert moved.sharding == other
    np.testing.assert_array_equal(moved, array)
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


LEAFLESS = [None, (), [], {}, optax.EmptyState(), [None, ()], {"a": {}}]


@pytest.mark.parametrize("wanted", LEAFLESS, ids=str)
@pytest.mark.parametrize("stored", LEAFLESS, ids=str)
def test_one_container_without_leaves_is_as_good_as_another(store, stored, wanted):
    store.save(0, {"x": stored, "w": 1}).result()
    like = {"x": wanted, "w": 0}
    loaded = store.load(0, like=like)
    assert loaded == {"x": wanted, "w": 1} and type(loaded["x"]) is type(wanted)
    assert wanted is None or wanted == () or loaded["x"] is not wanted


@pytest.mark.parametrize(("stored", "wanted", "message"), [
    (None, 0, "x: stored None, wanted int"),
    (None, {"a": 0}, "x: stored None, wanted a dict"),
    ((), {"a": 0}, "x/a: missing in the store, wanted int"),
    ({"a": None}, {"a": 0}, "x/a: stored None, wanted int"),
    (3, optax.EmptyState(), "x: stored int, wanted an EmptyState"),
    ({"a": 3}, optax.EmptyState(), "x/a: stored int, not in `like`"),
    ({"a": 3, "b": None}, {}, "x/a: stored int, not in `like`"),
    ({"a": 3}, None, "x: stored a dict of 1, wanted None"),
    ({"a": 3}, len, "x: stored dict of 1, `like` has a builtin_function_or_method"),
], ids=str)
def test_a_missing_leaf_is_an_error(store, stored, wanted, message):
    store.save(0, {"x": stored, "w": 1}).result()
    with pytest.raises(stepwell.MismatchError) as info:
        store.load(0, like={"x": wanted, "w": 0})
    assert message in str(info.value)
    with pytest.raises(stepwell.MismatchError):
        store.load_or({"x": wanted, "w": 0})


@pytest.mark.parametrize("leaf", [0.5, np.ones(2), jnp.ones(2), {"a": 1}, [jnp.ones(2)]], ids=str)
def test_none_is_a_subtree_without_leaves(store, leaf):
    """A field that was None until now, or is None from now on, as JAX sees it."""
    store.save(0, {"x": None, "w": 1}).result()
    store.save(1, {"x": leaf, "w": 1}).result()
    assert same(store.load(0, like={"x": leaf, "w": 0}, missing="target"), {"x": leaf, "w": 1})
    assert store.load(1, like={"x": None, "w": 0}, unexpected="ignore") == {"x": None, "w": 1}
    with pytest.raises(stepwell.MismatchError, match='missing="target" takes') as info:
        store.load(0, like={"x": leaf, "w": 0}, unexpected="ignore")
    if isinstance(leaf, (dict, list)):
        assert [mismatch.path for mismatch in info.value.missing] == ["x"]
    with pytest.raises(stepwell.MismatchError, match='unexpected="ignore" leaves out') as info:
        store.load(1, like={"x": None, "w": 0}, missing="target")
    assert [mismatch.path for mismatch in info.value.unexpected] == ["x"]


def test_an_abstract_leaf_is_not_taken_for_a_stored_none(store):
    store.save(0, {"x": None, "y": 1}).result()
    with pytest.raises(stepwell.MismatchError, match="`like` has no value for float32"):
        store.load(0, like={"x": jax.ShapeDtypeStruct((2,), "float32"), "y": 1}, missing="target")


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_jax_has_no_room_for(store, dtype):
    store.save(0, {"n": np.array([1, 7], dtype), "w": np.array([1e300, 0.1])}).result()
    store.save(1, {"n": np.array([1, 2**40], dtype), "w": np.ones(2)}).result()
    like = {"n": jnp.zeros(2, np.dtype(dtype[:-2] + "32")), "w": jnp.zeros(2)}
    assert store.load(0, like=like)["n"].tolist() == [1, 7]
    with pytest.raises(stepwell.MismatchError, match=f"n: stored {dtype} values do not fit"):
        store.load(1, like=like)
    assert store.load(1, like=like, cast="wrap")["n"].tolist() == [1, 0]


def test_keys_and_their_data(store):
    data = jax.random.PRNGKey(3)
    store.save(0, {"typed": jax.random.key(3), "raw": data, "n": 1}).result()
    for like in ({"typed": data, "raw": data}, {"typed": jax.random.key(0),
                                                "raw": jax.random.key(0)}):
        with pytest.raises(stepwell.MismatchError, match="jax.random.wrap_key_data"):
            store.load(0, like={**like, "n": 0})


def test_transfer_guards(run_jax, path):
    """Saves and loads transfer what they are asked to."""
    status, out, err = run_jax("""
import sys, jax, jax.numpy as jnp, numpy as np, stepwell
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
sharding = NamedSharding(Mesh(np.array(jax.devices()), "d"), P("d"))
state = {"sharded": jax.device_put(jnp.arange(8), sharding), "weak": jnp.asarray(2.0),
         "keys": jax.device_put(jax.random.split(jax.random.key(0), 8), sharding), "n": 1}
with stepwell.open(sys.argv[1]) as store, jax.transfer_guard("disallow"):
    store.save(0, state).result()
    loaded = store.load(0, like=state)
    store.load(0, as_="jax")
    store.load(0, mesh={"d": 8}, specs={"sharded": P("d")})
assert loaded["sharded"].sharding == sharding
np.testing.assert_array_equal(loaded["sharded"], state["sharded"])
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.ndarray, jnp.float32])
def test_classes_come_from_like(store, kind):
    class Layer(eqx.Module):
        weight: jax.Array
        dtype: Any

    for step, make in enumerate([lambda weight: {"weight": weight, "dtype": kind},
                                 lambda weight: Layer(weight, kind)]):
        store.save(step, make(jnp.ones(2))).result()
        assert list(store.tree(step)) == ["weight"]
        loaded = store.load(step, like=make(jnp.zeros(2)))
        assert same(loaded, make(jnp.ones(2)))
    with pytest.raises(stepwell.MismatchError, match="weight: stored float32.2., `like` has a"):
        store.load(0, like={"weight": kind})


# ---- casts --------------------------------------------------------------------------------------

_NAN, _INF = float("nan"), float("inf")


_CHANGED = [
    (np.array([[1.0, 2.0], [1e20, 4.0]]), np.int32, [1, 0]),
    (np.array([3, -5], np.int64), np.uint8, [1]),
    (np.array([1, 256], np.int32), np.uint8, [1]),
    (np.array([0, 2**63], np.uint64), np.int64, [1]),
    (np.array([-1, 0], np.int8), np.uint64, [0]),
    (np.array([0, 8], np.int8), ml_dtypes.int4, [1]),
    (np.array([2.0**31], np.float32), np.int32, [0]),
    (np.array([1.0, _NAN]), np.int16, [1]),
    (np.array([_INF], np.float16), np.int16, [0]),
    (np.array([-129.0, 1.0]).astype(ml_dtypes.bfloat16), np.int8, [0]),
    (np.array([1e300]), np.float32, [0]),
    (np.array([70_000]), np.float16, [0]),
    (np.array([1.0, 500.0], np.float32), ml_dtypes.float8_e4m3fn, [1]),
    (np.array([1e300 + 1j]), np.complex64, [0]),
    (np.array(-1.0), np.uint32, []),
]


@pytest.mark.parametrize(("stored", "wanted", "index", "kind"), [
    (*each, kind) for each in _CHANGED for kind in ("numpy", "jax")
    if kind == "numpy" or jax.dtypes.canonicalize_dtype(each[1]) == each[1]])
def test_a_value_that_a_cast_would_change_is_named(store, stored, wanted, index, kind):
    store.save(1, {"a": {"w": stored}}).result()
    like = (jax.ShapeDtypeStruct(stored.shape, wanted) if kind == "jax"
            else np.zeros(stored.shape, wanted))
    value = stored[tuple(index)]
    with pytest.raises(stepwell.MismatchError) as raised:
        store.load(1, like={"a": {"w": like}}, cast=True)
    (found,) = raised.value.mismatches
    assert (found.path, found.kind) == ("a/w", "dtype")
    assert f"{value} at {index} does not fit {np.dtype(wanted)}" in found.message
    assert 'cast="wrap"' in str(raised.value)
    with np.errstate(all="ignore"):
        wrapped = stored.astype(wanted)
    loaded = np.asarray(store.load(1, like={"a": {"w": like}}, cast="wrap")["a"]["w"])
    assert loaded.dtype == wrapped.dtype and loaded.tobytes() == wrapped.tobytes()


@pytest.mark.parametrize(("stored", "wanted"), [
    (np.array([-128.9, 127.9]), np.int8), (np.array([-0.9, 255.5], np.float32), np.uint8),
    (np.array([-2.0**63, 2.0**62]), np.int64), (np.array([_INF, _NAN, 1e30]), np.float32),
    (np.array([3.14159]), ml_dtypes.bfloat16), (np.array([_NAN, 2.0]), np.bool_),
    (np.array([True, False]), np.uint8), (np.array([2**63 - 1]), np.float32),
    (np.array([-8, 7], np.int64), ml_dtypes.int4), (np.zeros((0, 3)), np.uint8),
    (np.array([-1, 7]).astype(ml_dtypes.int4), np.int8)])
def test_casts_round(store, stored, wanted):
    store.save(1, {"w": stored}).result()
    loaded = store.load(1, like={"w": np.zeros(stored.shape, wanted)}, cast=True)["w"]
    assert loaded.dtype == wanted and loaded.tobytes() == stored.astype(wanted).tobytes()


def test_a_cast_of_shards_names_the_index_in_the_whole_array(store):
    stored = np.zeros((8, 6))
    stored[5, 4] = -7
    store.save(1, {"w": stored}).result()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    like = {"w": jax.ShapeDtypeStruct((8, 6), np.uint8, sharding=jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec("x")))}
    with pytest.raises(stepwell.MismatchError, match=r"-7.0 at \[5, 4\] does not fit uint8"):
        store.load(1, like=like, cast=True)


def test_python_numbers_are_cast_alike(store):
    store.save(1, {"f": 1e20, "n": _NAN, "i": -5, "a": np.array(_NAN)}).result()
    for name, wanted in (("f", np.zeros((), np.int32)), ("n", np.zeros((), np.int32)),
                         ("i", np.zeros((), np.uint8)), ("f", np.zeros((), np.float16)), ("a", 1)):
        with pytest.raises(stepwell.MismatchError, match="does not fit"):
            store.load(1, name, like=wanted, cast=True)
    assert store.load(1, "i", like=np.zeros((), np.uint8), cast="wrap") == 251
    with pytest.raises(stepwell.InvalidArgumentError, match="cast must be False or True or 'wrap'"):
        store.load(1, "f", like=1.0, cast="yes")


@jax.tree_util.register_pytree_with_keys_class
class _Registered(dict):  # type: ignore[type-arg]  # a class of JAX's registry that can change
    def tree_flatten_with_keys(self):
        return [(jax.tree_util.DictKey(k), v) for k, v in self.items()], tuple(self)

    @classmethod
    def tree_unflatten(cls, keys, children):
        return cls(zip(keys, children, strict=True))


@pytest.mark.parametrize("change", ["order", "name", "size"])
@pytest.mark.parametrize("extra", [False, True], ids=["as stored", "one more in like"])
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, _Registered,
                                  lambda items: collections.defaultdict(list, items)],
                         ids=["dict", "OrderedDict", "registered", "defaultdict"])
def test_like_may_change_while_it_is_loaded(store, kind, extra, change):
    state = {"a": np.full(3, 1.0), "b": np.full(3, 2.0)}
    store.save(0, {"inside": kind(state)}).result()
    like = kind({name: np.zeros(3) for name in (*state, *["c"] * extra)})

    def meanwhile(done: int, total: int) -> None:
        first = like.pop(next(iter(like)))
        if change != "size":
            like["a" if change == "order" else "z"] = first

    loaded = store.load(0, like={"inside": like}, missing="target", progress=meanwhile)["inside"]
    assert type(loaded) is type(like)
    assert list(loaded) == [*state, *["c"] * extra]  # as it was
    for name, array in state.items():
        np.testing.assert_array_equal(loaded[name], array)
