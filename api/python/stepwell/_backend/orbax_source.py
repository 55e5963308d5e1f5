# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of Orbax to import: which directory and step a path means. The engine reads it
(db/import/import.h)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from .. import _stepwell
from .._runtime.files import local_path
from .._runtime.stats import StepSummary
from ..errors import (CheckpointNotFoundError, Error, InvalidArgumentError, PathNotFoundError,
                      StepExistsError, StepNotFoundError)


def checked_path(src: str | os.PathLike[str]) -> str:
    path = local_path(src)
    if not os.path.exists(path):
        raise CheckpointNotFoundError(f"{path}: there is no such file or directory")
    return path


def no_step(root: str, step: int, there: dict[int, str]) -> Error:
    near = sorted(there, key=lambda other: abs(other - step))[:2]
    return StepNotFoundError(f"{root} has no step {step}; the nearest: "
                             f"{', '.join(map(str, sorted(near)))}")


def orbax_root(path: str) -> dict[int, str]:
    """The steps of a manager's root, ascending, and their directories."""
    there = _stepwell.orbax_steps(path) if os.path.isdir(path) else {}
    if not there:
        raise InvalidArgumentError(f"{path} is not the root of an Orbax CheckpointManager: no "
                                   "directory in it is a step; import_checkpoint takes single ones")
    return there


def no_number(path: str) -> Error:
    return InvalidArgumentError(
        f"the name of {path} is not a step's (7, step_7 and ckpt-7 are): pass step=")


def exists(path: str, step: int) -> Error:
    return StepExistsError(f"{path!r} has step {step} already; if_exists=\"replace\" replaces it, "
                           "\"skip\" keeps it")


def check_new(path: str, steps: Iterable[StepSummary], step: int, if_exists: str) -> None:
    """Before a whole checkpoint is read for nothing; `steps`: of the store at `path`."""
    if if_exists == "error" and any(step == summary.step for summary in steps):
        raise exists(path, step)


class OrbaxSource(NamedTuple):
    """The request of an import: the path, the step's number if given, names of items."""

    path: str
    step: int | None
    items: list[str]

    def locate(self) -> tuple[str, int]:
        """The checkpoint's directory, and the number that it is to have."""
        path, step = checked_path(self.path), self.step
        there = _stepwell.orbax_steps(path)
        if there:
            if step is None:
                raise InvalidArgumentError(
                    f"{path} holds {len(there)} checkpoints, of the steps {min(there)} to "
                    f"{max(there)}: say which step, or import_checkpoints takes all of them")
            if step not in there:
                raise no_step(path, step, there)
            return there[step], step
        if step is None:
            step = _stepwell.orbax_step_of(path)
        if step is None:
            raise no_number(path)
        return path, step

    def plan(self, found: str) -> _stepwell.ImportPlan:
        try:
            return _stepwell.ImportPlan(found, self.items)
        except StepNotFoundError as error:
            raise PathNotFoundError(str(error)) from None
