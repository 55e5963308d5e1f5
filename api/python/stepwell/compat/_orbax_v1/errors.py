# SPDX-License-Identifier: Apache-2.0
"""Exceptions, with Orbax's names and base classes."""

from __future__ import annotations

from ... import errors as native


class InvalidLayoutError(ValueError):
    """The path is not a checkpoint of the layout that the Context asks for."""


class CheckpointNotFoundError(InvalidLayoutError, FileNotFoundError):
    """The path does not exist. Orbax raises InvalidLayoutError, which this is, too."""

    __str__ = ValueError.__str__


class DeletionInProgressError(RuntimeError):
    """A deletion is unfinished. Deletions here are atomic; Orbax's checkpoints may have one."""


class DeletionRecoveryError(RuntimeError):
    """A previous deletion, which was interrupted, conflicts with this one."""


class UnsupportedLeafError(native.UnsupportedLeafError, ValueError):
    """Leaves that cannot be saved. A ValueError as in Orbax, and a TypeError."""


class AlreadyExistsError(ValueError):
    """The registry has an entry of this name or type."""


class NoEntryError(KeyError):
    """The registry has no handler that fits."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LoadError(NoEntryError, ValueError):
    """A checkpointable could not be loaded; `__cause__` says why. Orbax's NoEntryError."""


class PartialSaveError(Exception):
    """A partial save cannot be done."""


class PartialSaveReplacementError(PartialSaveError):
    """A leaf was given by an earlier partial save, too."""
