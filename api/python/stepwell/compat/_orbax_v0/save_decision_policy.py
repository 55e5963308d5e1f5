# SPDX-License-Identifier: Apache-2.0
"""Policies that decide when a checkpoint is saved."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Container, Sequence
from typing import Any, Protocol, runtime_checkable


class PolicyCheckpointInfo(Protocol):
    """What policies know of a checkpoint."""

    @property
    def step(self) -> int: ...

    @property
    def metrics(self) -> Any: ...

    @property
    def time(self) -> datetime.datetime: ...


@dataclasses.dataclass(kw_only=True)
class DecisionContext:
    """What else a decision may depend on."""

    is_saving_in_progress: bool
    reached_preemption: bool
    multiprocessing_options: Any = None


@runtime_checkable
class SaveDecisionPolicy(Protocol):
    """Decides whether a step is saved."""

    def should_save(self, step: PolicyCheckpointInfo,
                    previous_steps: Sequence[PolicyCheckpointInfo], *,
                    context: DecisionContext) -> bool: ...


@dataclasses.dataclass
class FixedIntervalPolicy(SaveDecisionPolicy):
    """Every `interval` steps."""

    interval: int

    def should_save(self, step: PolicyCheckpointInfo,
                    previous_steps: Sequence[PolicyCheckpointInfo], *,
                    context: DecisionContext) -> bool:
        return step.step % self.interval == 0


@dataclasses.dataclass
class SpecificStepsPolicy(SaveDecisionPolicy):
    """These steps."""

    steps: Container[int]

    def should_save(self, step: PolicyCheckpointInfo,
                    previous_steps: Sequence[PolicyCheckpointInfo], *,
                    context: DecisionContext) -> bool:
        return step.step in self.steps


@dataclasses.dataclass(kw_only=True)
class ContinuousCheckpointingPolicy(SaveDecisionPolicy):
    """Whenever no save is under way and the last is `minimum_interval_secs` ago. Of several
    processes each decides by its own clock; process 0's decision is not sent to the others."""

    minimum_interval_secs: int | None = None

    def should_save(self, step: PolicyCheckpointInfo,
                    previous_steps: Sequence[PolicyCheckpointInfo], *,
                    context: DecisionContext) -> bool:
        if context.is_saving_in_progress:
            return False
        if not previous_steps or self.minimum_interval_secs is None:
            return True
        interval = datetime.timedelta(seconds=self.minimum_interval_secs)
        return step.time - previous_steps[-1].time >= interval


@dataclasses.dataclass
class PreemptionCheckpointingPolicy(SaveDecisionPolicy):
    """When this run is about to be preempted."""

    def should_save(self, step: PolicyCheckpointInfo,
                    previous_steps: Sequence[PolicyCheckpointInfo], *,
                    context: DecisionContext) -> bool:
        return context.reached_preemption


@dataclasses.dataclass
class InitialSavePolicy(SaveDecisionPolicy):
    """The first checkpoint."""

    def should_save(self, step: PolicyCheckpointInfo,
                    previous_steps: Sequence[PolicyCheckpointInfo], *,
                    context: DecisionContext) -> bool:
        return not previous_steps


@dataclasses.dataclass
class AnySavePolicy(SaveDecisionPolicy):
    """When one of `policies` says so."""

    policies: Sequence[SaveDecisionPolicy]

    def should_save(self, step: PolicyCheckpointInfo,
                    previous_steps: Sequence[PolicyCheckpointInfo], *,
                    context: DecisionContext) -> bool:
        return any(policy.should_save(step, previous_steps=previous_steps, context=context)
                   for policy in self.policies)
