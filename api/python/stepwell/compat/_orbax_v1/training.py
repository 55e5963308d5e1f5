# SPDX-License-Identifier: Apache-2.0
"""ocp.training."""

from __future__ import annotations

from . import preservation_policies, save_decision_policies
from . import training_errors as errors
from .checkpointer import Checkpointer
from .metadata import RootMetadata
from .metadata import StepMetadata as CheckpointMetadata

__all__ = ["CheckpointMetadata", "Checkpointer", "RootMetadata", "errors",
           "preservation_policies", "save_decision_policies"]
