# SPDX-License-Identifier: Apache-2.0
"""`rename=` of exports and loads: names, and arrays transposed, taken apart and joined, against
NumPy's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from equality import bits, same

import stepwell
from stepwell import _mapping
from stepwell._load.mapped import MappedSource
from stepwell._stepwell import Wanted
from stepwell.rename import Fuse, Split, Stack, Transpose, Unfuse, inverse

LAYERS, WIDTH, HEADS, HIDDEN, WORDS = 3, 8, (6, 2, 2), 12, 20
NAMES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}


def numbers(*shape: int, dtype: Any = jnp.bfloat16, seed: int = 0) -> Any:
    return jax.random.normal(jax.random.key(seed + sum(shape)), shape).astype(dtype)


def llama() -> dict[str, Any]:
    """A scanned Llama of Flax: one array for all layers, kernels of inputs times outputs."""
    attn = {name: {"kernel": numbers(LAYERS, WIDTH, size, seed=seed)}
            for seed, (name, size) in enumerate(zip("qkv", HEADS, strict=True))}
    attn["o"] = {"kernel": numbers(LAYERS, HEADS[0], WIDTH, seed=7)}
    return {
        "embed": {"embedding": numbers(WORDS, WIDTH)},
        "layers": {"attn": attn,
                   "norm": {"scale": numbers(LAYERS, WIDTH, dtype=jnp.float32)},
                   "mlp": {"up": {"kernel": numbers(LAYERS, WIDTH, HIDDEN, seed=8)},
                           "down": {"kernel": numbers(LAYERS, HIDDEN, WIDTH, seed=9)}}},
        "head": {"kernel": numbers(WIDTH, WORDS, seed=10)},
    }


TO_HUGGING_FACE = [
    Split("layers/**", "layers/{}/**"),
    Transpose("**/kernel"),
    Fuse([f"layers/*/attn/{name}/kernel" for name in "qkv"], "layers/*/attn/qkv/kernel",
         sizes=HEADS),
    {"layers/*/attn/qkv/kernel": "model.layers.*.self_attn.qkv_proj.weight",
     "layers/*/attn/o/kernel": "model.layers.*.self_attn.o_proj.weight",
     "layers/*/norm/scale": "model.layers.*.input_layernorm.weight",
     "layers/*/mlp/*/kernel": "model.layers.*.mlp.*_proj.weight",
     "embed/embedding": "model.embed_tokens.weight",
     "head/kernel": "lm_head.weight"},
]


def hugging_face(state: dict[str, Any]) -> dict[str, np.ndarray]:
    """The same by hand."""
    made = {"model.embed_tokens.weight": np.asarray(state["embed"]["embedding"]),
            "lm_head.weight": np.asarray(state["head"]["kernel"]).T}
    layers = jax.tree.map(np.asarray, state["layers"])
    for i in range(LAYERS):
        before = f"model.layers.{i}."
        attn = {name: each["kernel"][i].T for name, each in layers["attn"].items()}
        made[before + "self_attn.qkv_proj.weight"] = np.concatenate(
            [attn["q"], attn["k"], attn["v"]])
        made[before + "self_attn.o_proj.weight"] = attn["o"]
        made[before + "input_layernorm.weight"] = layers["norm"]["scale"][i]
        for name in ("up", "down"):
            made[before + f"mlp.{name}_proj.weight"] = layers["mlp"][name]["kernel"][i].T
    return made


def same_file(path: Path, wanted: dict[str, np.ndarray]) -> None:
    got = safetensors.numpy.load_file(path)
    assert sorted(got) == sorted(wanted)
    for name, array in got.items():
        assert bits(array) == bits(np.ascontiguousarray(wanted[name])), name


@pytest.mark.parametrize("delta", [False, True])
def test_a_scanned_llama_goes_to_hugging_face_and_back(path, tmp_path, delta):
    state = llama()
    with stepwell.open(path, delta=delta) as store:
        store.save(1, jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].set(3), state)).result()
        store.save(2, state, metrics={"loss": 0.5}).result()
        file = tmp_path / "model.safetensors"
        report = store.export(2, file, to="safetensors", rename=TO_HUGGING_FACE)
        wanted = hugging_face(state)
        same_file(file, wanted)
        assert report.leaves == len(wanted) and report.written_bytes == file.stat().st_size
        with safetensors.safe_open(file, framework="np") as opened:
            assert opened.metadata() == {"stepwell.step": "2", "stepwell.metrics": '{"loss": 0.5}'}
        assert set(os.listdir(tmp_path)) == {"store", file.name}
        assert file.stat().st_mode & 0o777 == 0o600  # as the store's own files

        store.import_checkpoint(file, 3).result()
        back = store.load(3, like=jax.tree.map(jnp.zeros_like, state),
                          rename=inverse(TO_HUGGING_FACE))
        assert same(back, state)
        wide = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), state)
        back = store.load(3, like=wide, rename=inverse(TO_HUGGING_FACE), cast=True)
        assert same(back, jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), state))


def test_each_device_reads_its_part_of_what_rules_make(path, run_jax):
    status, out, err = run_jax("""
import sys, jax, numpy as np, pytest, stepwell
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/support"]
from equality import bits
from test_rename import TO_HUGGING_FACE, hugging_face, inverse, llama

state = llama()
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))

def placed(leaf):
    whole = leaf.shape[-2:]
    axes = [axis if extent % mesh.shape[axis] == 0 else None for axis, extent in zip("ba", whole)]
    spec = P(*[None] * (leaf.ndim - len(whole)), *axes)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

like = jax.tree.map(placed, state)
with stepwell.open(sys.argv[1]) as store:
    store.save(1, hugging_face(state)).result()
    loaded = store.load(1, like=like, rename=inverse(TO_HUGGING_FACE))
    for one, leaf, target in zip(*map(jax.tree.leaves, (loaded, state, like)), strict=True):
        assert one.sharding == target.sharding
        assert bits(np.asarray(one)) == bits(np.asarray(leaf))
    store.save(2, loaded).result()  # and sharded arrays go there, too
    store.export(2, sys.argv[1] + ".safetensors", to="safetensors", rename=TO_HUGGING_FACE)
    with pytest.raises(stepwell.InvalidArgumentError, match="give no mesh"):
        store.load(1, like=state, rename=inverse(TO_HUGGING_FACE), mesh=mesh)
print("ok")
""", path, Path(__file__).parent, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err
    same_file(path.with_name("store.safetensors"), hugging_face(llama()))


DTYPES = (np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.bool_,
          np.complex64)


def random_array(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 7, shape).astype(np.int8).astype(dtype)


def random_steps(rng: np.random.Generator, tensor: Any, array: np.ndarray) -> tuple[Any, Any]:
    """The same operations on a tensor and on an array."""
    for _ in range(rng.integers(0, 5)):
        axis = int(rng.integers(0, max(array.ndim, 1)))
        what = rng.choice(["transpose", "cut", "unstack", "stack", "join"])
        if what == "transpose":
            axes = rng.permutation(array.ndim).tolist()
            tensor, array = _mapping.transposed(tensor, axes), array.transpose(axes)
        elif what == "stack":
            tensor = _mapping.stacked([tensor, tensor], axis)
            array = np.stack([array, array], axis)
        elif array.ndim and what == "join":
            tensor, array = _mapping.joined([tensor, tensor], axis), np.concatenate(
                [array, array], axis)
        elif array.ndim and what == "cut":
            start, stop = sorted(rng.integers(0, array.shape[axis] + 1, 2).tolist())
            tensor = _mapping.cut(tensor, axis, start, stop)
            array = array[(slice(None),) * axis + (slice(start, stop),)]
        elif array.ndim and array.shape[axis]:
            place = int(rng.integers(0, array.shape[axis]))
            tensor = _mapping.unstacked(tensor, axis)[place]
            array = array.take(place, axis)
    return tensor, array


@pytest.mark.parametrize("seed", range(60))
def test_boxes_of_what_was_made_in_random_steps(store, seed):
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    shape = tuple(rng.integers(0 if seed % 7 == 0 else 1, 25, rng.integers(0, 4)).tolist())
    array = random_array(rng, dtype, shape)
    axes = tuple(rng.permutation(len(shape)).tolist())
    chunks = stepwell.ChunkShape(4096, axes) if shape else None
    store.save(1, {"x": array}, chunks=chunks).result()
    source = store._source(1)
    (number,) = source.tree.leaves(source.tree.top)
    tensor, wanted = random_steps(rng, _mapping.whole(number, array.dtype, shape), array)
    assert tensor.shape == wanted.shape
    boxes = [((0,) * wanted.ndim, wanted.shape)]
    for _ in range(8):
        pairs = [sorted(rng.integers(0, extent + 1, 2).tolist()) for extent in wanted.shape]
        boxes.append((tuple([low for low, _ in pairs]), tuple([high for _, high in pairs])))
    mapped = MappedSource(source, [tensor], [])
    got, _ = mapped.read_boxes([Wanted(len(source.tree), list(a), list(b)) for a, b in boxes])
    for (start, stop), part in zip(boxes, got, strict=True):
        box = tuple([slice(a, b) for a, b in zip(start, stop, strict=True)])
        assert bits(part) == bits(np.ascontiguousarray(wanted[box]).reshape(wanted[box].shape))
    # Elements of a box of the leaf are where `box_of` says, and nowhere else.
    if shape and array.size:
        marked = np.zeros(shape, np.int8)
        pairs = [sorted(rng.integers(0, extent + 1, 2).tolist()) for extent in shape]
        marked[tuple([slice(a, b) for a, b in pairs])] = 1
        expected = random_steps_again(seed, dtype, marked)
        found = np.zeros(wanted.shape, np.int8)
        for part_ in tensor.parts:
            box_ = part_.box_of([a for a, _ in pairs], [b for _, b in pairs])
            if box_ is not None:
                found[tuple([slice(a, b) for a, b in zip(*box_, strict=True)])] = 1
        assert np.array_equal(found, expected)


def random_steps_again(seed: int, dtype: Any, array: np.ndarray) -> Any:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0 if seed % 7 == 0 else 1, 25, rng.integers(0, 4)).tolist())
    random_array(rng, dtype, shape)
    rng.permutation(len(shape))
    return random_steps(rng, _mapping.whole(0, array.dtype, shape), array)[1]


def exported(store: stepwell.Store, folder: Path, **how: Any) -> dict[str, np.ndarray]:
    file = folder / f"{len(os.listdir(folder))}.safetensors"
    store.export(None, file, to="safetensors", **how)
    return dict(safetensors.numpy.load_file(file))


def test_functions_dicts_and_rules_in_one_list(store, tmp_path):
    store.save(1, {"a": {"w": np.arange(6).reshape(2, 3), "b/c": np.float32(2)},
                   "skip": np.ones(3)}).result()
    made = exported(store, tmp_path, rename=[
        lambda name: None if name == "skip" else name.replace("/", "."),
        Transpose("a.w"), {"a.*": "m.*"}])
    assert {name: array.tolist() for name, array in made.items()} == {
        "m.w": [[0, 3], [1, 4], [2, 5]], "m.b.c": 2.0}
    assert list(exported(store, tmp_path, path="a", rename={"w": "x"})) == ["x", "b/c"]
    loaded = store.load(like={"z": np.zeros((3, 2), np.int64), "b/c": np.float32(0)},
                        path="a", rename=[Transpose("w"),
                                          lambda name: "z" if name == "w" else name])
    assert loaded["z"].tolist() == [[0, 3], [1, 4], [2, 5]] and loaded["b/c"] == 2
    left_out = store.load(like={"a": {"w": np.zeros((2, 3), np.int64), "b/c": np.float32(0)}},
                          rename=lambda name: None if name == "skip" else name)
    assert left_out["a"]["b/c"] == 2


def test_split_and_stack_fuse_and_unfuse(store, tmp_path):
    stack = np.arange(24, dtype=np.int32).reshape(3, 2, 4)
    store.save(1, {"s": {"w": stack}, "p": np.arange(10), "n": None}).result()
    made = exported(store, tmp_path, on_unsupported="skip", rename=[
        Split("s/**", "l{}/**", axis=1), Unfuse("p", ["p/a", "p/b"], sizes=[3, 7])])
    assert sorted(made) == ["l0/w", "l1/w", "p/a", "p/b"]
    assert np.array_equal(made["l1/w"], stack[:, 1]) and made["p/b"].tolist() == [*range(3, 10)]
    there = [Split("s/**", "l{}/**", axis=1), Unfuse("p", ["p/a", "p/b"], sizes=[3, 7])]
    back = exported(store, tmp_path, on_unsupported="skip", rename=there + inverse(there))
    assert np.array_equal(back["s/w"], stack) and back["p"].tolist() == [*range(10)]
    halves = exported(store, tmp_path, on_unsupported="skip",
                      rename=Unfuse("p", ["x", "y"]))
    assert halves["y"].tolist() == [5, 6, 7, 8, 9]


def test_a_dtype_of_all_floating_point_arrays(store, tmp_path):
    state = {"w": numbers(40, 30, dtype=jnp.float32), "half": np.float16([1 / 3]),
             "n": np.arange(3), "x": 1 / 3, "fp8": np.ones(2, ml_dtypes.float8_e5m2)}
    store.save(1, state).result()
    made = exported(store, tmp_path, dtype="bfloat16", on_unsupported="widen")
    for name in ("w", "half", "x", "fp8"):
        assert bits(made[name]) == bits(np.asarray(state[name]).astype(ml_dtypes.bfloat16)), name
    assert made["n"].dtype == np.int64
    assert bits(exported(store, tmp_path, dtype=jnp.float32, on_unsupported="widen")["half"]) == (
        bits(state["half"].astype(np.float32)))
    for bad in ("int8", "nothing", np.complex64, ml_dtypes.float4_e2m1fn):
        with pytest.raises(stepwell.InvalidArgumentError, match="floating-point type that safe"):
            exported(store, tmp_path, dtype=bad)


def test_keys_small_integers_and_values(store, tmp_path):
    state = {"key": jax.random.key(3), "i4": np.arange(-8, 7).astype(ml_dtypes.int4), "n": 5}
    store.save(1, state).result()
    with pytest.raises(stepwell.InvalidArgumentError, match="cannot hold 3 parts"):
        exported(store, tmp_path, rename={"n": "m"})
    made = exported(store, tmp_path, rename=[{"n": "m"}, Transpose("i4")], on_unsupported="widen")
    assert made["i4"].dtype == np.int8 and made["i4"].tolist() == [*range(-8, 7)]
    assert made["m"].tolist() == 5 and made["key"].dtype == np.uint32
    keys = store.load(like={"k": state["key"], "i4": state["i4"], "n": 0}, rename={"key": "k"})
    assert same(keys["k"], state["key"])
    store.save(2, {"keys": jax.random.split(jax.random.key(3), 4), "n": 5}).result()
    for rule in (Split("keys", "keys/{}"), Transpose("keys")):
        with pytest.raises(stepwell.InvalidArgumentError, match="PRNG keys, which can only be"):
            store.load(like={"keys": 0, "n": 0}, rename=rule)
    with pytest.raises(stepwell.InvalidArgumentError, match="is for arrays, and 'n' is none"):
        store.load(like={"keys": 0, "n": 0}, rename=Transpose("n"))


W = {"a": {"w": np.zeros((2, 3)), "v": np.zeros((2, 4))}, "l": {"0": np.zeros(2), "2": np.zeros(2)}}


@pytest.mark.parametrize(("rename", "why"), [
    (Transpose("a/x"), "nothing"),
    ([{"a": "b"}, Transpose("a/w")], "after the rules before it, nothing is named 'a/w'; there are "
     "b/v, b/w, l/0, l/2"),
    (Transpose("a/w", (0, 0)), r"does not fit 'a/w' of 2 axes"),
    (Split("a/w", "a/{}/w", 2), "needs axis 2, but 'a/w' has 2 axes"),
    (Split("a/*", "x/{}/*"), None),
    (Stack("l/{}", "l"), "needs all numbers from 0 on for 'l'; there are 0, 2"),
    (Fuse(["a/w", "a/v"], "a/q"), r"cannot make 'a/q' of float64\[2, 3\] and float64\[2, 4\]"),
    (Fuse(["a/w", "a/v"], "a/q", 1), None),
    (Fuse(["a/w", "a/v"], "a/q", 1, sizes=[4, 3]), r"has the sizes \[4, 3\], but"),
    (Fuse(["a/w", "a/x"], "a/q", 1), "nothing"),
    (Unfuse("a/w", ["x", "y"], 1), "3 elements into 2 equal parts"),
    ({"a/w": "a/v"}, "'a/v' is the place of another leaf already"),
    ({"a/*": "b"}, "the same wildcards"),
    (lambda name: "x", "'x' is the place of another leaf already"),
    (lambda name: 3, "the function returned 3 for 'a/v', not a name"),
    (lambda name: None, "nothing is left to write"),
    (7, "must be a dict, a function, a rule of stepwell.rename, or a list"),
    ([7], "must be a dict, a function, a rule of stepwell.rename, or a list"),
    ({"a/w": "__metadata__"}, "the name of safetensors' metadata"),
])
def test_rules_that_cannot_be(store, tmp_path, rename, why):
    store.save(1, W).result()
    if why is None:
        exported(store, tmp_path, rename=rename)
        return
    with pytest.raises((stepwell.InvalidArgumentError, stepwell.PathNotFoundError), match=why):
        exported(store, tmp_path, rename=rename)
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize(("make", "why"), [
    (lambda: Split("a/w", "a/w", 0), "needs one {}"),
    (lambda: Split("a/*", "a/{}"), "the same wildcards"),
    (lambda: Stack("a/{}/{}", "a"), "needs one {}"),
    (lambda: Fuse(["a/w"], "a/q"), "a list of two paths or more"),
    (lambda: Fuse("a/w", "a/q"), "a list of two paths or more"),
    (lambda: Unfuse("a/w", ["x", "y"], 1, sizes=[3]), "a size for each of the 2 parts"),
    (lambda: Transpose(3), "takes a path or glob, not 3"),
])
def test_rules_that_cannot_be_made(make, why):
    with pytest.raises(stepwell.InvalidArgumentError, match=why):
        make()


def test_what_an_export_refuses(store, tmp_path):
    store.save(1, {"w": np.zeros((2, 3))}).result()
    for how in ({"rename": {"w": "x"}}, {"dtype": "bfloat16"}):
        for to in ("orbax", "npz"):
            with pytest.raises(stepwell.InvalidArgumentError, match="is for to='safetensors'"):
                store.export(1, tmp_path / "x", to=to, **how)
    with pytest.raises(stepwell.InvalidArgumentError, match="inside the store"):
        store.export(1, tmp_path / "store" / "x", to="safetensors", rename={"w": "x"})
    (tmp_path / "there").write_bytes(b"1")
    with pytest.raises(stepwell.StepExistsError):
        store.export(1, tmp_path / "there", to="safetensors", rename={"w": "x"})
    with pytest.raises(stepwell.PathNotFoundError, match="rename: .*there are: w"):
        store.export(1, tmp_path / "x", to="safetensors", rename={"ww": "x"})
    with pytest.raises(stepwell.InvalidArgumentError, match="a function has no inverse"):
        inverse(str.upper)
    assert set(os.listdir(tmp_path)) == {"store", "there"}


def test_a_large_export_goes_in_parts_and_can_be_stopped(store, tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell._load.slicing.PART_BYTES", 1000)
    monkeypatch.setattr("stepwell._backend.tensors.PART_BYTES", 1000)
    array = np.arange(9000, dtype=np.float32).reshape(30, 300)
    store.save(1, {"w": array, "n": np.arange(4)}).result()
    seen: list[tuple[int, int]] = []
    file = tmp_path / "model.safetensors"
    store.export(1, file, to="safetensors", rename=[Transpose("w"), {"w": "x"}],
                 progress=lambda done, total: seen.append((done, total)))
    assert same(safetensors.numpy.load_file(file)["x"], np.ascontiguousarray(array.T))
    assert len(seen) > 30 and seen[-1] == (36_032, 36_032)

    def stop(done: int, total: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.export(1, tmp_path / "other", to="safetensors", rename={"w": "x"}, progress=stop)
    assert set(os.listdir(tmp_path)) == {"store", file.name}


def test_the_rules_show_themselves():
    rules = [Split("l/**", "l/{}/**"), Transpose("**/kernel", (1, 0)),
             Fuse(["a", "b"], "c", 1, sizes=[1, 2])]
    text = ("[Unfuse('c', ['a', 'b'], 1), Transpose('**/kernel', (1, 0)), "
            "Stack('l/{}/**', 'l/**', 0)]")
    assert repr(inverse(rules)) == text and repr(inverse(inverse(rules))) == repr(rules)
    assert json.dumps(repr(inverse({"a/*": "b/*"})[0]))


@pytest.mark.parametrize("kind", ["float8_e8m0fnu", "float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_every_float_becomes_any_other(path, tmp_path, kind):
    kinds = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    values = [1.0, 2.0, 0.5, 4.0]  # which all of them have
    with stepwell.open(path) as store:
        store.save(1, {each: np.array(values, each) for each in kinds}).result()
        store.export(1, tmp_path / "x.safetensors", to="safetensors", dtype=kind)
    with stepwell.open(tmp_path / "back") as store:
        store.import_checkpoint(tmp_path / "x.safetensors", step=1).result()
        for each in kinds:
            loaded = store.load(1, each)
            assert loaded.dtype == kind and loaded.astype(np.float32).tolist() == values
