# SPDX-License-Identifier: Apache-2.0
"""Which steps a Checkpointer keeps."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable


@dataclasses.dataclass(kw_only=True)
class PreservationContext:
    pass


@runtime_checkable
class PreservationPolicy(Protocol):
    """Says of each checkpoint (with step, time and metrics; ascending) whether it is kept."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]: ...


def _newest(flags: list[bool], count: int | None) -> list[bool]:
    """Only the last `count` of those that are True."""
    if count is None:
        return flags
    kept = [i for i, flag in enumerate(flags) if flag]
    kept = kept[-count:] if count < len(kept) else kept  # as Orbax: with 0, all
    return [i in set(kept) for i in range(len(flags))]


@dataclasses.dataclass
class PreserveAll(PreservationPolicy):

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        return [True] * len(checkpoints)


@dataclasses.dataclass
class LatestN(PreservationPolicy):
    """The newest `n`; all with None."""

    n: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        count = len(checkpoints)
        return [self.n is None or i >= count - self.n for i in range(count)]


@dataclasses.dataclass
class EveryNSeconds(PreservationPolicy):
    """The first, and each that is `interval_secs` younger than the one kept before it."""

    interval_secs: int

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        interval = datetime.timedelta(seconds=self.interval_secs)
        flags: list[bool] = []
        last: Any = None
        for each in checkpoints:
            flags.append(last is None or each.time - last >= interval)
            if flags[-1]:
                last = each.time
        return flags


@dataclasses.dataclass
class EveryNSteps(PreservationPolicy):
    """Multiples of `interval_steps`; with exact_interval=False the first, and each that is as many
    steps after the one kept before it. Of these the newest `max_to_keep`."""

    interval_steps: int
    exact_interval: bool = True
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        if self.interval_steps == 0:
            raise ValueError("interval_steps must not be 0.")
        flags: list[bool] = []
        last: int | None = None
        for each in checkpoints:
            if self.exact_interval:
                flags.append(each.step % self.interval_steps == 0)
            else:
                flags.append(last is None or each.step - last >= self.interval_steps)
                if flags[-1]:
                    last = each.step
        return _newest(flags, self.max_to_keep)


@dataclasses.dataclass
class EveryNStepsClosest(PreservationPolicy):
    """The step closest to each multiple of `interval_steps`, and the newest. Of these the newest
    `max_to_keep`."""

    interval_steps: int
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        if self.interval_steps == 0:
            raise ValueError("interval_steps must not be 0.")
        best: dict[int, tuple[int, int]] = {}
        for i, each in enumerate(checkpoints):
            multiple = round(each.step / self.interval_steps)
            distance = abs(each.step - multiple * self.interval_steps)
            if multiple not in best or distance <= best[multiple][0]:
                best[multiple] = distance, i
        kept = {i for _, i in best.values()} | {len(checkpoints) - 1}
        return _newest([i in kept for i in range(len(checkpoints))], self.max_to_keep)


@dataclasses.dataclass
class CustomSteps(PreservationPolicy):
    """These steps."""

    steps: Sequence[int]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        kept = set(self.steps)
        return [each.step in kept for each in checkpoints]


@dataclasses.dataclass
class AnyPreservationPolicy(PreservationPolicy):
    """What one of the policies keeps."""

    policies: Sequence[PreservationPolicy]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        flags = [policy.should_preserve(checkpoints, context=context) for policy in self.policies]
        return [any(each) for each in zip(*flags, strict=True)]


@dataclasses.dataclass(kw_only=True)
class BestN(PreservationPolicy):
    """The `n` whose metric is highest, or with reverse=True lowest; of equal ones the newest. Steps
    without metrics are kept unless told otherwise."""

    get_metric_fn: Callable[[Any], float]
    reverse: bool = False
    n: int | None = None
    keep_checkpoints_without_metrics: bool = True

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        count = len(checkpoints)
        if self.n is None or count <= self.n:
            return [True] * count
        if self.n == 0:
            return [False] * count
        ranked = sorted((i for i in range(count) if checkpoints[i].metrics is not None),
                        key=lambda i: self.get_metric_fn(checkpoints[i].metrics),
                        reverse=self.reverse)
        kept = set(ranked[-self.n:])
        return [i in kept or self.keep_checkpoints_without_metrics
                and checkpoints[i].metrics is None for i in range(count)]


@dataclasses.dataclass
class LatestDuration(PreservationPolicy):
    """Those of the last `duration`."""

    duration: datetime.timedelta

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext
                        ) -> Sequence[bool]:
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        flags: list[bool] = []
        for each in checkpoints:
            flags.append(flags[-1:] == [True] or now - each.time <= self.duration)
        return flags
