# SPDX-License-Identifier: Apache-2.0
"""Exceptions of training.Checkpointer."""

from __future__ import annotations


class StepAlreadyExistsError(FileExistsError):
    """The step to be saved exists."""


class StepNotFoundError(FileNotFoundError):
    """The step does not exist."""
