# SPDX-License-Identifier: Apache-2.0
"""Pytrees to rows and back.

A *component* is a tuple (type, value): (KEY, "a"), (INT_KEY, 5), (INDEX, 0), (ATTRIBUTE, "name");
a *path* is a tuple of components. A *row* is what the C++ side takes (api/python/leaves.cc):

    (path, NODE, container, type_name, child_count)
    (path, ARRAY, ndarray, dtype, value_type, hold, weak_type, prng_impl, sharding, shard_shape)
    (path, VALUE, value_type, bytes)
    (path, JAX, jax.Array, dtype, weak_type, sharding)

JAX is looked up in `sys.modules` and never imported from here: where it is not loaded there can be
no JAX value.
"""

from __future__ import annotations

import collections
import functools
import json
import struct
import sys
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ._dtypes import NUMBERS, number_of
from .errors import UnsupportedLeafError

Component = tuple[int, Any]
Path = tuple[Component, ...]
Row = tuple[Any, ...]

# format::PathComponent::Type
INT_KEY, INDEX, KEY, ATTRIBUTE = 1, 2, 3, 4
# Row tags
NODE, ARRAY, VALUE, JAX = 0, 1, 2, 3
# format::ContainerKind
DICT, LIST, TUPLE, NAMEDTUPLE, OBJECT = 1, 2, 3, 4, 5
TRANSPARENT = -1  # an NNX Variable: its child stands in its place
# format::ValueType
V_NONE, V_NUMPY, V_JAX, V_NUMPY_SCALAR, V_PRNG_KEY = 0, 1, 2, 3, 4
V_INT, V_FLOAT, V_BOOL, V_STR, V_BYTES, V_COMPLEX = 5, 6, 7, 8, 9, 10

_DEPTH_MAX = 250  # components of a path; the format's limit is 256
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_ESCAPED = str.maketrans({c: "\\" + c for c in "/*?[\\"})


def component_text(component: Component) -> str:
    return str(component[1]).translate(_ESCAPED)


def path_text(path: Iterable[Component]) -> str:
    """The path as `load` takes it; "" for the item itself."""
    return "/".join([component_text(c) for c in path])


class BadKeyError(Exception):
    """A mapping key that is neither str nor an int of 64 bits."""


class Opened(NamedTuple):
    """One container, opened: its kind, its type's name, its children in its own order."""

    kind: int
    type_name: str
    children: list[tuple[Component, Any]]


def type_name(node: object) -> str:
    kind = type(node)
    return f"{kind.__module__}.{kind.__qualname__}"


def _key_component(key: object) -> Component:
    if isinstance(key, str):
        return (KEY, str(key))
    if isinstance(key, int) and not isinstance(key, bool) and _INT64_MIN <= key <= _INT64_MAX:
        return (INT_KEY, int(key))
    raise BadKeyError(f"has a key of type {type(key).__name__} ({key!r}); keys are str or int64")


def open_node(node: Any) -> Opened | None:
    """The children of a container; None when `node` is none (a leaf, or not known at all)."""
    kind = type(node)
    if kind is dict or kind is collections.OrderedDict or kind is collections.defaultdict:
        name = "" if kind is dict else type_name(node)
        children = [((KEY, k) if type(k) is str else _key_component(k), v) for k, v in node.items()]
        return Opened(DICT, name, children)
    if kind is list:
        return Opened(LIST, "", [((INDEX, i), v) for i, v in enumerate(node)])
    if kind is tuple:
        return Opened(TUPLE, "", [((INDEX, i), v) for i, v in enumerate(node)])
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        children = [((ATTRIBUTE, f), v) for f, v in zip(node._fields, node, strict=True)]
        return Opened(NAMEDTUPLE, type_name(node), children)
    return _open_registered(node)


def _open_registered(node: Any) -> Opened | None:
    tree_util = sys.modules.get("jax.tree_util")
    if tree_util is None:
        return None
    level = tree_util.default_registry.flatten_one_level_with_keys(node)
    if level is None:
        return None
    children: list[tuple[Component, Any]] = []
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(node, nnx.Variable):
        return Opened(TRANSPARENT, "", [((ATTRIBUTE, "value"), child) for _, child in level[0]])
    for key, child in level[0]:
        if isinstance(key, tree_util.DictKey):
            component = _key_component(key.key)
        elif isinstance(key, tree_util.SequenceKey):
            component = (INDEX, key.idx)
        elif isinstance(key, tree_util.GetAttrKey):
            component = (ATTRIBUTE, key.name)
        elif isinstance(key, tree_util.FlattenedIndexKey):
            component = (INDEX, key.key)
        else:
            component = (KEY, str(key))
        children.append((component, child))
    return Opened(OBJECT, type_name(node), children)


def rebuild(node: Any, opened: Opened, children: list[Any]) -> Any:
    """A container like `node` with other children, in the order of `opened`."""
    kind = type(node)
    if kind is dict:
        return dict(zip(node, children, strict=True))
    if kind is list:
        return children
    if kind is tuple:
        return tuple(children)
    if kind is collections.OrderedDict:
        return collections.OrderedDict(zip(node, children, strict=True))
    if kind is collections.defaultdict:
        return collections.defaultdict(node.default_factory, zip(node, children, strict=True))
    if opened.kind == NAMEDTUPLE:
        return kind(*children)
    tree_util = sys.modules["jax.tree_util"]
    treedef = tree_util.tree_structure(node, is_leaf=lambda other: other is not node)
    return tree_util.tree_unflatten(treedef, children)


# ---- leaves that are no data ------------------------------------------------------------------

_FUNCTIONS: tuple[type, ...] = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
    np.ufunc,
)


def is_inside_equinox(node: object) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(node, equinox.Module)


def is_static(leaf: object, in_equinox: bool) -> bool:
    """Whether a leaf is code rather than state: functions anywhere (jitted ones too), and inside an
    Equinox module whatever cannot be stored."""
    if in_equinox or isinstance(leaf, _FUNCTIONS):
        return True
    if type(leaf).__name__ == "PytreeState" and type(leaf).__module__.startswith("flax."):
        return True  # NNX's own bookkeeping in a Module
    return callable(leaf) and type(leaf).__module__.split(".")[0] in ("jax", "jaxlib")


def is_array_like(leaf: object) -> bool:
    """Arrays, concrete or abstract (jax.ShapeDtypeStruct and its kin)."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


# ---- values -----------------------------------------------------------------------------------

_INT_TEXT_BITS_MAX = 2000  # from here on Python's own conversions may refuse (4300 digits)


def encode_value(value: Any) -> tuple[int, bytes] | None:
    """(value type, bytes) of a Python scalar, str, bytes or None; None for anything else."""
    if value is None:
        return V_NONE, b""
    if isinstance(value, bool):
        return V_BOOL, b"\x01" if value else b"\x00"
    if isinstance(value, int):
        if value.bit_length() <= _INT_TEXT_BITS_MAX:
            return V_INT, int.__repr__(value).encode()
        import decimal

        return V_INT, format(decimal.Decimal(int(value)), "f").encode()
    if isinstance(value, float):
        return V_FLOAT, struct.pack("<d", value)
    if isinstance(value, complex):
        return V_COMPLEX, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, str):
        return V_STR, value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return V_BYTES, bytes(value)
    return None


def decode_value(value_type: int, data: bytes) -> Any:
    if value_type == V_NONE:
        return None
    if value_type == V_BOOL:
        return data != b"\x00"
    if value_type == V_INT:
        if len(data) < _INT_TEXT_BITS_MAX // 4:
            return int(data)
        import decimal

        return int(decimal.Decimal(data.decode()))
    if value_type == V_FLOAT:
        return struct.unpack("<d", data)[0]
    if value_type == V_COMPLEX:
        return complex(*struct.unpack("<dd", data))
    if value_type == V_STR:
        return data.decode("utf-8", "surrogatepass")
    return data


# ---- JAX --------------------------------------------------------------------------------------


def _device_ids(devices: Any) -> Any:
    if isinstance(devices, list):
        return [_device_ids(device) for device in devices]
    return {"id": devices.id}


def sharding_json(sharding: Any) -> str:
    """A sharding as Orbax spells it in its `_sharding` files; "" for kinds it has no word for."""
    jax = sys.modules["jax"]
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return json.dumps({"sharding_type": "SingleDeviceSharding", "device_str": str(device)})
    if isinstance(sharding, jax.sharding.NamedSharding):
        mesh = sharding.mesh
        return json.dumps({
            "sharding_type": "NamedSharding",
            "shape": list(mesh.devices.shape),
            "axis_names": list(mesh.axis_names),
            "axis_types": [str(axis_type) for axis_type in mesh.axis_types],
            "partition_spec": list(sharding.spec),
            "device_mesh": {"mesh": _device_ids(mesh.devices.tolist())},
        })
    return ""


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """The values of a single-device array, as memory that nobody changes. A view where JAX can give
    one. Goes through a second array object: JAX would keep the view in the first one, and an array
    with a living view is copied when donated, for ever."""
    return np.asarray(array.addressable_data(0))


def _gather(array: Any) -> np.ndarray[Any, Any]:
    """A sharded array whose shards are all here, whole."""
    whole = np.empty(array.shape, array.dtype)
    seen = set()
    for shard in array.addressable_shards:
        key = tuple((s.start, s.stop, s.step) for s in shard.index)
        if key not in seen:
            seen.add(key)
            whole[shard.index] = np.asarray(shard.data)
    return whole


class _Sharding(NamedTuple):
    json: str
    direct: bool  # one CPU device: memory can be viewed
    replicated: bool
    here: bool  # fully addressable
    cpu: bool
    several: bool


class _Flattener:
    """Turns one tree into rows; collects what cannot be saved instead of raising at the first."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.bad: list[tuple[Path, str]] = []
        self._shardings: dict[Any, _Sharding] = {}
        self._late: list[tuple[int, Any]] = []  # row numbers whose arrays come from other devices
        self._jax_array: type | None = None
        jax = sys.modules.get("jax")
        if jax is not None and hasattr(jax, "Array"):
            self._jax_array = jax.Array
        self._jax_exact: type | None = None  # the class of plain arrays, once one was met

    def walk(self, node: Any, path: Path, in_equinox: bool) -> bool:
        """Adds the rows of `node`; whether there were any."""
        kind = type(node)
        if kind is self._jax_exact:
            self._add_jax(node, path)
            return True
        if kind is np.ndarray:
            self._add_numpy(node, path, V_NUMPY)
            return True
        if isinstance(node, np.generic):
            self._add_numpy(np.asarray(node), path, V_NUMPY_SCALAR)
            return True
        if self._jax_array is not None and isinstance(node, self._jax_array):
            self._add_any_jax(node, path)
            return True
        value = encode_value(node)
        if value is not None:
            self.rows.append((path, VALUE, value[0], value[1]))
            return True
        if isinstance(node, np.memmap):
            self._add_numpy(node, path, V_NUMPY)
            return True
        try:
            opened = open_node(node) if len(path) < _DEPTH_MAX else None
        except BadKeyError as error:
            self.bad.append((path, str(error)))
            return True
        if opened is None:
            return self._add_other(node, path, in_equinox)
        if opened.kind == TRANSPARENT:
            return any([self.walk(child, path, in_equinox) for _, child in opened.children])
        in_equinox = in_equinox or is_inside_equinox(node)
        row = len(self.rows)
        self.rows.append(())
        count = 0
        walk = self.walk
        for component, child in opened.children:
            count += walk(child, (*path, component), in_equinox)
        self.rows[row] = (path, NODE, opened.kind, opened.type_name, count)
        return True

    def _add_other(self, leaf: Any, path: Path, in_equinox: bool) -> bool:
        if len(path) >= _DEPTH_MAX:
            self.bad.append((path[:8], f"is nested more than {_DEPTH_MAX} levels deep"))
        elif is_static(leaf, in_equinox):
            return False
        elif isinstance(leaf, np.ndarray):
            kind = type(leaf).__name__
            self.bad.append((path, f"is a {kind}; only plain NumPy arrays are saved"))
        elif type(leaf).__name__ == "ShapeDtypeStruct":
            self.bad.append((path, "is a ShapeDtypeStruct: it has no values"))
        else:
            self.bad.append((
                path,
                f"is of type {type_name(leaf)}, which is neither an array, a Python scalar, a str, "
                "bytes or None nor a registered pytree node",
            ))
        return True

    def _add_numpy(self, array: np.ndarray[Any, Any], path: Path, value_type: int) -> None:
        number = NUMBERS.get(array.dtype)
        if number is None:
            number = number_of(array.dtype)
            if number is None:
                self.bad.append((path, f"has dtype {array.dtype}, which is not supported"))
                return
            native = np.dtype(array.dtype.newbyteorder("=").str)
            array = array.astype(native)
        self.rows.append((path, ARRAY, array, number, value_type, False, False, None, None, None))

    def _sharding(self, sharding: Any) -> _Sharding:
        info = self._shardings.get(sharding)
        if info is None:
            devices = sharding.device_set
            cpu = all(device.platform == "cpu" for device in devices)
            here = sharding.is_fully_addressable
            info = _Sharding(sharding_json(sharding), cpu and here and len(devices) == 1,
                             sharding.is_fully_replicated, here, cpu, len(devices) > 1)
            self._shardings[sharding] = info
        return info

    def _add_jax(self, array: Any, path: Path) -> None:
        if array.is_deleted():
            self.bad.append((path, "is a jax.Array that was deleted or donated"))
            return
        number = NUMBERS.get(array.dtype)
        if number is None:
            self.bad.append((path, f"has dtype {array.dtype}, which is not supported"))
            return
        info = self._sharding(array.sharding)
        if info.direct:
            self.rows.append((path, JAX, array, number, array.weak_type, info.json))
            return
        self._add_jax_slow(array, path, number, V_JAX, "", info)

    def _add_jax_slow(
        self, array: Any, path: Path, number: int, value_type: int, prng: str, info: _Sharding
    ) -> None:
        if not info.here and not info.replicated:
            self.bad.append((path, "has shards on other processes, which cannot be saved yet"))
            return
        shard = None
        if not info.cpu:
            array.copy_to_host_async()
        elif info.replicated:
            array = array.addressable_data(0)
        if info.several and not info.replicated:
            shard = tuple(array.sharding.shard_shape(array.shape))
        self._late.append((len(self.rows), array))
        self.rows.append((path, ARRAY, None, number, value_type, True, array.weak_type, prng,
                          info.json, shard))

    def _add_any_jax(self, array: Any, path: Path) -> None:
        jax = sys.modules["jax"]
        if isinstance(array, jax.core.Tracer):
            self.bad.append((path, "is a traced value: call save outside of jit"))
        elif jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            if array.is_deleted():
                self.bad.append((path, "is a jax.Array that was deleted or donated"))
                return
            data = jax.random.key_data(array)
            impl = str(jax.random.key_impl(array))
            info = self._sharding(data.sharding)
            self._add_jax_slow(data, path, NUMBERS[data.dtype], V_PRNG_KEY, impl, info)
        else:
            self._jax_exact = type(array)
            self._add_jax(array, path)

    def finish(self) -> None:
        """Brings the arrays of other devices to the host."""
        for row, array in self._late:
            whole: np.ndarray[Any, Any]
            if len(array.sharding.device_set) == 1:
                whole = to_numpy(array)
            elif array.is_fully_replicated:
                whole = np.asarray(array.addressable_data(0))
            else:
                whole = _gather(array)
            fields = self.rows[row]
            self.rows[row] = (fields[0], fields[1], whole, *fields[3:])


def flatten_items(items: dict[str, Any]) -> list[tuple[str, list[Row]]]:
    """Rows of each item. Raises one UnsupportedLeafError with every leaf that cannot be saved."""
    flats: list[tuple[str, _Flattener]] = []
    bad: list[tuple[str, str]] = []
    for name, tree in items.items():
        flat = _Flattener()
        flat.walk(tree, (), False)
        flats.append((name, flat))
        for path, why in flat.bad:
            text = path_text(path)
            if len(items) > 1 or name != "state":
                text = f"{name}/{text}" if path else name
            bad.append((text, why))
    if bad:
        lines = [f"{text or 'the state itself'!s}: {why}" for text, why in bad]
        head = lines[0] if len(lines) == 1 else f"{len(lines)} leaves:\n  " + "\n  ".join(lines)
        raise UnsupportedLeafError(f"cannot save {head}", [text for text, _ in bad])
    for _, flat in flats:
        flat.finish()
    return [(name, flat.rows) for name, flat in flats]


