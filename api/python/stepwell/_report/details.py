# SPDX-License-Identifier: Apache-2.0
"""What a document does not hold: the elements of a leaf in a step, and what changed between two
steps. Each reads a bounded part of the store."""

from __future__ import annotations

import math
from typing import Any

from .. import _stepwell
from .._load.source import Source
from .._printed import selection
from .._printed.selection import Taken
from .._printed.values import array_json, value_json, value_text
from .._pytree.records import ARRAY
from .._store import Store
from .._stepwell import Record, StepTree, decode_value
from .._views import ArrayView, info_of, statistics_of
from ..errors import InvalidArgumentError, PathNotFoundError
from .document import SCHEMA
from .pictures import BINS_MAX, heat_map, histogram
from .sampling import READ_MAX, sample
from .steps import step_json

VALUES_MAX = 4_096
CHANGES_MAX = 5_000
_TEXT_MAX = 10_000  # characters of a value


def leaf_of(store: Store, step: int, path: str, slice_text: str, bins: int = BINS_MAX,
            low: float | None = None, high: float | None = None, item: str | None = None
            ) -> dict[str, Any]:
    """Elements of an array, or a value. `slice_text`: as NumPy's basic slices; "": everything.
    `item`: the leaf must be of that item; what `path` means depends on which items a step has.

    Raises StepNotFoundError, PathNotFoundError and CorruptionError; InvalidArgumentError if `path`
    does not name a leaf, or `slice_text` is not a slice of it.
    """
    whole = store[step]._source
    source, chosen = whole.select(path, whole=True)
    number = chosen.number
    if number is None or source.tree.is_node(number):
        raise InvalidArgumentError(f"{path!r} is not the path of one array or value")
    if item is not None and _item(source.tree, number) != item:
        raise PathNotFoundError(f"step {whole.step} has no leaf {path!r} in an item {item!r}")
    record = source.tree.record(number)
    found: dict[str, Any] = {
        "schema": SCHEMA, "step": step_json(whole.step), "path": source.tree.text(number),
        "kind": info_of(source.tree, number, record).kind, "dtype": None, "shape": None,
        "slice": None, "sharding_text": None, "statistics": None, "histogram": None,
        "heatmap": None, "values": None, "value": None}
    if record.kind != ARRAY:
        return {**found, "value": _value_text(source, number, record)}
    view = ArrayView(source, number)
    taken = _parsed(slice_text or "...", view.shape)
    statistics = statistics_of(record)
    read = sample(view, taken)
    plane = _plane(taken)
    of_plane = read if plane == taken else sample(view, plane)
    return {
        **found, "dtype": view.dtype.name, "shape": list(view.shape), "slice": _text(taken),
        "sharding_text": view.sharding_text() if record.sharding else None,
        "statistics": None if statistics is None else {
            name: value_json(value) for name, value in statistics._asdict().items()},
        "histogram": histogram(read, bins, low, high),
        "heatmap": heat_map(of_plane, _text(plane)),
        "values": _values(view, taken)}


def _value_text(source: Source, number: int, record: Record) -> str:
    if record.logical_bytes > READ_MAX:
        return f"{record.logical_bytes:,} bytes, which are too many to show"
    value = value_text(decode_value(record.value_type, source.read(number)))
    return value if len(value) <= _TEXT_MAX else f"{value[:_TEXT_MAX]} …"


def _parsed(text: str, shape: tuple[int, ...]) -> list[Taken]:
    try:
        return selection.parse(text, shape)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error).replace("--slice", "slice")) from None


def _plane(taken: list[Taken]) -> list[Taken]:
    """The last two axes of a slice, at the first place of those before them."""
    axes = [i for i, each in enumerate(taken) if not each.is_index]
    fixed = set(axes[:-2])
    return [each._replace(numbers=each.numbers[:1], is_index=True)
            if i in fixed and each.numbers else each for i, each in enumerate(taken)]


def _text(taken: list[Taken]) -> str:
    """As `selection.parse` takes it."""
    return ", ".join([str(each.numbers[0]) if each.is_index else _range_text(each.numbers)
                      for each in taken]) or "..."


def _range_text(numbers: range) -> str:
    if not numbers:
        return "0:0"
    end = numbers[-1] + (1 if numbers.step > 0 else -1)
    text = f"{numbers[0]}:{'' if end < 0 else end}"
    return text if numbers.step == 1 else f"{text}:{numbers.step}"


def _values(view: ArrayView, taken: list[Taken]) -> dict[str, Any] | None:
    """The elements in C order, where they are few."""
    count = selection.count_of(taken)
    read = sample(view, taken) if count <= VALUES_MAX else None
    if read is None or read.note is not None:
        return None
    shape = [len(each.numbers) for each in taken if not each.is_index]
    values = array_json(read.pieces[0].values.reshape(-1)) if read.pieces else []
    return {"shape": shape, "values": values, "of": math.prod(shape)}


# ---- two steps ----------------------------------------------------------------------------------


def changes_of(store: Store, a: int, b: int) -> dict[str, Any]:
    """Which leaves differ between two steps, those with the most changed bytes first, from their
    records: nothing of the arrays is read. `unsure`: the leaf lies in other chunks, so that only
    reading could tell. Raises StepNotFoundError, CorruptionError."""
    before, after = store[a]._source, store[b]._source
    one, other = before.tree, after.tree
    found = _stepwell.compare_steps(one, one.leaves(one.top), other, other.leaves(other.top),
                                    False, may_read=False)
    unsure = {asked.change for asked in found.asked}
    rows: list[dict[str, Any]] = [{
        "path": other.text(change.after), "item": _item(other, change.after),
        "before": one.describe(change.before), "after": other.describe(change.after),
        "chunks_changed": change.changed_chunks, "chunks": change.chunk_count,
        "nbytes_changed": change.changed_bytes,
        "nbytes": other.record(change.after).logical_bytes, "unsure": i in unsure}
        for i, change in enumerate(found.changed)]
    rows.sort(key=lambda row: (row["unsure"], -row["nbytes_changed"], row["path"]))
    lists = {"changed": rows, "added": _described(other, found.added),
             "removed": _described(one, found.removed)}
    return {"schema": SCHEMA, "a": step_json(before.step), "b": step_json(after.step),
            **{name: some[:CHANGES_MAX] for name, some in lists.items()},
            "unchanged": found.unchanged,
            "left_out": sum([max(0, len(some) - CHANGES_MAX) for some in lists.values()])}


def _item(tree: StepTree, number: int) -> str:
    return str(tree.components(number)[0][1])


def _described(tree: StepTree, numbers: list[int]) -> list[dict[str, Any]]:
    return [{"path": tree.text(number), "item": _item(tree, number), "what": tree.describe(number),
             "nbytes": tree.record(number).logical_bytes} for number in numbers]
