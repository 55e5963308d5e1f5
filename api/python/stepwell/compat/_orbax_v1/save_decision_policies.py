# SPDX-License-Identifier: Apache-2.0
"""When a Checkpointer saves."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Container, Sequence
from typing import Any, Protocol, runtime_checkable


@dataclasses.dataclass(kw_only=True)
class DecisionContext:
    is_saving_in_progress: bool
    reached_preemption: bool
    multiprocessing_options: Any = None


@runtime_checkable
class SaveDecisionPolicy(Protocol):
    """Decides from the step, and those saved before (each with step, time and metrics)."""

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: DecisionContext
                    ) -> bool: ...


@dataclasses.dataclass
class FixedIntervalPolicy(SaveDecisionPolicy):
    """At multiples of `interval`."""

    interval: int

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: DecisionContext
                    ) -> bool:
        return bool(step.step % self.interval == 0)


@dataclasses.dataclass
class SpecificStepsPolicy(SaveDecisionPolicy):
    """At these steps."""

    steps: Container[int]

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: DecisionContext
                    ) -> bool:
        return step.step in self.steps


@dataclasses.dataclass(kw_only=True)
class ContinuousCheckpointingPolicy(SaveDecisionPolicy):
    """As often as possible: whenever no save is under way, and `minimum_interval_secs` have passed
    since the last one."""

    minimum_interval_secs: int | None = None

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: DecisionContext
                    ) -> bool:
        if context.is_saving_in_progress:
            return False
        if not previous_steps or self.minimum_interval_secs is None:
            return True
        passed: datetime.timedelta = step.time - previous_steps[-1].time
        return passed >= datetime.timedelta(seconds=self.minimum_interval_secs)


@dataclasses.dataclass
class PreemptionCheckpointingPolicy(SaveDecisionPolicy):
    """When JAX says that the job is about to be preempted."""

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: DecisionContext
                    ) -> bool:
        return context.reached_preemption


@dataclasses.dataclass
class InitialSavePolicy(SaveDecisionPolicy):
    """When there is no step yet."""

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: DecisionContext
                    ) -> bool:
        return not previous_steps


@dataclasses.dataclass
class AnySavePolicy(SaveDecisionPolicy):
    """When one of the policies says so."""

    policies: Sequence[SaveDecisionPolicy]

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: DecisionContext
                    ) -> bool:
        return any(policy.should_save(step, previous_steps, context=context)
                   for policy in self.policies)
