# SPDX-License-Identifier: Apache-2.0
"""Seeded pytrees with every kind of key, node, leaf and element type, over 8 devices of JAX.

To be imported when JAX has these devices (orbax_matrix.py sets them).
"""

from __future__ import annotations

import collections
import dataclasses
import random
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from flax import nnx

Pair = collections.namedtuple("Pair", "w b")
Nothing = collections.namedtuple("Nothing", "")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: Any
    bias: Any


WIDE = ["int64", "uint64", "float64", "complex128"]  # JAX has them when it is told so
DTYPES = [
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32",
    "complex64", "bfloat16", "int4", "int2", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4", "float8_e8m0fnu",
    "float4_e2m1fn", *WIDE,
]  # fmt: skip

NAMES = [
    "a", "b", "w", "kernel", "0", "1", "-1", "c", "d", "c/0", "x/y", "a.b", ".", "..", ".a", "a.",
    "x y", " ", "é %", "日本語", "q'", 'q"', "q'\"", "back\\slash", "nl\n\t\r", "\x7f\x01",
    "\x80\xad\u2028\ufeff\ue000", "\U0001f600\U0010ffff", "zarr.json", ".zarray", "manifest.ocdbt",
    "_METADATA", "~", "a/", "/a", "//", "%2F", "*?[", "", "None", "x" * 200, "$schema", "#/a~1",
]  # fmt: skip
TEXTS = ["", "adam", 'é"\\\x01\n\U0001f600', "\u2028", "long " * 3000, "{}", "null"]
FLOATS = [0.0, -0.0, 1.5, 5e-324, 1e308, float("inf"), float("-inf"), float("nan")]
INTS = [0, 1, -1, 2**31, -(2**63), 2**63 - 1, 2**53 + 1]
KEY_IMPLS = ["threefry2x32", "rbg", "unsafe_rbg"]


def is_file_name(name: str) -> bool:
    """Returns true for the name of a directory beside Orbax's own files, alone or with others'
    names before it. With a backslash Orbax does not find again what it saved."""
    if len(name) > 50 or set("/\\") & set(name):
        return False
    return name.strip(".") != "" and name[0] not in "_m"


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def meshes() -> list[jax.sharding.Mesh]:
    devices = np.array(jax.devices())
    return [
        jax.sharding.Mesh(devices.reshape(4, 2), ("x", "y")),
        jax.sharding.Mesh(devices[::-1].reshape(2, 2, 2), ("a", "b", "c")),
        jax.sharding.Mesh(devices, ("all",)),
        jax.sharding.Mesh(devices[2:6], ("four",)),
    ]


def some_sharding(chance: random.Random, shape: tuple[int, ...]) -> jax.sharding.Sharding:
    """Any that JAX can give an array of this shape."""
    if chance.random() < 0.2:
        return jax.sharding.SingleDeviceSharding(chance.choice(jax.devices()))
    mesh = chance.choice(meshes())
    axes = list(mesh.axis_names)
    chance.shuffle(axes)
    spec: list[Any] = []
    for extent in shape:
        taken: list[str] = []
        while axes and chance.random() < 0.6:
            parts = np.prod([mesh.shape[axis] for axis in [*taken, axes[-1]]])
            if extent % parts:
                break
            taken.append(axes.pop())
        spec.append(None if not taken else taken[0] if len(taken) == 1 else tuple(taken))
    while spec and spec[-1] is None and chance.random() < 0.5:
        spec.pop()
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


class Trees:
    """Makes trees. `writer`: "v0" or "v1" for only what that Orbax itself saves, or None.
    `as_files`: names are those of files."""

    def __init__(self, seed: int, writer: str | None, as_files: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.writer = writer
        self.keys = [name for name in NAMES if is_file_name(name)] if as_files else NAMES
        # Half of the trees are without what some readers of Orbax refuse always.
        self.with_texts = self.chance.random() < 0.5
        self.with_bools = self.chance.random() < 0.5

    # ---- leaves ----

    def values(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Any bits that such elements may have; now and then ones that compress."""
        count = int(np.prod(shape))
        if self.chance.random() < 0.3:
            return np.resize(self.bits(dtype, 5), count).reshape(shape)
        return self.bits(dtype, count).reshape(shape)

    def bits(self, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
        if dtype.kind == "b":
            return self.numbers.integers(0, 2, count).astype(bool)
        if dtype.name in ("int4", "int2"):
            half = 8 if dtype.name == "int4" else 2
            return self.numbers.integers(-half, half, count).astype(dtype)
        if dtype.name == "float4_e2m1fn":
            return self.numbers.integers(0, 16, count, dtype=np.uint8).view(dtype)
        return np.frombuffer(self.numbers.bytes(count * dtype.itemsize), dtype).copy()

    def shape(self, zero_allowed: bool) -> tuple[int, ...]:
        if zero_allowed and self.chance.random() < 0.1:
            return self.chance.choice([(0,), (3, 0), (0, 0, 2), (1, 0, 1)])
        rank = self.chance.choice([0, 1, 1, 2, 2, 2, 3, 5])
        return tuple(self.chance.choice([1, 2, 3, 4, 8, 8, 16]) for _ in range(rank))

    def numpy_array(self, dtype: str | None = None) -> np.ndarray[Any, Any]:
        name = dtype or self.chance.choice(DTYPES)
        array = self.values(dtype_of(name), self.shape(self.writer is None))
        kind = self.chance.randrange(20)
        if kind == 0:
            return np.asfortranarray(array)
        if kind == 1 and array.dtype.name in ("int64", "float32", "complex64"):
            return array.astype(array.dtype.newbyteorder(">"))
        if kind == 2 and array.ndim > 0:
            return np.concatenate([array, array])[::2] if len(array) % 2 == 0 else array[::-1]
        return array

    def jax_array(self, dtype: str | None = None) -> jax.Array:
        narrow = [name for name in DTYPES if jax.config.jax_enable_x64 or name not in WIDE]
        shape = self.shape(self.writer is None)
        return self.placed(self.values(dtype_of(dtype or self.chance.choice(narrow)), shape))

    def placed(self, values: Any) -> jax.Array:
        if self.chance.random() < 0.3:
            return jnp.asarray(values)
        return jax.device_put(values, some_sharding(self.chance, values.shape))

    def large(self) -> Any:
        """Several chunks, those at the edges not full."""
        shapes = [(300, 1100), (1021, 257), (64, 70, 80), (400_003,), (8, 40_000)]
        shape = self.chance.choice(shapes)
        values = self.values(np.dtype(np.float32), shape)
        return values if self.chance.random() < 0.5 else self.placed(values)

    def key(self) -> jax.Array:
        key = jax.random.key(self.chance.randrange(2**31), impl=self.chance.choice(KEY_IMPLS))
        if self.chance.random() < 0.4:
            return key
        keys = jax.random.split(key, self.chance.choice([(1,), (3,), (2, 4)]))
        if self.chance.random() < 0.5:
            return keys
        return jax.device_put(keys, some_sharding(self.chance, keys.shape))

    def scalar(self) -> Any:
        kinds = [*INTS, *FLOATS]
        if self.with_bools:
            kinds += [True, False] * 4
        if self.writer != "v1":
            kinds += [np.float32(2.5), np.int64(-(2**63)), np.float64(float("nan")), np.int32(4),
                      np.uint8(200), np.int16(-5), np.uint64(7), np.float16(0.1)]
        if self.writer is None:
            kinds += [2**64 - 1, np.uint64(2**64 - 1), np.int8(-3), np.bool_(True),
                      ml_dtypes.bfloat16(-1.5), ml_dtypes.float8_e5m2(0.25), np.complex64(1 - 2j)]
        return self.chance.choice(kinds)

    def leaf(self, path: tuple[str, ...]) -> Any:
        kind = self.chance.randrange(12)
        if kind < 4:
            return self.numpy_array()
        if kind < 8:
            return self.jax_array()
        if kind == 8:
            return self.key()
        if kind == 9:
            return self.scalar()
        if kind == 10 and self.with_texts and "~" not in "".join(path):  # Orbax saves no such
            return self.chance.choice(TEXTS)
        return self.chance.choice([None, {}, [], (), Nothing(), self.numpy_array()])

    # ---- nodes ----

    def names(self, count: int) -> list[str]:
        names = [f"k{self.chance.randrange(1000)}" if self.chance.random() < 0.5
                 else self.chance.choice(self.keys) for _ in range(count)]
        return list(dict.fromkeys(names))

    def node(self, path: tuple[str, ...], depth: int) -> Any:
        if depth == 0 or self.chance.random() < 0.3:
            return self.leaf(path)
        count = self.chance.randrange(1, 5)

        def child(name: object) -> Any:
            return self.node((*path, str(name)), depth - 1)

        kind = self.chance.randrange(10)
        if kind < 4:
            return {name: child(name) for name in self.names(count)}
        if kind == 4:
            numbers = self.chance.sample(range(-3, 99), count)
            return {number: child(number) for number in numbers}
        if kind == 5:
            return [child(number) for number in range(count)]
        if kind == 6:
            return tuple(child(number) for number in range(count))
        if kind == 7:
            return Pair(child("w"), child("b"))
        if kind == 8:
            names = self.names(count)
            return collections.OrderedDict((name, child(name)) for name in names)
        return Layer(child("kernel"), child("bias"))

    def fixed(self) -> dict[str, Any]:
        """Returns the leaves that every tree has."""
        narrow = [name for name in DTYPES if jax.config.jax_enable_x64 or name not in WIDE]
        dtypes = self.chance.sample(DTYPES, 6)
        return {
            "numpy": {name: self.numpy_array(name) for name in dtypes},
            "jax": {name: self.jax_array(name) for name in self.chance.sample(narrow, 5)},
            "random": self.bits(np.dtype(np.float32), 330_000).reshape(300, 1100),
            "repeats": self.placed(np.resize(self.bits(np.dtype(np.int16), 9), (800, 1000))),
            "large": [self.large()],
            "rank0": [self.placed(np.float32(self.chance.random())), np.array(7)],
            "key": self.key(),
            "empty": [{}, [], (), None, Nothing()],
            "optax": optax.adam(1e-3).init({"w": jnp.ones((2, 3))}),
            "nnx": nnx.to_pure_dict(nnx.state(nnx.BatchNorm(4, rngs=nnx.Rngs(0)))),
            "scalars": [self.scalar() for _ in range(3)],
            "text": self.chance.choice(TEXTS) if self.with_texts else None,
        }

    def tree(self) -> Any:
        """Names that Orbax cannot tell apart do not come: another tree is made."""
        while True:
            tree: Any = self.fixed()
            for name in self.names(6):
                tree[name] = self.node((name,), 3)
            if self.seed % 7 == 6:  # a root that is not a dict
                tree = self.chance.choice([list, tuple, lambda nodes: Layer(nodes[:9], nodes[9:])])(
                    list(tree.values()))
            if self.seed % 50 == 49:  # several nodes of OCDBT
                tree["many"] = [np.int32([number]) for number in range(3000)]
            if are_distinct(tree):
                return tree


def component(key: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            return str(getattr(key, field))
    raise TypeError(f"{key!r} is not a key of a tree")


def param_names(tree: Any) -> dict[str, Any]:
    """Leaves by Orbax's names for them; of leaves named alike the last."""
    return {".".join(map(component, path)): leaf
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def are_distinct(tree: Any) -> bool:
    """Returns true if Orbax can hold all of its leaves: no two at one place, no string at a place
    where _strings.json, whose levels are the parts between "/", has others below."""
    names = param_names(tree)
    texts = [name for name, leaf in names.items() if isinstance(leaf, str)]
    places = {name if name.endswith("/") else name + "/" for name in names}
    return len(places) == len(jax.tree.leaves(tree)) and not any(
        other.startswith(name + "/") for name in texts for other in texts)
