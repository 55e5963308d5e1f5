# SPDX-License-Identifier: Apache-2.0
"""Chunk shapes on demand: save(..., chunks=...)."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from .. import _stepwell
from .._stepwell import ItemRows
from ..errors import InvalidArgumentError
from .tree import ARRAY, JAX, SHARDS

# format::kChunkBytesAskedMin, kChunkBytesMax
_BYTES_MIN, _BYTES_MAX = 4096, 4 << 20


class ChunkShape:
    """Chooses how an array's shards are cut into chunks, for loads of other slices of it.

    max_bytes: no chunk has more bytes than this, 4,096 to 4,194,304 (None). A shard that fits is
        one chunk; else it is cut into as few parts as fit, of even length where that is possible.
    axes: cut along these axes only, along the second where the first does not suffice, and so on,
        e.g. (1,) for arrays that will be loaded by columns. None: all axes, from the first on.
    """

    def __init__(self, max_bytes: int | None = None, axes: tuple[int, ...] | None = None) -> None:
        size = _BYTES_MAX if max_bytes is None else max_bytes
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise InvalidArgumentError(f"ChunkShape: max_bytes is an int, not {max_bytes!r}")
        if not _BYTES_MIN <= operator.index(size) <= _BYTES_MAX:
            raise InvalidArgumentError(
                f"ChunkShape: max_bytes is {_BYTES_MIN} to {_BYTES_MAX}, not {max_bytes}")
        if axes is not None and (
                not isinstance(axes, (tuple, list)) or not axes or len(set(axes)) < len(axes)
                or not all(type(axis) is int and 0 <= axis < 64 for axis in axes)):
            raise InvalidArgumentError(
                "ChunkShape: axes are different ints from 0 to 63, one or more, in the order in "
                f"which they are cut, not {axes!r}")
        self.max_bytes = operator.index(size)
        self.axes = None if axes is None else tuple(axes)

    def __repr__(self) -> str:
        return f"ChunkShape(max_bytes={self.max_bytes}, axes={self.axes})"

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, ChunkShape) and self.max_bytes == other.max_bytes
                and self.axes == other.axes)

    def __hash__(self) -> int:
        return hash((self.max_bytes, self.axes))


Chunks = ChunkShape | Mapping[str, ChunkShape]


def set_chunk_shapes(chunks: Chunks | None, items: list[ItemRows]) -> None:
    """Tells the rows of a flattened state what is asked for each array. Of several patterns that
    match the first counts; one that matches no array is an InvalidArgumentError."""
    if chunks is None:
        return
    if isinstance(chunks, ChunkShape):
        chunks = {"**": chunks}
    if not isinstance(chunks, Mapping):
        raise InvalidArgumentError(
            f"chunks is a ChunkShape or a dict from paths to them, not {chunks!r}")
    for path, shape in chunks.items():
        if not isinstance(shape, ChunkShape):
            raise InvalidArgumentError(f"chunks[{path!r}] is a ChunkShape, not {shape!r}")
    patterns = [_stepwell.PathPattern(path) for path in chunks]
    literals: dict[tuple[str, ...], list[int]] = {}  # or time grows with patterns times arrays
    for place, pattern in enumerate(patterns):
        if pattern.names is not None:
            literals.setdefault(tuple(pattern.names), []).append(place)
    globs = [(place, pattern) for place, pattern in enumerate(patterns) if pattern.names is None]
    shapes = list(chunks.values())
    unused = {place for place, pattern in enumerate(patterns) if not pattern.takes_all}
    only_state = [item.name for item in items] == ["state"]
    for item in items:
        for row in item.rows:
            if row.tag not in (ARRAY, JAX, SHARDS):
                continue
            names = [str(component[1]) for component in row.path]
            whole = [item.name, *names]
            readings = [names, whole] if only_state else [whole]
            matching = {place for reading in readings for depth in range(len(reading) + 1)
                        for place in literals.get(tuple(reading[:depth]), ())}
            matching.update(place for place, pattern in globs
                            if any(pattern.takes(reading) for reading in readings))
            if matching:
                shape = shapes[min(matching)]
                row.chunk_bytes_max = shape.max_bytes
                row.chunk_axes = shape.axes or ()
                unused -= matching
    if unused:
        raise InvalidArgumentError(
            "chunks: no array matches "
            + ", ".join(repr(path) for place, path in enumerate(chunks) if place in unused))
