# SPDX-License-Identifier: Apache-2.0
"""Pytrees to rows and back.

A *component* is a tuple (type, value): (KEY, "a"), (INT_KEY, 5), (INDEX, 0), (ATTRIBUTE, "name"),
(LITERAL, "(1, 'a')") for the key (1, "a"); a *path* is a tuple of components. A *row* is a
container or leaf as the C++ side takes it (struct Row in api/python/leaves.h). Its tag is JAX for
an array on one CPU device, SHARDS for any other.

JAX is looked up in `sys.modules` and never imported from here: where it is not loaded there can be
no JAX value.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._stepwell import (ComponentType, ContainerKind, ItemKind, ItemRows, PlainFlattener, Row,
                         RowTag, ValueType)
from .._text import listed, with_article
from ..errors import InvalidArgumentError, UnsupportedLeafError
from .dtypes import NUMBERS, number_of
from .items import unwrapped
from .keys import BadKeyError, literal
from .objects import data_fields, is_stateful, state_of, with_fields
from .sharding import Layout, ShardingInfo
from .values import encode_value

# An attribute of an enum takes a quarter of a microsecond, for each leaf.
_JAX, _NUMPY, _NUMPY_SCALAR = ValueType.JAX, ValueType.NUMPY, ValueType.NUMPY_SCALAR
_PRNG_KEY = ValueType.PRNG_KEY

Component = tuple[int, Any]
Path = tuple[Component, ...]

INT_KEY, INDEX = ComponentType.INT_KEY, ComponentType.INDEX
KEY, ATTRIBUTE = ComponentType.KEY, ComponentType.ATTRIBUTE
LITERAL = ComponentType.LITERAL
NODE, ARRAY, VALUE = RowTag.NODE, RowTag.ARRAY, RowTag.VALUE
JAX, SHARDS = RowTag.JAX, RowTag.SHARDS
DICT, LIST, TUPLE = ContainerKind.DICT, ContainerKind.LIST, ContainerKind.TUPLE
NAMEDTUPLE, OBJECT = ContainerKind.NAMEDTUPLE, ContainerKind.OBJECT
TRANSPARENT = ContainerKind.NOT_CONTAINER  # an NNX Variable: its child stands in its place

DEPTH_MAX = 250  # components of a path; the format's limit is 256
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_ESCAPED = str.maketrans({c: "\\" + c for c in "/*?[\\"})


def component_text(component: Component) -> str:
    return str(component[1]).translate(_ESCAPED)


def path_text(path: Iterable[Component]) -> str:
    """The path as `load` takes it; "" for the item itself."""
    return "/".join([component_text(c) for c in path])


class TooDeepError(Exception):
    """A tree is nested more than DEPTH_MAX levels deep, of a cycle most likely. It ends the walk:
    a cycle with two branches has 2^DEPTH_MAX paths."""

    def __init__(self, path: Path) -> None:
        self.path = path[:8]
        super().__init__(f"is nested more than {DEPTH_MAX} levels deep")


class Opened(NamedTuple):
    """One container, opened: its kind, its type's name, its children in its own order; and, where
    `rebuild` may come after the container has changed, the keys of a dict, or JAX's structure of
    one level of a registered class."""

    kind: ContainerKind
    type_name: str
    children: list[tuple[Component, Any]]
    keys: list[Any] | None = None
    structure: Any = None


def type_name(node: object) -> str:
    kind = type(node)
    return f"{kind.__module__}.{kind.__qualname__}"


def _key_component(key: object) -> Component:
    if isinstance(key, str):
        return (KEY, str(key))
    if (isinstance(key, (int, np.integer)) and not isinstance(key, bool)
            and _INT64_MIN <= key <= _INT64_MAX):
        return (INT_KEY, int(key))
    return (LITERAL, literal(key))


def open_node(node: Any, *, to_rebuild: bool = False) -> Opened | None:
    """The children of a container; None when `node` is none (a leaf, or not known at all).
    `to_rebuild`: notes what `rebuild` needs of the container as it is now."""
    kind = type(node)
    if kind is dict or kind is collections.OrderedDict or kind is collections.defaultdict:
        name = "" if kind is dict else type_name(node)
        items = list(node.items())  # in one go: another thread may add to it
        children = [((KEY, k) if type(k) is str else _key_component(k), v) for k, v in items]
        return Opened(DICT, name, children, [k for k, _ in items] if to_rebuild else None)
    if kind is list:
        return Opened(LIST, "", [((INDEX, i), v) for i, v in enumerate(node)])
    if kind is tuple:
        return Opened(TUPLE, "", [((INDEX, i), v) for i, v in enumerate(node)])
    opened = _open_registered(node)  # before namedtuples, of which some fields may be aux data
    if opened is not None:
        return opened._replace(structure=_structure(node)) if to_rebuild else opened
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        children = [((ATTRIBUTE, f), v) for f, v in zip(node._fields, node, strict=True)]
        return Opened(NAMEDTUPLE, type_name(node), children)
    if (fields := data_fields(node)) is not None:
        return Opened(OBJECT, type_name(node), [((ATTRIBUTE, name), v) for name, v in fields])
    return None


def _open_registered(node: Any) -> Opened | None:
    tree_util = sys.modules.get("jax.tree_util")
    if tree_util is None:
        return None
    level = tree_util.default_registry.flatten_one_level_with_keys(node)
    if level is None or level[1] is type(node):  # the latter: a namedtuple that is not registered
        return None
    children: list[tuple[Component, Any]] = []
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(node, nnx.Variable):
        name = type_name(node).replace(" ", "_")
        return Opened(TRANSPARENT, name, [((ATTRIBUTE, "value"), child) for _, child in level[0]])
    for number, (key, child) in enumerate(level[0]):
        if isinstance(key, tree_util.DictKey):
            component = _key_component(key.key)
        elif isinstance(key, tree_util.SequenceKey):
            component = (INDEX, key.idx)
        elif isinstance(key, tree_util.GetAttrKey):
            component = (ATTRIBUTE, key.name)
        elif isinstance(key, tree_util.FlattenedIndexKey):
            component = (INDEX, key.key)
        elif str(key) == object.__repr__(key):
            component = (INDEX, number)  # it has no name but its address
        else:
            component = (KEY, str(key))
        children.append((component, child))
    kind = DICT if isinstance(node, Mapping) else OBJECT
    return Opened(kind, type_name(node), children)


def _structure(node: Any) -> Any:
    """JAX's of one level."""
    return sys.modules["jax.tree_util"].tree_structure(node, is_leaf=lambda each: each is not node)


def rebuild(node: Any, opened: Opened, children: list[Any]) -> Any:
    """A container like `node` was when it was opened, with other children, in that order."""
    kind = type(node)
    keys = node if opened.keys is None else opened.keys
    if kind is dict or kind is collections.OrderedDict:
        return kind(zip(keys, children, strict=True))
    if kind is list:
        return children
    if kind is tuple:
        return tuple(children)
    if kind is collections.defaultdict:
        return collections.defaultdict(node.default_factory, zip(keys, children, strict=True))
    if opened.kind == NAMEDTUPLE:
        return kind(*children)
    tree_util = sys.modules.get("jax.tree_util")
    if dataclasses.is_dataclass(kind) and (tree_util is None or tree_util.all_leaves([node])):
        return with_fields(node, [name for (_, name), _ in opened.children], children)
    assert tree_util is not None
    structure = _structure(node) if opened.structure is None else opened.structure
    return tree_util.tree_unflatten(structure, children)


# ---- leaves that are not data ------------------------------------------------------------------

_FUNCTIONS: tuple[type, ...] = (types.FunctionType, types.BuiltinFunctionType, types.MethodType,
                                functools.partial, type, np.ufunc)


def is_inside_equinox(node: object) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(node, equinox.Module)


def is_static(leaf: object, in_equinox: bool) -> bool:
    """Returns true if a leaf is code rather than state: functions anywhere (jitted ones too), and
    inside an Equinox module whatever cannot be stored."""
    if is_stateful(leaf):
        return False
    if in_equinox or isinstance(leaf, _FUNCTIONS):
        return True
    if type(leaf).__name__ == "PytreeState" and type(leaf).__module__.startswith("flax."):
        return True  # NNX's own bookkeeping in a Module
    return callable(leaf) and type(leaf).__module__.split(".")[0] in ("jax", "jaxlib")


def check_called(tree: Any, name: str) -> None:
    """Refuses a function where a pytree was meant: most likely one that makes it."""
    if callable(tree) and is_static(tree, False) and open_node(tree) is None:
        function = getattr(tree, "__name__", type(tree).__name__)
        raise InvalidArgumentError(f"{name} is the function {function}, not a pytree: call it? "
                                   f"{function}() gives what it makes")


def is_array_like(leaf: object) -> bool:
    """Arrays, concrete or abstract (jax.ShapeDtypeStruct and its kin). Not the classes of NumPy's
    scalars, np.float32 for one, which have descriptors of these names; nor np.str_ and np.bytes_,
    which are Python's str and bytes."""
    return (hasattr(leaf, "shape") and hasattr(leaf, "dtype")
            and not isinstance(leaf, (type, str, bytes)))


# ---- rows -------------------------------------------------------------------------------------


class SpreadLeaf(NamedTuple):
    """An array with parts on other processes; its row is completed with what is saved here."""

    row: int
    array: Any
    info: ShardingInfo


class Flattener(PlainFlattener):
    """Turns one tree into rows: `walk` adds them. Collects what cannot be saved instead of raising
    at the first."""

    def __init__(self, spread: bool = False) -> None:
        super().__init__(NUMBERS, DEPTH_MAX)
        self.kind = ItemKind.TREE
        self.bad: list[tuple[Path, str]] = []
        self.spread: list[SpreadLeaf] = []
        self._may_spread = spread
        self._shardings: dict[Any, ShardingInfo] = {}
        self._jax_array: type | None = None
        jax = sys.modules.get("jax")
        if jax is not None and hasattr(jax, "Array"):
            self._jax_array = jax.Array

    def add_other(self, node: Any, path: Path, in_equinox: bool) -> bool:
        """Adds the rows of what `walk` has no rule for, as `walk` does."""
        if type(node) is self.jax_type:
            self._add_jax(node, path)
            return True
        if type(node) is np.ndarray or isinstance(node, np.memmap):
            self._add_numpy(node, path, _NUMPY)
            return True
        if isinstance(node, np.generic) and not isinstance(node, (str, bytes)):
            self._add_numpy(np.asarray(node), path, _NUMPY_SCALAR)
            return True
        if self._jax_array is not None and isinstance(node, self._jax_array):
            self._add_any_jax(node, path)
            return True
        value = encode_value(node)
        if value is not None:
            self.rows.append(Row(path, VALUE, value[1], value_type=value[0]))
            return True
        try:
            opened = open_node(node) if len(path) < DEPTH_MAX else None
        except BadKeyError as error:
            self.bad.append((path, str(error)))
            return True
        if opened is None:
            return self._add_no_node(node, path, in_equinox)
        if opened.kind == TRANSPARENT:
            return self._walk_variable(opened, path, in_equinox)
        in_equinox = in_equinox or is_inside_equinox(node)
        row = Row(path, NODE)
        row.container = opened.kind
        row.type_name = opened.type_name
        self.rows.append(row)
        count = 0
        for component, child in opened.children:
            count += self.walk(child, (*path, component), in_equinox)
        row.child_count = count
        return True

    def _walk_variable(self, opened: Opened, path: Path, in_equinox: bool) -> bool:
        number = len(self.rows)
        added = any([self.walk(child, path, in_equinox) for _, child in opened.children])
        if len(self.rows) > number:
            row = self.rows[number]
            row.variable_types = f"{opened.type_name} {row.variable_types}".rstrip()
        return added

    def _add_no_node(self, leaf: Any, path: Path, in_equinox: bool) -> bool:
        if len(path) >= DEPTH_MAX:
            raise TooDeepError(path)
        stored = getattr(leaf, "_stepwell_rows", None)  # of a view of what is stored
        if stored is not None:
            self.rows.extend(stored(path))
            return True
        if is_stateful(leaf) and not is_array_like(leaf):
            return self._add_state(leaf, path)
        # Arrays of other kinds are data in an Equinox module, too: `like` would miss them.
        if is_static(leaf, in_equinox and not is_array_like(leaf)):
            return False
        if isinstance(leaf, np.ndarray):
            kind = with_article(type(leaf).__name__)
            self.bad.append((path, f"is {kind}; only plain NumPy arrays are saved"))
        elif type_name(leaf) == "jax._src.core.Ref":
            self.bad.append((path, "is a jax.Ref: save its value, ref[...]"))
        elif type(leaf).__name__ == "ShapeDtypeStruct":
            self.bad.append((path, "is a ShapeDtypeStruct: it has no values"))
        else:
            self.bad.append((path, f"is of type {type_name(leaf)}, which is neither an array, a "
                                   "Python scalar, a str, bytes or None nor a registered pytree "
                                   "node nor a dataclass, and has no get_state and set_state"))
        return True

    def _add_state(self, leaf: Any, path: Path) -> bool:
        """The state of an object, as if it stood in the object's place."""
        state = state_of(leaf)
        if is_stateful(state) or not self.walk(state, path, False):
            gave = with_article(type_name(state))
            self.bad.append((path, f"is {with_article(type_name(leaf))} whose get_state() gave "
                                   f"{gave}, which is not a tree of data"))
        return True

    def _add_numpy(self, array: np.ndarray[Any, Any], path: Path, value_type: ValueType) -> None:
        number = NUMBERS.get(array.dtype)
        if number is None:
            number = number_of(array.dtype)
            if number is None:
                self.bad.append((path, f"has dtype {array.dtype}, which is not supported"))
                return
            native = np.dtype(array.dtype.newbyteorder("=").str)
            array = array.astype(native)
        self.rows.append(Row(path, ARRAY, array, number, value_type))

    def sharding_info(self, sharding: Any) -> ShardingInfo:
        info = self._shardings.get(sharding)
        if info is None:
            info = self._shardings[sharding] = ShardingInfo(sharding)
        return info

    def _add_jax(self, array: Any, path: Path) -> None:
        """Adds an array that is in several places, or elsewhere, or cannot be saved."""
        if array.is_deleted():
            self.bad.append((path, "is a jax.Array that was deleted or donated"))
            return
        number = NUMBERS.get(array.dtype)
        if number is None:
            self.bad.append((path, f"has dtype {array.dtype}, which is not supported"))
            return
        info = self.sharding_info(array.sharding)
        if info.unreduced:
            self.bad.append((path, f"is unreduced over {info.unreduced}: its devices hold parts of "
                                   "a sum; jax.reshard it first"))
            return
        self._add_shards(array, path, number, _JAX, "", info)

    def _add_shards(self, array: Any, path: Path, number: int, value_type: ValueType, prng: str,
                    info: ShardingInfo) -> None:
        row = Row(path, SHARDS, [], number, value_type)
        row.weak_type = array.weak_type
        row.prng_impl = prng
        row.sharding = info.json
        row.shape = array.shape
        row.source = array
        if not info.here and self._may_spread:
            self.spread.append(SpreadLeaf(len(self.rows), array, info))
        elif not info.here and not info.replicated:
            self.bad.append((path, "has shards on other processes; under jax.distributed all of "
                                   "them open the store and save together"))
            return
        else:
            if self._may_spread and info.is_mesh:
                self.meshes.add(len(self.rows))
            self._set_shards(row, array, info, info.layout(array))
        self.rows.append(row)

    def _set_shards(self, row: Row, array: Any, info: ShardingInfo, layout: Layout) -> None:
        row.data = _shards(array, layout)
        row.far = not info.cpu and array.size > 0 and bool(layout.numbers)
        row.shard_shape = layout.shard_shape
        row.origins = layout.origins

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
            info = self.sharding_info(data.sharding)
            self._add_shards(data, path, NUMBERS[data.dtype], _PRNG_KEY, impl, info)
        else:
            self.jax_type = type(array)
            self.walk(array, path, False)

    def complete(self, leaf: SpreadLeaf, layout: Layout) -> None:
        """The row of a leaf of which this process saves `layout`, and others the rest."""
        row = self.rows[leaf.row]
        self._set_shards(row, leaf.array, leaf.info, layout)
        row.partial = layout.shard_shape is not None


def _shards(array: Any, layout: Layout) -> list[Any]:
    """The single-device arrays to be saved of an array, or ndarrays where it has no elements."""
    if not array.size:  # what XLA gives for shards need not have the sharding's shape
        shape = array.shape if layout.shard_shape is None else layout.shard_shape
        return [np.empty(shape, array.dtype) for _ in layout.numbers]
    return [array.addressable_data(number) for number in layout.numbers]


def walk_items(items: dict[str, Any], spread: bool = False) -> list[tuple[str, Flattener]]:
    """Each item with its rows. Raises one UnsupportedLeafError with every leaf that cannot be
    saved. `spread`: arrays may have parts on other processes."""
    flats: list[tuple[str, Flattener]] = []
    bad: list[tuple[str, str]] = []
    for name, tree in items.items():
        flat = Flattener(spread)
        tree, flat.kind = unwrapped(tree)
        try:
            flat.walk(tree, (), False)
        except TooDeepError as error:
            flat.bad.append((error.path, str(error)))
        flats.append((name, flat))
        only_state = len(items) == 1 and name == "state"
        bad += [(name_in_items(name, path, only_state), why) for path, why in flat.bad]
    if bad:
        raise unsupported("save", "the state itself", bad)
    return flats


def unsupported(purpose: str, whole: str, bad: list[tuple[str, str]]) -> UnsupportedLeafError:
    """An error that names leaves by their paths, and why each is not fit for the purpose. `whole`:
    what the path "" names."""
    lines = [f"{text or whole}: {why}" for text, why in bad]
    head = lines[0] if len(lines) == 1 else f"{len(lines)} leaves:" + listed(lines, "paths")
    return UnsupportedLeafError(f"cannot {purpose} {head}", [text for text, _ in bad])


def name_in_items(item: str, path: Path, only_state: bool) -> str:
    text = path_text(path)
    if only_state:
        return text
    return f"{item}/{text}" if path else item


def flatten_items(items: dict[str, Any]) -> list[ItemRows]:
    """Rows of each item; raises as walk_items."""
    return [ItemRows(name, flat.rows, flat.kind) for name, flat in walk_items(items)]
