# SPDX-License-Identifier: Apache-2.0
"""The steps of a report: which are shown, which are looked into, and what their records say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .._metrics import best_among, number_of, numbers_in
from .._printed.values import value_json
from .._stepwell import Core, ItemRecord, StepRecord
from ..errors import CorruptionError, StepNotFoundError

T = TypeVar("T")

STEPS_MAX = 4_000  # shown
METRICS_MAX = 100
ITEMS_MAX = 100
GAPS_MAX = 4_000
_EXACT_MAX = 2**53 - 1  # of integers in JavaScript

Best = dict[str, dict[str, int | None]]


class StepFacts(NamedTuple):
    """What is known of a step. None: the shares of other processes cannot be read."""

    step: int
    time_ns: int
    save_ns: int  # 0: not known
    logical_bytes: int
    stored_bytes: int | None
    owned_bytes: int | None
    leaf_count: int
    pinned: bool
    taint: str
    verified: bool
    items: list[ItemRecord]


def facts_of(core: Core, record: StepRecord) -> tuple[StepFacts, str | None]:
    """And what reading said, where the step is damaged. A step of several processes is in several
    records."""
    facts = StepFacts(*[getattr(record, name) for name in StepFacts._fields])
    if record.group is None or len(record.group.parts) < 2:
        return facts, None
    try:
        whole = core.read(record.step)
    except CorruptionError as error:
        return facts._replace(stored_bytes=None, owned_bytes=None, items=[]), str(error)
    except StepNotFoundError:  # deleted meanwhile
        return facts._replace(stored_bytes=None, owned_bytes=None, items=[]), None
    return facts._replace(
        logical_bytes=whole.logical_bytes, stored_bytes=whole.stored_bytes,
        owned_bytes=whole.owned_bytes, items=whole.items), None


def step_json(step: int | None) -> int | str | None:
    """A step's number. JavaScript lacks those above 2^53 - 1: as text."""
    return step if step is None or step <= _EXACT_MAX else str(step)


def evenly(items: Sequence[T], count: int) -> list[T]:
    """So many of them at most, with the first and the last."""
    if len(items) <= count:
        return list(items)
    if count < 2:
        return list(items[-1:]) if count else []
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def metric_names(metrics: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the numbers among the metrics of all steps, those of most steps first."""
    counts = Counter(name for each in metrics for name in numbers_in(each))
    return sorted(counts, key=lambda name: (-counts[name], name))


def best_steps(records: Sequence[StepRecord], metrics: Sequence[Mapping[str, Any]],
               names: Iterable[str]) -> Best:
    """For each metric the places of the steps with its lowest and its highest finite value, as
    `Store.best` has them: of equal values the higher step, and no tainted one."""
    untainted = [(i, metrics[i]) for i, record in enumerate(records) if not record.taint]
    return {name: {"min": best_among(untainted, name, "min"),
                   "max": best_among(untainted, name, "max")} for name in names}


def shown_of(records: Sequence[StepRecord], best: Best) -> list[int]:
    """The places of the steps that are shown, ascending. All where they are few; else the first,
    the last and the best, of pinned and tainted ones at most half, and of the others evenly."""
    count = len(records)
    if count <= STEPS_MAX:
        return list(range(count))
    shown = {0, count - 1, *(i for ends in best.values() for i in ends.values() if i is not None)}
    marked = [i for i, record in enumerate(records)
              if i not in shown and (record.pinned or record.taint)]
    shown.update(evenly(marked, STEPS_MAX // 2))
    others = [i for i in range(count) if i not in shown]
    shown.update(evenly(others, STEPS_MAX - len(shown)))
    return sorted(shown)


def columns_of(records: Sequence[StepFacts]) -> dict[str, Any]:
    """What the records of the shown steps say, one entry a step."""
    return {
        "number": [step_json(record.step) for record in records],
        "time_s": [record.time_ns / 1e9 for record in records],
        "save_s": [record.save_ns / 1e9 if record.save_ns > 0 else None for record in records],
        "logical_bytes": [record.logical_bytes for record in records],
        "stored_bytes": [record.stored_bytes for record in records],
        "owned_bytes": [record.owned_bytes for record in records],
        "leaves": [record.leaf_count for record in records],
        "pinned": [i for i, record in enumerate(records) if record.pinned],
        "taint": {str(i): record.taint for i, record in enumerate(records) if record.taint},
        "verified": [i for i, record in enumerate(records) if record.verified],
    }


def metrics_of(metrics: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    return {name: [value_json(number_of(each.get(name))) for each in metrics] for name in names}


def items_of(records: Sequence[StepFacts]) -> tuple[dict[str, Any], int]:
    """Sizes by item, and how many items are left out."""
    counts: dict[str, int] = {}
    by_step = [{item.name: item for item in record.items} for record in records]
    for items in by_step:
        for name in items:
            counts[name] = counts.get(name, 0) + 1
    names = sorted(counts, key=lambda name: (-counts[name], name))[:ITEMS_MAX]
    columns = ("logical_bytes", "stored_bytes", "nonfinite")
    return {name: {column: [getattr(items[name], column) if name in items else None
                            for items in by_step] for column in columns}
            for name in sorted(names)}, len(counts) - len(names)


def gaps_of(numbers: Sequence[int]) -> tuple[int | None, list[list[Any]]]:
    """The smallest distance of two neighbouring steps, and the neighbours that are further apart,
    of which there are steps that went or were never saved: of too many the widest."""
    distances = [after - before for before, after in zip(numbers, numbers[1:])]
    interval = min(distances, default=None)
    wide = [i for i, distance in enumerate(distances) if interval and distance > interval]
    if len(wide) > GAPS_MAX:
        wide = sorted(sorted(wide, key=lambda i: -distances[i])[:GAPS_MAX])
    return step_json(interval), [  # type: ignore[return-value]
        [step_json(numbers[i]), step_json(numbers[i + 1])] for i in wide]
