# SPDX-License-Identifier: Apache-2.0
"""What a manager knows of its steps, and which of them go."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Callable
from typing import Any

from . import preservation_policy as preserve
from . import save_decision_policy as decide
from .options import CheckpointManagerOptions
from .step_items import METRICS_ITEM

UTC = datetime.timezone.utc


@dataclasses.dataclass
class CheckpointInfo:
    """A step with its time and metrics."""

    step: int
    time: datetime.datetime
    metrics: Any


def foreign_metrics(directory: str) -> Any:
    """The metrics of a step that Orbax wrote; None if it has none."""
    path = os.path.join(directory, METRICS_ITEM, METRICS_ITEM)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclasses.dataclass
class ShouldSaveFnPolicy(decide.SaveDecisionPolicy):
    """`should_save_fn` of the options, as a policy."""

    should_save_fn: Callable[[int, int | None], bool]

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        return self.should_save_fn(step.step, previous_steps[-1].step if previous_steps else None)


def save_policy(options: CheckpointManagerOptions) -> Any:
    """When to save: the policy of the options, or what their older fields mean."""
    if options.save_decision_policy is not None:
        return options.save_decision_policy
    preemption = decide.PreemptionCheckpointingPolicy()
    if options.should_save_fn is not None:
        return decide.AnySavePolicy([ShouldSaveFnPolicy(options.should_save_fn), preemption])
    policies: list[decide.SaveDecisionPolicy] = []
    if options.save_interval_steps is not None:
        policies.append(decide.FixedIntervalPolicy(options.save_interval_steps))
    if options.save_on_steps is not None:
        policies.append(decide.SpecificStepsPolicy(options.save_on_steps))
    return decide.AnySavePolicy([*policies, preemption, decide.InitialSavePolicy()])


def keep_policy(options: CheckpointManagerOptions) -> Any:
    """What to keep: the policy of the options, or what their older fields mean."""
    if options.preservation_policy is not None:
        if options.keep_time_interval or options.max_to_keep or options.keep_period:
            raise ValueError("`preservation_policy` and `max_to_keep`, `keep_period`, "
                             "`keep_time_interval` are mutually exclusive")
        return options.preservation_policy
    policies: list[preserve.PreservationPolicy] = []
    if options.keep_period is not None:
        policies.append(preserve.EveryNSteps(options.keep_period))
    if options.keep_time_interval is not None:
        policies.append(preserve.EveryNSeconds(int(options.keep_time_interval.total_seconds())))
    if options.best_fn is not None:
        policies.append(preserve.BestN(
            get_metric_fn=options.best_fn, reverse=options.best_mode == "min",
            n=options.max_to_keep,
            keep_checkpoints_without_metrics=options.keep_checkpoints_without_metrics))
    else:
        policies.append(preserve.LatestN(options.max_to_keep))
    return preserve.AnyPreservationPolicy(policies)


def best(infos: list[CheckpointInfo], options: CheckpointManagerOptions) -> CheckpointInfo | None:
    """The best of the steps that have metrics."""
    assert options.best_fn is not None
    best_fn = options.best_fn
    ranked = sorted([info for info in infos if info.metrics is not None],
                    key=lambda info: best_fn(info.metrics), reverse=options.best_mode == "min")
    return ranked[-1] if ranked else None
