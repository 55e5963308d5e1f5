# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and metrics over the steps as lines of bars: what `stepwell ls --wide` adds."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import _store
from .._display import format_bytes
from .._metrics import numbers_in
from .._text import counted, printable
from .looks import intervals
from .sparkline import is_drawn, sparkline

_NAME_MAX, _LINES_MAX = 24, 100
_RANGE_WIDTH = 44  # columns that are left for the numbers beside the bars
_BARS_MIN = 16


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The lines for the `given.last` highest steps, or for all."""
    with _store.open(given.store, mode="r", untrusted=given.untrusted) as store:
        records = store._backend.whole("a list of steps").steps()[-given.last:]
        metrics = store.steps(metrics=True)
    if len(records) < 2:
        return {}, ""
    lines: list[tuple[str, Sequence[float], Callable[[Any], str]]] = [
        ("size", [record.logical_bytes for record in records], format_bytes),
        ("own", [record.owned_bytes for record in records], format_bytes),
        ("save", [record.save_ns / 1e9 if record.save_ns else math.nan for record in records],
         duration),
        ("interval", intervals([record.time_ns / 1e9 for record in records]), duration)]
    lines += _metric_lines([numbers_in(metrics.get(record.step)) for record in records])
    more = len(lines) - _LINES_MAX
    del lines[_LINES_MAX:]
    width = max(len(cut(name, _NAME_MAX)) for name, _, _ in lines)
    bars_max = max(_BARS_MIN, shutil.get_terminal_size().columns - width - _RANGE_WIDTH)
    text = "\n" + "".join([
        f"{cut(name, _NAME_MAX):<{width}}  {over_time(numbers, bars_max, shown)}\n"
        for name, numbers, shown in lines])
    return {}, text + (f"… and {counted(more, 'metric')}\n" if more > 0 else "")


def _metric_lines(metrics: list[dict[str, float]]
                  ) -> Iterator[tuple[str, list[float], Callable[[Any], str]]]:
    for name in sorted({name for each in metrics for name in each}):
        yield name, [each.get(name, math.nan) for each in metrics], "{:.6g}".format


def over_time(numbers: Sequence[float], bars_max: int, text: Callable[[Any], str]) -> str:
    """Bars, the newest number, and the range of those that are finite."""
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return "never finite"
    now = text(numbers[-1]) if math.isfinite(numbers[-1]) else str(numbers[-1])
    return f"{bars(numbers, bars_max)} {now}, from {text(min(finite))} to {text(max(finite))}"


def bars(numbers: Sequence[float], bars_max: int) -> str:
    return sparkline(numbers, bars_max, plain=not is_drawn())


def cut(text: str, most: int) -> str:
    """At most so many characters, of those that a terminal shows."""
    text = printable(text[:most + 1])
    return text if len(text) <= most else text[:most - 1] + "…"


def duration(seconds: float) -> str:
    """A time that has passed. One that lies in the future, by another clock, is none."""
    seconds = max(0.0, seconds)
    for unit, length, below in (("ms", 1e-3, 1), ("s", 1, 120), ("min", 60, 7200),
                                ("h", 3600, 172800)):
        if seconds < below:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86400:.3g} days"
