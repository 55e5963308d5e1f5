# SPDX-License-Identifier: Apache-2.0
"""The digest of a tree: a SHA-256 that depends on what its leaves hold and on nothing else."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .._stepwell import Row, ValueType
from .items import unwrapped
from .keys import key_of
from .sharding import detached, to_numpy, transfers_allowed
from .tree import (INDEX, INT_KEY, JAX, LITERAL, NODE, SHARDS, VALUE, Flattener, Path,
                   TooDeepError, path_text, unsupported)

_HASHED_AT_ONCE = 32 << 20  # bytes of an array that is not in C order, which are copied
_THREADS = 4


class TreeLeaf(NamedTuple):
    """A leaf of a tree in memory."""

    row: Row
    dtype: str  # an array's, or the type of a value
    shape: tuple[int, ...] | None  # None: a value

    @property
    def path(self) -> Path:
        return self.row.path

    def array(self) -> np.ndarray[Any, Any]:
        """The elements, on the host."""
        row = self.row
        with transfers_allowed():
            if row.tag == JAX:
                return to_numpy(row.data)
            return _assembled(row) if row.tag == SHARDS else row.data


def tree_leaves(tree: Any, purpose: str) -> list[TreeLeaf]:
    """The leaves of a tree that would be saved, in the tree's order. `purpose`: an infinitive, for
    the UnsupportedLeafError that names all leaves that cannot be saved."""
    flat = Flattener()
    try:
        flat.walk(unwrapped(tree)[0], (), False)
    except TooDeepError as error:
        flat.bad.append((error.path, str(error)))
    if flat.bad:
        raise unsupported(purpose, "the tree itself",
                          [(path_text(path), why) for path, why in flat.bad])
    return [_leaf_of(row) for row in flat.rows if row.tag != NODE]


def _leaf_of(row: Row) -> TreeLeaf:
    if row.tag == VALUE:
        return TreeLeaf(row, value_name(row.value_type), None)
    first = row.data[0] if row.tag == SHARDS else row.data
    shape = row.shape if row.tag == SHARDS else row.data.shape
    return TreeLeaf(row, np.dtype(first.dtype).name, tuple(shape))


def arrays_of(row: Row) -> list[np.ndarray[Any, Any]]:
    """What a row of shards holds. Of shards on other devices these are copies, which go when they
    are dropped."""
    if row.far:
        return [np.asarray(detached(shard)) for shard in row.data]
    return [shard if isinstance(shard, np.ndarray) else to_numpy(shard) for shard in row.data]


def _assembled(row: Row) -> np.ndarray[Any, Any]:
    shards = arrays_of(row)
    if row.shard_shape is None:
        return shards[0]
    out = np.empty(tuple(row.shape), shards[0].dtype)
    for origin, shard in zip(row.origins, shards, strict=True):
        out[tuple([slice(at, at + size)
                   for at, size in zip(origin, shard.shape, strict=True)])] = shard
    return out


def value_name(value_type: ValueType) -> str:
    return value_type.name.lower()


def line_of(path: Iterable[tuple[int, Any]], dtype: str, shape: Iterable[int] | None,
            sha256: str) -> str:
    """The line of a leaf in the text whose SHA-256 is the digest."""
    return json.dumps([plain_path(path), dtype, None if shape is None else [*shape], sha256],
                      separators=(",", ":"))


def plain_path(path: Iterable[tuple[int, Any]]) -> list[Any]:
    """A path by which a leaf counts, however its containers were stored: each component as a key or
    name that `load` without `like` gives, str or int; a key of another type as [text]."""
    return [_plain(*component) for component in path]


def _plain(kind: int, name: Any) -> Any:
    if kind in (INDEX, INT_KEY):
        return int(name)
    if kind == LITERAL and not isinstance(key_of(name), str):
        return [name]
    return name


def digest_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join([line + "\n" for line in sorted(lines)]).encode()).hexdigest()


def digest(tree: Any) -> str:
    """The digest of a tree: 64 hexadecimal digits, the same for trees whose leaves are equal bit
    for bit. `Store.digest` gives the same for a step that has such a tree.

    The leaves are those that `save` stores. Their paths, dtypes, shapes and elements count, and
    nothing else: NumPy or JAX, meshes and shardings, weak types do not. A container counts by the
    keys, names or indices of its children, so that a namedtuple equals the dict that `load` gives
    for it; one without leaves does not count. Typed PRNG keys count as their uint32 data, Python
    values by type and value.

    The digest is the SHA-256 of a text: of one line for each leaf, sorted. A line is, as compact
    JSON in ASCII, [path, dtype, shape, sha256] and a newline. `path` lists the keys as str and int
    (keys of other types as [text]), `dtype` is NumPy's name, and `sha256` is that of the elements
    in C order, in little-endian memory (those of 2 and 4 bits as int8). Of a value `dtype` is its
    type ("int", "float", "str", "bytes", "bool", "complex" or "none"), `shape` is null, and
    `sha256` is that of an int's digits, of a str's text in UTF-8, of a float as 8 bytes, of a
    complex as 16, of a bool as one.

    Raises UnsupportedLeafError with every leaf that could not be saved. An array with shards on
    other processes is one of them.
    """
    leaves = tree_leaves(tree, "take the digest of")
    large = [leaf for leaf in leaves if leaf.shape is not None]
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "stepwell-digest") as threads:
        hashes = iter(list(threads.map(lambda leaf: _hash_array(leaf.array()), large)))
    return digest_of([line_of(leaf.path, leaf.dtype, leaf.shape,
                              hashlib.sha256(leaf.row.data).hexdigest() if leaf.shape is None
                              else next(hashes)) for leaf in leaves])


def _hash_array(array: np.ndarray[Any, Any]) -> str:
    found = hashlib.sha256()
    for part in _parts(array):
        found.update(bytes_of(part).data)
    return found.hexdigest()


def _parts(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The array in C order, in parts of which a copy is small."""
    if array.nbytes <= _HASHED_AT_ONCE or array.flags.c_contiguous:
        yield array
        return
    rows = max(1, _HASHED_AT_ONCE * len(array) // array.nbytes)
    for begin in range(0, len(array), rows):
        part = array[begin:begin + rows]
        yield from _parts(part[0]) if rows == 1 else [part]


def bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The elements in C order as bytes; a copy where they do not lie so. Of the bytes of small
    integers the high bits mean nothing: they count as int8."""
    if array.dtype.name in ("int2", "int4", "uint2", "uint4"):
        array = array.astype(np.int8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
