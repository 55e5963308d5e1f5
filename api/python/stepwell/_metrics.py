# SPDX-License-Identifier: Apache-2.0
"""Metrics of all steps: which step is the best."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
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


def numbers_in(metrics: Any) -> dict[str, float]:
    """Those of a step's metrics that are numbers, also such as are not finite."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                numbers[name] = float(value)
            except OverflowError:
                numbers[name] = math.inf if value > 0 else -math.inf
    return numbers


def best_of(metrics: Mapping[int, Any], metric: str, mode: Direction,
            steps: Container[int]) -> int | None:
    """Finds the best of `steps`, as the policy BestN ranks them: of equal values the higher step is
    better. None without a finite value. InvalidArgumentError names the metrics that there are, if
    no step has this one."""
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
    sign = 1 if mode == "max" else -1
    ranked = [(sign * value, step) for step, each in metrics.items()
              if step in steps and (value := _finite(each, metric)) is not None]
    return max(ranked)[1] if ranked else None


def _finite(metrics: Any, metric: str) -> float | None:
    value = metrics.get(metric) if isinstance(metrics, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
