# SPDX-License-Identifier: Apache-2.0
"""`stepwell history`: one leaf over time: a scalar's values, or numbers about an array."""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _store
from .._history import Leaf, Rows, chosen_steps, leaves_of
from .._load.slicing import PART_BYTES
from .._load.source import in_batches
from .._printed import selection
from .._printed.values import array_json, value_json, wide
from .._pytree.records import VALUE
from .._store import Store
from .._text import printable
from .._views import ArrayView, statistics_of
from ..errors import InvalidArgumentError
from .sparkline import is_drawn, sparkline

_NUMBERS = ("min", "mean", "norm", "max", "changed")
_TAKEN_MAX = 1 << 18  # elements at one time, which take some ten times their bytes


class Summary:
    """Numbers about an array that comes in parts. A NaN in it makes all of them NaN. Of complex
    numbers they are those of the magnitudes."""

    def __init__(self) -> None:
        self._count = 0
        self._least: Any = math.inf
        self._most: Any = -math.inf
        self._total: Any = 0.0
        self._squares: Any = 0.0

    def add(self, array: np.ndarray[Any, Any]) -> None:
        flat = array.reshape(-1)
        for begin in range(0, flat.size, _TAKEN_MAX):
            with np.errstate(all="ignore"):
                part = wide(flat[begin:begin + _TAKEN_MAX])
                if part.dtype.kind == "c":
                    part = np.abs(part)
                self._least = np.minimum(self._least, part.min())
                self._most = np.maximum(self._most, part.max())
                self._total = self._total + part.sum()
                self._squares = self._squares + np.square(part).sum()
            self._count += part.size

    def numbers(self) -> dict[str, float]:
        if not self._count:
            return {"min": math.nan, "mean": math.nan, "norm": 0.0, "max": math.nan}
        return {"min": float(self._least), "mean": float(self._total / self._count),
                "norm": float(np.sqrt(self._squares)), "max": float(self._most)}


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the output, as a document or as text."""
    if given.csv and given.json:
        raise InvalidArgumentError("--csv and --json both print to standard output: give one")
    steps = None if given.steps is None else _parsed_steps(given.steps)
    with _store.open(given.store, mode="r", untrusted=given.untrusted) as store:
        numbers = chosen_steps(store, steps)
        what: dict[str, Any] = {}
        rows = _stored_rows(given, leaves_of(store, numbers, given.path, steps is None), what)
        if not rows:
            for leaves in leaves_of(store, numbers, given.path, steps is None):
                what.update(_described(leaves[0]))
                rows += _rows(given, store, leaves)
    if not (given.csv or given.json):
        return {}, _table(rows) + _sparkline(rows)
    plain = [{name: value_json(value) for name, value in row.items()} for row in rows]
    if given.csv:
        return {}, _csv(plain)
    return {"store": given.store, "path": given.path, **what, "steps": plain}, ""


def _parsed_steps(text: str) -> slice:
    """ "100:200", ":50", "0::10"; "7" is that step alone."""
    if not re.fullmatch(r"[0-9]*(:[0-9]*){0,2}", text) or not text:
        raise InvalidArgumentError(f'--steps is FIRST:END, as in Python, not "{text}"')
    numbers = [int(field) if field else None for field in text.split(":")]
    if len(numbers) == 1:
        assert numbers[0] is not None
        return slice(numbers[0], numbers[0] + 1)
    return slice(*numbers)


def _described(leaf: Leaf) -> dict[str, Any]:
    record = leaf.tree.record(leaf.number)
    if record.kind == VALUE:
        return {"kind": leaf.tree.describe(leaf.number)}
    return {"kind": "array", "dtype": record.dtype.name, "shape": record.shape}


def _stored_rows(given: argparse.Namespace, parts: Iterator[list[Leaf]], what: dict[str, Any]
                 ) -> list[dict[str, Any]]:
    """The numbers that were stored with the steps, so that no array is read; none where a step
    lacks them, or what is asked for is not what they are about."""
    rows: list[dict[str, Any]] = []
    if given.slice is not None:
        return rows
    for leaves in parts:
        record = leaves[0].tree.record(leaves[0].number)
        if record.kind == VALUE or record.dtype.kind == "c" or math.prod(record.shape) <= 1:
            return []
        what.update(_described(leaves[0]))
        for leaf in leaves:
            found = statistics_of(leaf.tree.record(leaf.number))
            if found is None:
                return []
            mean = found.sum / (found.elements - found.nonfinite) if found.min is not None else None
            rows.append({"step": leaf.step, "min": _or_nan(found.min), "mean": _or_nan(mean),
                         "norm": found.norm, "max": _or_nan(found.max),
                         "nonfinite": found.nonfinite, "changed": _or_nan(
                             None if found.changed is None else found.changed / found.elements)})
    return rows


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _rows(given: argparse.Namespace, store: Store, leaves: list[Leaf]
          ) -> Iterator[dict[str, Any]]:
    """For each step its value, or numbers about it."""
    record = leaves[0].tree.record(leaves[0].number)
    if record.kind == VALUE and given.slice is not None:
        raise InvalidArgumentError(f"{given.path} is a value, not an array; --slice is for arrays")
    taken = selection.parse(given.slice or "...", record.shape)
    reading = Rows(leaves[0], selection.index_of(taken))
    if reading.row_bytes > PART_BYTES:
        for leaf in leaves:
            source, chosen = store._source(leaf.step).select(given.path, whole=True)
            assert chosen.number is not None
            view, summary = ArrayView(source, chosen.number), Summary()
            for piece in selection.pieces(view, taken):
                summary.add(selection.read(view, piece))
            yield {"step": leaf.step, **summary.numbers()}
        return
    for batch in in_batches(leaves, lambda _: reading.row_bytes, PART_BYTES):
        memory = reading.memory(len(batch))
        reading.read(batch, memory)
        values = reading.finish(memory)
        if values.ndim == 1:
            for leaf, value in zip(batch, array_json(values), strict=True):
                yield {"step": leaf.step, "value": value}
            continue
        for leaf, array in zip(batch, values, strict=True):
            summary = Summary()
            summary.add(array)
            yield {"step": leaf.step, **summary.numbers()}


# ---- text ---------------------------------------------------------------------------------------


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [[name.upper() for name in rows[0]],
             *[[f"{value:.6g}" if name in _NUMBERS else printable(str(value))
                for name, value in row.items()] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(["  ".join([cell.rjust(width) for cell, width in
                               zip(line, widths, strict=True)]) + "\n" for line in cells])


def _sparkline(rows: list[dict[str, Any]]) -> str:
    """The norms, or the values of a scalar, drawn where a terminal can show it."""
    if not sys.stdout.isatty() or not is_drawn():
        return ""
    name = "norm" if "norm" in rows[0] else "value"
    numbers = [row[name] for row in rows]
    if len(numbers) < 2 or not all(isinstance(number, (int, float)) for number in numbers):
        return ""
    return f"{name} {sparkline(numbers, shutil.get_terminal_size().columns - len(name) - 1)}\n"
