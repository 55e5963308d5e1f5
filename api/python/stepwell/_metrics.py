# SPDX-License-Identifier: Apache-2.0
"""Metrics of all steps: which step is the best."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

from ._backend.backend import Backend
from ._runtime.files import json_of
from .errors import InvalidArgumentError

Direction = Literal["min", "max"]


def metrics_of_all(backend: Backend) -> dict[int, Any]:
    """Each committed step's metrics, None for none, ascending by step."""
    if backend.collective_reads:  # process 0 saves the metrics, in its own part
        texts = dict(backend.from_leader(lambda: list(backend.writer.metrics().items()),
                                         "the steps' metrics"))
    else:
        texts = backend.whole("the steps' metrics").metrics()
    return {step: json_of(text, f"the metrics of step {step}") if text else None
            for step, text in texts.items()}


def number_of(value: Any) -> float | None:
    """A metric as a number, finite or not; None for a value of another kind."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def numbers_in(metrics: Any) -> dict[str, float]:
    """The numbers among a step's metrics, finite or not."""
    items = metrics.items() if isinstance(metrics, Mapping) else ()
    return {name: number for name, value in items if (number := number_of(value)) is not None}


def best_among(metrics: Iterable[tuple[int, Any]], metric: str, mode: Direction) -> int | None:
    """Finds the best of some steps, as the policy BestN ranks them: of equal values the higher step
    is better. None without a finite value. `metrics`: steps, and what each has."""
    sign = 1 if mode == "max" else -1
    ranked = [(sign * number, step) for step, each in metrics
              if isinstance(each, Mapping) and (number := number_of(each.get(metric))) is not None
              and math.isfinite(number)]
    return max(ranked)[1] if ranked else None


def best_of(metrics: Mapping[int, Any], metric: str, mode: Direction,
            steps: Container[int]) -> int | None:
    """Finds the best of `steps`, as `best_among` does. InvalidArgumentError names the metrics that
    there are, if no step has this one."""
    if not isinstance(metric, str) or not metric:
        raise InvalidArgumentError(f"metric must be the name of one, not {metric!r}")
    if mode not in ("min", "max"):
        raise InvalidArgumentError(f"mode must be 'min' or 'max', not {mode!r}")
    known = sorted({name for each in metrics.values() if isinstance(each, Mapping)
                    for name in each})
    if metrics and metric not in known:
        there = f"there are {', '.join(map(repr, known))}" if known else (
            "none has any: pass metrics= to save")
        raise InvalidArgumentError(f"no step has the metric {metric!r}; {there}")
    return best_among(((step, each) for step, each in metrics.items() if step in steps), metric,
                      mode)
