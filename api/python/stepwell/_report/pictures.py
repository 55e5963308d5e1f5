# SPDX-License-Identifier: Apache-2.0
"""Histograms and heat maps of elements that were read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._printed.values import value_json
from .sampling import Array, Sample

BINS_MAX = 100
CELLS_MAX = 128  # rows, and columns, of a heat map
_AT_ONCE = 1 << 20  # elements, which take some ten times their bytes


def numbers_of(array: Array) -> Array:
    """The elements as float64: magnitudes of complex ones; large integers are rounded."""
    if array.dtype.kind == "c":
        return np.abs(array.astype(np.complex128))
    with np.errstate(all="ignore"):  # signalling NaNs
        return array.astype(np.float64)


def histogram(sample: Sample, bins: int, low: float | None, high: float | None
              ) -> dict[str, Any]:
    """Counts of the finite elements, in bins between the least and the greatest one, or between
    `low` and `high`, with those below and above; and of the others."""
    found: dict[str, Any] = {"edges": [], "counts": [], "below": 0, "above": 0, "nan": 0,
                             "infinite": 0, "counted": sample.elements,
                             "of": math.prod(sample.shape), "note": sample.note}
    least, greatest = math.inf, -math.inf
    for part in _parts(sample):
        is_finite = np.isfinite(part)
        finite = part[is_finite]
        found["nan"] += int(np.isnan(part).sum())
        found["infinite"] += part.size - finite.size
        if finite.size:
            least = min(least, float(finite.min()))
            greatest = max(greatest, float(finite.max()))
    found["infinite"] -= found["nan"]
    if least > greatest and (low is None or high is None):
        return found
    begin = least if low is None else low
    end = greatest if high is None else high
    if begin > end:  # one was given, and all elements lie beyond it
        begin = end = begin if low is not None else end
    scale = 1.0 if math.isfinite(end - begin) else 0.25  # the whole range of float64 overflows
    edges = _edges(begin * scale, end * scale, bins)
    counts = np.zeros(len(edges) - 1, np.int64)
    for part in _parts(sample):
        scaled = part[np.isfinite(part)] * scale
        found["below"] += int((scaled < edges[0]).sum())
        found["above"] += int((scaled > edges[-1]).sum())
        counts += np.histogram(scaled, edges)[0]
    found["edges"] = (edges / scale).tolist()
    found["counts"] = counts.tolist()
    return found


def _edges(begin: float, end: float, bins: int) -> Array:
    """As numpy.histogram has them; one bin where there are no numbers between for more."""
    if begin == end:
        margin = max(0.5, abs(begin) / 2**20)  # 0.5 is nothing beside a large number
        most = float(np.finfo(np.float64).max)
        begin, end = max(begin - margin, -most), min(end + margin, most)
    edges = np.linspace(begin, end, bins + 1)
    return edges if (np.diff(edges) > 0).all() else np.array([begin, end])


def _parts(sample: Sample) -> Iterator[Array]:
    for piece in sample.pieces:
        flat = piece.values.reshape(-1)
        for begin in range(0, flat.size, _AT_ONCE):
            yield numbers_of(flat[begin:begin + _AT_ONCE])


def heat_map(sample: Sample, of: str) -> dict[str, Any] | None:
    """Mean, least and greatest finite element of blocks of a slice with one or two axes; null
    where there is none. `of`: the text of the slice, which the result repeats."""
    if len(sample.shape) not in (1, 2) or 0 in sample.shape:
        return None
    shape = sample.shape if len(sample.shape) == 2 else (1, *sample.shape)
    cells = tuple([min(extent, CELLS_MAX) for extent in shape])
    total, count = np.zeros(cells), np.zeros(cells, np.int64)
    least, greatest = np.full(cells, np.inf), np.full(cells, -np.inf)
    for piece in sample.pieces:
        places = piece.places if len(piece.places) == 2 else [range(1), *piece.places]
        values = piece.values.reshape([len(axis) for axis in places])
        columns = _Blocks(places[1], shape[1], cells[1])
        rows_at_once = max(1, _AT_ONCE // max(1, len(places[1])))
        for begin in range(0, len(places[0]), rows_at_once):
            part = numbers_of(values[begin:begin + rows_at_once])
            rows = _Blocks(places[0][begin:begin + rows_at_once], shape[0], cells[0])
            at = np.ix_(rows.cells, columns.cells)
            finite = np.isfinite(part)
            with np.errstate(over="ignore"):
                total[at] += rows.reduced(np.add, columns.reduced(
                    np.add, np.where(finite, part, 0.0), 1), 0)
            count[at] += rows.reduced(np.add, columns.reduced(
                np.add, finite.astype(np.int64), 1), 0)
            least[at] = np.minimum(least[at], rows.reduced(np.minimum, columns.reduced(
                np.minimum, np.where(finite, part, np.inf), 1), 0))
            greatest[at] = np.maximum(greatest[at], rows.reduced(np.maximum, columns.reduced(
                np.maximum, np.where(finite, part, -np.inf), 1), 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
    return {"of": of, "shape": list(shape), "row_edges": _borders(shape[0], cells[0]),
            "column_edges": _borders(shape[1], cells[1]), "mean": _json(mean, count),
            "min": _json(least, count), "max": _json(greatest, count), "note": sample.note}


class _Blocks:
    """Which cells of an axis some places of it fall into: place p of n into p * cells // n."""

    def __init__(self, places: range, extent: int, cells: int) -> None:
        numbers = np.arange(places.start, places.stop) * cells // extent
        self._starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        self.cells = numbers[self._starts]

    def reduced(self, operation: np.ufunc, values: Array, axis: int) -> Array:
        return np.asarray(operation.reduceat(values, self._starts, axis=axis))


def _borders(extent: int, cells: int) -> list[int]:
    """The first place of each cell, and the end."""
    return [-(-extent * cell // cells) for cell in range(cells + 1)]


def _json(numbers: Array, count: Array) -> list[list[Any]]:
    return [[value_json(float(f"{number:.6g}")) if counted else None
             for number, counted in zip(row, counts, strict=True)]
            for row, counts in zip(numbers, count, strict=True)]
