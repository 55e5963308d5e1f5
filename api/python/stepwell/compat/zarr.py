# SPDX-License-Identifier: Apache-2.0
"""A step as a store of zarr-python 3, read only.

    import zarr
    from stepwell.compat.zarr import StepStore

    with stepwell.open("run1", mode="r") as store:
        group = zarr.open_group(StepStore(store, 99), mode="r")
        rows = group["params/kernel"][0:16]

Containers are groups, arrays are arrays of zarr 3 with the stored chunks, decoded and checked.
Python values are attributes of the group that they are in. Elements of types that zarr has no name
for are integers of the same bits; the attribute "stepwell_dtype" names the type (PRNG keys: their
uint32 data).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import weakref
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any, SupportsIndex

import numpy as np
from zarr.abc.store import (ByteRequest, OffsetByteRequest, RangeByteRequest, Store,
                            SuffixByteRequest)
from zarr.core.buffer import Buffer, BufferPrototype

from .. import _store
from .._pytree.records import PathLike
from .._views import ArrayView, NodeView
from ..errors import InvalidArgumentError, StepNotFoundError

_METADATA = "zarr.json"
_NAMED = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "complex64", "complex128"}


class StepStore(Store):
    """A step (None: the newest), or the subtree of it at `path`, as a zarr store. What it shows is
    the step as it was when this was made, also when it is deleted or replaced later."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, store: _store.Store, step: SupportsIndex | None = None,
                 path: PathLike | None = None) -> None:
        super().__init__(read_only=True)
        view = store[-1 if step is None else step]
        self._name = f"{store.path}/{view.step}"
        # Which commit of which step of which store this shows, and what of it.
        self._shown = (store.path, view.step, view._source.reader.commit, view.time,
                       tuple(path) if isinstance(path, list) else path)
        self._view = view
        self._store: _store.Store | None = None  # that this alone keeps open
        self._nodes: dict[str, Any] = {}  # by zarr path
        self._add("", view[path if path is not None else ()])

    def _add(self, path: str, view: Any) -> None:
        if path in self._nodes:
            raise InvalidArgumentError(
                f"step {self._view.step}: two nodes have the path {path!r} in zarr")
        self._nodes[path] = view
        if isinstance(view, NodeView):
            for name in view:
                child = view[name]
                if isinstance(child, (NodeView, ArrayView)):
                    self._add(f"{path}/{_quoted(name)}".lstrip("/"), child)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepStore) and self._shown == other._shown

    def __hash__(self) -> int:
        return hash(self._shown)

    def __reduce__(self) -> tuple[Any, ...]:
        """A process that unpickles it opens the store for reading."""
        return _reopened, self._shown

    def __repr__(self) -> str:
        return f"StepStore('{self._name}')"

    def with_read_only(self, read_only: bool = False) -> Store:
        return self if read_only else super().with_read_only(read_only)  # which refuses

    # ---- reading ----

    def _read(self, key: str) -> bytes | None:
        path, _, name = key.rpartition("/")
        if name == _METADATA:
            node = self._nodes.get(path)
            return None if node is None else json.dumps(_metadata(node)).encode()
        path, _, index = f"/{key}".rpartition("/c")  # a chunk is at <array>/c/<i>/<j>, or <array>/c
        view = self._nodes.get(path.lstrip("/"))
        if not isinstance(view, ArrayView):
            return None
        parts = index.split("/")[1:]
        if len(parts) != view.ndim or not all(part.isdecimal() for part in parts):
            return None
        return _chunk(view, tuple(map(int, parts)))

    async def get(self, key: str, prototype: BufferPrototype,
                  byte_range: ByteRequest | None = None) -> Buffer | None:
        data = await asyncio.to_thread(self._read, key)
        return None if data is None else prototype.buffer.from_bytes(_range(data, byte_range))

    async def get_partial_values(
            self, prototype: BufferPrototype,
            key_ranges: Iterable[tuple[str, ByteRequest | None]]) -> list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._read, key) is not None

    # ---- listing ----

    def _keys(self) -> Iterable[str]:
        for path, view in self._nodes.items():
            above = f"{path}/" if path else ""
            yield above + _METADATA
            if isinstance(view, ArrayView):
                for index in itertools.product(*map(range, _grid(view))):
                    yield above + "/".join(["c", *map(str, index)])

    async def list(self) -> AsyncIterator[str]:
        for key in self._keys():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._keys():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        above = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        for name in dict.fromkeys(key[len(above):].partition("/")[0] for key in self._keys()
                                  if key.startswith(above)):
            yield name

    # ---- what a step refuses ----

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def delete(self, key: str) -> None:
        self._check_writable()


# Stores that were opened for what was unpickled, while something is left of that.
_opened: weakref.WeakValueDictionary[str, _store.Store] = weakref.WeakValueDictionary()


def _reopened(path: str, step: int, commit: int, time: datetime, subtree: PathLike | None
              ) -> StepStore:
    store = _opened.get(path)
    if store is None:
        store = _opened[path] = _store.open(path, mode="r")
    shown = StepStore(store, step, subtree)
    if shown._shown[2:4] != (commit, time):
        raise StepNotFoundError(f"step {step} of {path!r} was replaced since this was pickled")
    shown._store = store
    return shown


def _quoted(name: Any) -> str:
    """A component of a path as a name that zarr allows."""
    text = str(name[0] if isinstance(name, tuple) else name)
    text = text.replace("%", "%25").replace("/", "%2F")
    if text in ("", ".", "..", "c", _METADATA) or text.startswith("__"):
        return f"%{text}"
    return text


def _shown_dtype(view: ArrayView) -> np.dtype[Any]:
    """The type of the elements in zarr."""
    if view.dtype.name in _NAMED:
        return view.dtype
    return np.dtype(f"u{view.dtype.itemsize}")


def _metadata(view: Any) -> dict[str, Any]:
    if isinstance(view, NodeView):
        return {"zarr_format": 3, "node_type": "group", "attributes": _attributes(view)}
    shown = _shown_dtype(view)
    codec: dict[str, Any] = {"name": "bytes"}
    if shown.itemsize > 1:
        codec["configuration"] = {"endian": "little"}
    zero: Any = False if shown.kind == "b" else [0.0, 0.0] if shown.kind == "c" else 0
    return {
        "zarr_format": 3, "node_type": "array", "shape": list(view.shape), "data_type": shown.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(_chunks(view))}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": zero, "codecs": [codec],
        "attributes": {} if shown == view.dtype else {"stepwell_dtype": view.dtype.name}}


def _attributes(node: NodeView) -> dict[str, Any]:
    """The values in a container that JSON can hold; of others their text."""
    found = {}
    for name in node:
        value = node[name]
        if not isinstance(value, (NodeView, ArrayView)):
            is_json = isinstance(value, (bool, int, float, str)) or value is None
            found[_quoted(name)] = (value if is_json and value == value
                                    and value not in (math.inf, -math.inf) else repr(value))
    return found


def _chunks(view: ArrayView) -> tuple[int, ...]:
    return tuple(max(1, extent) for extent in view.chunk_shape or view.shape)


def _grid(view: ArrayView) -> tuple[int, ...]:
    return tuple(-(-extent // chunk)
                 for extent, chunk in zip(view.shape, _chunks(view), strict=True))


def _chunk(view: ArrayView, index: tuple[int, ...]) -> bytes | None:
    """A chunk's elements in C order; those beyond the array's edge are zeros."""
    if any(number >= count for number, count in zip(index, _grid(view), strict=True)):
        return None
    chunks = _chunks(view)
    box = tuple(slice(number * chunk, min((number + 1) * chunk, extent))
                for number, chunk, extent in zip(index, chunks, view.shape, strict=True))
    found = np.asarray(view[box] if box else view[()])
    if found.shape != chunks:
        whole = np.zeros(chunks, found.dtype)
        whole[tuple(slice(extent) for extent in found.shape)] = found
        found = whole
    return found.tobytes()


def _range(data: bytes, wanted: Any) -> bytes:
    match wanted:
        case RangeByteRequest():
            return data[wanted.start:wanted.end]
        case OffsetByteRequest():
            return data[wanted.offset:]
        case SuffixByteRequest():
            return data[-wanted.suffix:] if wanted.suffix else b""
        case None:
            return data
    raise ValueError(f"Unexpected byte_range, got {wanted!r}")
