# SPDX-License-Identifier: Apache-2.0
"""Which steps a Checkpointer keeps: the policies of Orbax v0."""

from __future__ import annotations

from .._orbax_v0.preservation_policy import (AnyPreservationPolicy, BestN, CustomSteps,
                                             EveryNSeconds, EveryNSteps, EveryNStepsClosest,
                                             LatestDuration, LatestN, PreservationContext,
                                             PreservationPolicy, PreserveAll)

__all__ = [
    "AnyPreservationPolicy", "BestN", "CustomSteps", "EveryNSeconds", "EveryNSteps",
    "EveryNStepsClosest", "LatestDuration", "LatestN", "PreservationContext",
    "PreservationPolicy", "PreserveAll",
]
