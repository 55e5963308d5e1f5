# SPDX-License-Identifier: Apache-2.0
"""`checkpoint_managers`: managers and their policies."""

from __future__ import annotations

from . import preservation_policy, save_decision_policy
from .manager import CheckpointManager
from .options import CheckpointManagerOptions
from .preservation_policy import (AnyPreservationPolicy, BestN, CustomSteps, EveryNSeconds,
                                  EveryNSteps, EveryNStepsClosest, LatestDuration, LatestN,
                                  PreservationContext, PreservationPolicy, PreserveAll)
from .save_decision_policy import (AnySavePolicy, ContinuousCheckpointingPolicy, DecisionContext,
                                   FixedIntervalPolicy, InitialSavePolicy, PolicyCheckpointInfo,
                                   PreemptionCheckpointingPolicy, SaveDecisionPolicy,
                                   SpecificStepsPolicy)

__all__ = [
    "AnyPreservationPolicy", "AnySavePolicy", "BestN", "CheckpointManager",
    "CheckpointManagerOptions", "ContinuousCheckpointingPolicy", "CustomSteps", "DecisionContext",
    "EveryNSeconds", "EveryNSteps", "EveryNStepsClosest", "FixedIntervalPolicy",
    "InitialSavePolicy", "LatestDuration", "LatestN", "PolicyCheckpointInfo",
    "PreemptionCheckpointingPolicy", "PreservationContext", "PreservationPolicy", "PreserveAll",
    "SaveDecisionPolicy", "SpecificStepsPolicy", "preservation_policy", "save_decision_policy",
]
