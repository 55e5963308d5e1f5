# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of a store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from . import _stepwell
from ._charts import sparkline_svg
from ._display import END, ROWS_MAX, Html, commit_time, escaped, format_bytes, html_note, html_table
from ._lifetime import OpenStore
from ._metrics import metrics_of_all, numbers_in
from ._runtime import service
from ._runtime.files import json_of
from ._runtime.stats import StepSummary
from ._text import counted
from .errors import Error

_METRICS_MAX = 12  # with a line each
_LISTED_MAX = 8  # steps in a cell


def repr_html(self: OpenStore) -> str:
    """An overview, and a table of the steps. It raises nothing: of a closed store, and of one that
    cannot be read, it says that."""
    if self._closed or self._generation != service.generation:
        return html_note(repr(self))
    try:
        summaries = self._backend.steps()
        return _overview(self, summaries) + _steps(self, summaries)
    except Error as error:
        return html_note(f"{self!r}: {type(error).__name__}: {error}")


def _overview(store: OpenStore, summaries: list[StepSummary]) -> str:
    rows = [("steps", _range(summaries))]
    newest = max((each.step for each in summaries if not each.taint), default=None)
    if newest is not None:
        when, size, _ = _facts(store, newest)
        rows.append(("newest", ", ".join(filter(None, (f"step {newest}", when, size)))))
    for name, steps in (
            ("pinned", [str(each.step) for each in summaries if each.pinned]),
            ("tainted", [f"{each.step} ({each.taint})" for each in summaries if each.taint])):
        if steps:
            rows.append((name, _listed(steps)))
    space = store._backend.stats().space
    if space.total_bytes:  # else it is a pushed run, which does not know
        rows.append(("space", _space(space)))
    rows += [("problem", problem) for problem in store._backend.recovery().problems[:_LISTED_MAX]]
    if not store._backend.collective_reads:  # this process alone is asked
        rows += _metric_rows(metrics_of_all(store._backend))
    return html_table(repr(store), ("", ""), rows)


def _range(summaries: list[StepSummary]) -> str:
    if len(summaries) < 2:
        return counted(len(summaries), "step")
    return f"{len(summaries):,}, from {summaries[0].step} to {summaries[-1].step}"


def _listed(texts: list[str]) -> str:
    more = len(texts) - _LISTED_MAX
    return ", ".join(texts[-_LISTED_MAX:]) + (f", and {more:,} lower" if more > 0 else "")


def _space(space: _stepwell.SpaceStats) -> str:
    return (f"{format_bytes(space.total_bytes)}, of which {format_bytes(space.live_bytes)} live "
            f"and {format_bytes(space.dead_bytes)} dead")


def _metric_rows(metrics: Mapping[int, Any]) -> Iterator[tuple[str, str]]:
    """For each metric a line over the steps that have it, and the newest number."""
    columns: dict[str, list[float]] = {}
    for each in metrics.values():
        for name, number in numbers_in(each).items():
            columns.setdefault(name, []).append(number)
    for name, numbers in list(columns.items())[:_METRICS_MAX]:
        finite = [number for number in numbers if math.isfinite(number)]
        text = f"{numbers[-1]:.6g}"
        if finite:
            text += f", from {min(finite):.6g} to {max(finite):.6g}"
        yield name, Html(f"{sparkline_svg(numbers, f'{name}: {text}')} {escaped(text)}")
    if len(columns) > _METRICS_MAX:
        yield "", f"… and {counted(len(columns) - _METRICS_MAX, 'metric')}"


def _steps(store: OpenStore, summaries: list[StepSummary]) -> str:
    left_out = range(END, len(summaries) - END) if len(summaries) > ROWS_MAX else range(0)
    rows = [(str(each.step), *(("", "", "") if number in left_out else _facts(store, each.step)),
             "yes" if each.pinned else "", each.taint) for number, each in enumerate(summaries)]
    return html_table(counted(len(rows), "step"),
                      ("step", "committed", "size", "metrics", "pinned", "tainted"), rows)


def _facts(store: OpenStore, step: int) -> tuple[str, str, str]:
    """When a step was committed, its size and its metrics, for people."""
    if store._backend.collective_reads:  # this process alone is asked
        return "", "", ""
    try:
        reader = store._backend.source(step, store._check_open, store._account).reader
        metrics = json_of(reader.metrics_json or "{}", "what it says of its metrics")
    except Error as error:
        return "", type(error).__name__, ""
    shown = [f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
             for name, value in metrics.items()] if isinstance(metrics, dict) else []
    return (f"{commit_time(reader.time_ns):%Y-%m-%d %H:%M:%S} UTC",
            format_bytes(reader.logical_bytes), ", ".join(shown))
