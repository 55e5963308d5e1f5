# SPDX-License-Identifier: Apache-2.0
"""Trees as Orbax has them: what loads give without a target, and targets for the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._load.plain import Plain
from ..._load.source import Source
from ..._load.specs import restored_sharding, saved_shardings
from ..._pytree.chunks import ChunkShape
from ..._pytree.keys import BadKeyError, key_of
from ..._pytree.objects import is_stateful
from ..._pytree.records import ARRAY, NODE
from ..._pytree.tree import (ATTRIBUTE, INDEX, KEY, LITERAL, TRANSPARENT, Component, Opened,
                             is_array_like, is_static, open_node, path_text, rebuild)
from ..._pytree.values import encode_value
from ..._stepwell import Record, ValueType
from ..._store import Store
from .._mismatch import mismatches_of
from .._orbax_stored import StoredItem, sharding_metadata
from .base import jax, leaf_metadata, v0_metadata, v1

PLACEHOLDER = v1.PLACEHOLDER


def load_plain(source: Source, name: str) -> Any:
    """An item as Orbax loads it without a target: jax.Arrays where they were saved."""
    item = StoredItem(source, name)
    values = Plain("jax", None, True, None).load_leaves(source, list(item.leaves.values()))
    return item.build(dict(zip(item.leaves.values(), values, strict=True)).__getitem__)


_VALUES: dict[int, Any] = {ValueType.INT: 0, ValueType.FLOAT: 0.0, ValueType.BOOL: False,
                           ValueType.STR: "string", ValueType.BYTES: b"", ValueType.COMPLEX: 0j}


def metadata_of(source: Source, name: str) -> Any:
    """An item with Orbax's metadata for leaves."""
    of_jax, of_numpy = leaf_metadata()
    item = StoredItem(source, name)

    def leaf(number: int) -> Any:
        record = item.record(number)
        if record.kind != ARRAY:
            return _VALUES[record.value_type]
        if record.value_type not in (ValueType.JAX, ValueType.PRNG_KEY):
            return of_numpy(record.shape, record.dtype,
                            v0_metadata.StorageMetadata(record.chunk_shape, None))
        return of_jax(record.shape, record.dtype, sharding_metadata(record.sharding),
                      v0_metadata.StorageMetadata(record.chunk_shape,
                                                  record.shard_shape or record.shape))

    return item.build(leaf)


# ---- with a target ------------------------------------------------------------------------------


class Target:
    """A target as Orbax takes it, made one that the store takes: types and metadata become abstract
    arrays, None keeps None, and shapes that differ are padded or cut where that is asked for."""

    def __init__(self, item: StoredItem, target: Any, pads: bool) -> None:
        self._tree = item.tree
        self._pads = pads
        self._after: list[Callable[[Any], Any] | None] = []
        self.like = self._walk(target, item.number)

    def finish(self, loaded: Any) -> Any:
        """Makes the loaded values of `like` into the form of the caller's target."""
        if not any(self._after):
            return loaded
        after = iter(self._after)

        def walk(node: Any) -> Any:
            opened = _opened(node)
            if opened is None:
                change = next(after)
                return node if change is None else change(node)
            return rebuild(node, opened, [walk(child) for _, child in opened.children])

        return walk(loaded)

    def _walk(self, node: Any, number: int | None) -> Any:
        if node is None and number is not None and (
                self._tree.records[number].kind != NODE
                and self._tree.records[number].value_type != ValueType.NONE
                or self._tree.records[number].kind == ARRAY):
            self._after.append(lambda _: None)  # not loaded, as in Orbax
            return PLACEHOLDER
        opened = _opened(node)
        if opened is None:
            return self._leaf(node, None if number is None else self._tree.records[number])
        children = []
        for component, child in opened.children:
            inner = None
            if number is not None and opened.kind == TRANSPARENT:
                inner = self._tree.value_of(number)
            elif number is not None:
                found = self._tree.find(number, component)
                inner = found[0] if len(found) == 1 else None
            children.append(self._walk(child, inner))
        return rebuild(node, opened, children)

    def _leaf(self, leaf: Any, record: Record | None) -> Any:
        self._after.append(None)
        if leaf is PLACEHOLDER:
            return leaf
        if encode_value(leaf) is not None:
            kinds = {ValueType.INT: int, ValueType.FLOAT: float}
            stored = None if record is None or record.kind == ARRAY else kinds.get(
                record.value_type)
            if stored in (int, float) and type(leaf) in (int, float) and type(leaf) is not stored:
                self._after[-1] = type(leaf)
                return stored()
            return leaf
        if isinstance(leaf, type):
            return _of_type(leaf, record)
        if not is_array_like(leaf):
            return leaf
        wanted = _abstract(leaf, record)
        if (self._pads and record is not None and record.kind == ARRAY
                and tuple(wanted.shape) != record.shape
                and len(wanted.shape) == len(record.shape)):
            self._after[-1] = _fit_to(wanted)
            return _numpy(record.shape, wanted.dtype)
        return wanted


def check_target(target: Any, path: tuple[Component, ...] = ()) -> None:
    """TypeError for a leaf or a key that no target may have."""
    try:
        opened = _opened(target)
    except BadKeyError as error:
        raise TypeError(f"{path_text(path) or 'the target'} {error}") from None
    if opened is not None:
        for component, child in opened.children:
            check_target(child, (*path, component))
    elif not (target is None or target is PLACEHOLDER or isinstance(target, type)
              or encode_value(target) is not None or is_array_like(target)
              or is_static(target, False) or is_stateful(target)):
        raise TypeError(
            f"Unsupported abstract leaf type for loading: `{type(target)}`. A target's leaves are "
            "arrays, jax.ShapeDtypeStructs, metadata, Python scalars and str, types of these, and "
            "PLACEHOLDER")


def _opened(node: Any) -> Opened | None:
    """The children of a node; None for a leaf. Metadata of arrays are leaves, although dataclasses
    are nodes; what is registered, as NNX Variables are, is a node, although it looks like an array.
    """
    if (node is PLACEHOLDER or node is None or isinstance(node, type)
            or encode_value(node) is not None
            or is_array_like(node) and jax.tree_util.all_leaves([node])):
        return None
    return open_node(node)


def _numpy(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array without memory of its own, for its shape and dtype."""
    return np.broadcast_to(np.empty((), dtype), shape)


def _stored(record: Record | None) -> tuple[tuple[int, ...], Any]:
    if record is None or record.kind != ARRAY:
        return (), np.dtype(np.float32)
    return record.shape, record.dtype


def _sharding(leaf: Any, record: Record | None) -> Any:
    """That of a target's leaf, or the saved one; None where its devices are not here."""
    try:
        if leaf is not None and leaf.sharding is not None:
            return leaf.sharding
    except ValueError:  # metadata of Orbax, of devices that are not here
        return None
    if record is None or record.kind != ARRAY or not record.sharding:
        return None
    return restored_sharding(record, saved_shardings({record.sharding}))


def _of_type(kind: type, record: Record | None) -> Any:
    """An instance that stands for `kind`, of the shape and dtype that are stored."""
    if issubclass(kind, (np.generic, int, float, str, bytes)):
        return kind()
    shape, dtype = _stored(record)
    if issubclass(kind, jax.Array) or hasattr(kind, "sharding"):
        return _abstract(jax.ShapeDtypeStruct(shape, dtype), record)
    if hasattr(kind, "shape") or "shape" in getattr(kind, "__annotations__", {}):
        return _numpy(shape, dtype)
    raise TypeError(f"Unsupported abstract leaf type for loading: `{kind}`.")


def _abstract(leaf: Any, record: Record | None) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        return leaf
    shape, dtype = _stored(record)
    shape = shape if leaf.shape is None else tuple(leaf.shape)
    dtype = dtype if leaf.dtype is None else leaf.dtype
    if not hasattr(type(leaf), "sharding") and "sharding" not in getattr(leaf, "__dict__", ()):
        return _numpy(shape, dtype)
    if record is not None and record.value_type == ValueType.PRNG_KEY and not (
            jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)):
        # Metadata speak of the key's data, which have one axis more.
        dtype = jax.random.key(0, impl=record.prng_impl).dtype
        shape = tuple(record.shape)[:-1] if shape == tuple(record.shape) else shape
        leaf = None  # nor is their sharding that of a key
    return jax.ShapeDtypeStruct(shape, dtype, sharding=_sharding(leaf, record))


def _fit_to(wanted: Any) -> Callable[[Any], Any]:
    """Pads an array with zeros at the end of each axis, or cuts it there."""

    def fit(value: Any) -> Any:
        taken = value[tuple(slice(0, size) for size in wanted.shape)]
        padded = np.pad(taken, [(0, size - have) for size, have in
                                zip(wanted.shape, taken.shape, strict=True)])
        return jax.device_put(padded, wanted.sharding) if hasattr(wanted, "sharding") else padded

    return fit


def load_like(store: Store, step: int, item: str, target: Any, *, partial: bool, pads: bool
              ) -> Any:
    made = Target(StoredItem(store._source(step), item), target, pads)
    with mismatches_of(
            "abstract_state", missing="`...` there loads nothing and stays",
            unexpected="pytree.loading.partial_load = True of an ocp.Context leaves out what "
                       "abstract_state lacks",
            shape="array.loading.enable_padding_and_truncation = True of an ocp.Context pads and "
                  "cuts arrays other than PRNG keys"):
        loaded = store.load(step, items=[item], like={item: made.like}, cast="wrap",
                            unexpected="ignore" if partial else "error")
    return made.finish(loaded[item])


# ---- saving -------------------------------------------------------------------------------------


def apply_storage(state: Any, item: str, saving: Any) -> tuple[Any, dict[str, ChunkShape]]:
    """The state with arrays cast as ArrayOptions.Saving says, and the chunk shapes that it asks
    for, by path."""
    common = saving.storage_options
    creator = saving.scoped_storage_options_creator
    if creator is None and (common.dtype, common.chunk_byte_size, common.shard_axes) == (
            None, None, None):
        return state, {}
    chunks: dict[str, ChunkShape] = {}

    def walk(node: Any, path: tuple[Component, ...]) -> Any:
        opened = _opened(node)
        if opened is not None:
            inner = [path if opened.kind == TRANSPARENT else (*path, component)
                     for component, _ in opened.children]
            return rebuild(node, opened, [walk(child, where) for where, (_, child) in
                                          zip(inner, opened.children, strict=True)])
        own = None if creator is None else creator(_key_path(path), node)
        if not is_array_like(node):
            return node
        dtype, size, axes = (
            getattr(common, name) if getattr(own, name, None) is None else getattr(own, name)
            for name in ("dtype", "chunk_byte_size", "shard_axes"))
        if size is not None or axes:
            axes = tuple(axis for axis in axes or () if axis < node.ndim)
            chunks[path_text(((KEY, item), *path))] = ChunkShape(
                None if size is None else min(max(size, 4096), 4 << 20), axes or None)
        return node if dtype is None else node.astype(dtype)

    return walk(state, ()), chunks


def _key_path(path: tuple[Component, ...]) -> tuple[Any, ...]:
    util = jax.tree_util
    kinds: dict[int, Any] = {INDEX: util.SequenceKey, ATTRIBUTE: util.GetAttrKey}
    return tuple(util.DictKey(key_of(value)) if kind == LITERAL else
                 kinds.get(kind, util.DictKey)(value) for kind, value in path)
