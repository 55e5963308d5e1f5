# SPDX-License-Identifier: Apache-2.0
"""When a Checkpointer saves: the policies of Orbax v0."""

from __future__ import annotations

from .._orbax_v0.save_decision_policy import (AnySavePolicy, ContinuousCheckpointingPolicy,
                                              DecisionContext, FixedIntervalPolicy,
                                              InitialSavePolicy, PreemptionCheckpointingPolicy,
                                              SaveDecisionPolicy, SpecificStepsPolicy)

__all__ = [
    "AnySavePolicy", "ContinuousCheckpointingPolicy", "DecisionContext", "FixedIntervalPolicy",
    "InitialSavePolicy", "PreemptionCheckpointingPolicy", "SaveDecisionPolicy",
    "SpecificStepsPolicy",
]
