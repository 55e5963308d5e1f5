# SPDX-License-Identifier: Apache-2.0
"""Policies that decide which checkpoints are preserved."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from .save_decision_policy import PolicyCheckpointInfo


@dataclasses.dataclass(kw_only=True)
class PreservationContext:
    """What else a decision may depend on."""


@runtime_checkable
class PreservationPolicy(Protocol):
    """Decides which checkpoints are preserved: a flag for each."""

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]: ...


def _last(flags: list[bool], count: int | None) -> list[bool]:
    """Only the last `count` of the flags that are set."""
    kept = [i for i, flag in enumerate(flags) if flag]
    if count is not None and len(kept) > count:
        for i in kept[:-count]:  # with 0 none goes, as in Orbax
            flags[i] = False
    return flags


@dataclasses.dataclass
class PreserveAll(PreservationPolicy):
    """All."""

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        return [True] * len(checkpoints)


@dataclasses.dataclass
class LatestN(PreservationPolicy):
    """The last `n`; None: all."""

    n: int | None = None

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        count = len(checkpoints)
        if self.n is None or count <= self.n:
            return [True] * count
        return [False] * (count - self.n) + [True] * self.n


@dataclasses.dataclass
class EveryNSeconds(PreservationPolicy):
    """The first, and each that is `interval_secs` later than the one preserved before it."""

    interval_secs: int

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        interval = datetime.timedelta(seconds=self.interval_secs)
        last: datetime.datetime | None = None
        flags: list[bool] = []
        for info in checkpoints:
            flags.append(last is None or info.time - last >= interval)
            if flags[-1]:
                last = info.time
        return flags


@dataclasses.dataclass
class EveryNSteps(PreservationPolicy):
    """Multiples of `interval_steps`. exact_interval: False preserves the first, and each that is
    `interval_steps` after the one preserved before it."""

    interval_steps: int
    exact_interval: bool = True
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        if self.interval_steps == 0:
            raise ValueError("interval_steps must not be 0.")
        if self.exact_interval:
            flags = [info.step % self.interval_steps == 0 for info in checkpoints]
        else:
            flags = []
            last: int | None = None
            for info in checkpoints:
                flags.append(last is None or info.step - last >= self.interval_steps)
                if flags[-1]:
                    last = info.step
        return _last(flags, self.max_to_keep)


@dataclasses.dataclass
class EveryNStepsClosest(PreservationPolicy):
    """For each multiple of `interval_steps` the checkpoint that is closest; and the last one."""

    interval_steps: int
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        if self.interval_steps == 0:
            raise ValueError("interval_steps must not be 0.")
        closest: dict[int, tuple[int, int]] = {}  # distance, number
        for i, info in enumerate(checkpoints):
            multiple = round(info.step / self.interval_steps)
            distance = abs(info.step - multiple * self.interval_steps)
            if multiple not in closest or distance <= closest[multiple][0]:
                closest[multiple] = (distance, i)
        kept = {i for _, i in closest.values()} | {len(checkpoints) - 1}
        return _last([i in kept for i in range(len(checkpoints))], self.max_to_keep)


@dataclasses.dataclass
class CustomSteps(PreservationPolicy):
    """These steps."""

    steps: Sequence[int]

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        steps = set(self.steps)
        return [info.step in steps for info in checkpoints]


@dataclasses.dataclass
class AnyPreservationPolicy(PreservationPolicy):
    """What one of `policies` preserves."""

    policies: Sequence[PreservationPolicy]

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        flags = [policy.should_preserve(checkpoints, context=context) for policy in self.policies]
        return [any(each) for each in zip(*flags, strict=True)]


@dataclasses.dataclass(kw_only=True)
class BestN(PreservationPolicy):
    """The `n` with the highest `get_metric_fn(metrics)`, or with `reverse` the lowest; None: all.
    keep_checkpoints_without_metrics: those as well."""

    get_metric_fn: Callable[[Any], Any]
    reverse: bool = False
    n: int | None = None
    keep_checkpoints_without_metrics: bool = True

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        count = len(checkpoints)
        if self.n is None or count <= self.n:
            return [True] * count
        if self.n == 0:
            return [False] * count
        ranked = sorted([i for i in range(count) if checkpoints[i].metrics is not None],
                        key=lambda i: self.get_metric_fn(checkpoints[i].metrics),
                        reverse=self.reverse)
        kept = set(ranked[-self.n:])
        return [i in kept or (self.keep_checkpoints_without_metrics and info.metrics is None)
                for i, info in enumerate(checkpoints)]


@dataclasses.dataclass
class LatestDuration(PreservationPolicy):
    """Those of the last `duration`."""

    duration: datetime.timedelta

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *,
                        context: PreservationContext) -> Sequence[bool]:
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        first = next((i for i, info in enumerate(checkpoints)
                      if now - info.time <= self.duration), len(checkpoints))
        return [i >= first for i in range(len(checkpoints))]
