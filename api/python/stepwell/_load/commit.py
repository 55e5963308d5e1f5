# SPDX-License-Identifier: Apache-2.0
"""Which commit a step's number means: a step may be deleted, and another one saved under it."""

from __future__ import annotations

from typing import NamedTuple, SupportsIndex

from .._runtime.arguments import step_number
from .source import Source


class Commit(NamedTuple):
    """A step as it was saved. A commit that is moved, or pinned, keeps its time."""

    step: int
    time_ns: int


class CommittedStep(int):
    """A step's number that also says which commit it is."""

    commit: Commit

    def __new__(cls, commit: Commit) -> CommittedStep:
        made = super().__new__(cls, commit.step)
        made.commit = commit
        return made

    def __reduce__(self) -> tuple[type[CommittedStep], tuple[Commit]]:
        return CommittedStep, (self.commit,)


def commit_of(source: Source) -> Commit:
    return Commit(source.step, source.reader.time_ns)


def means(step: SupportsIndex, commit: Commit) -> bool:
    """True if `step` is that commit, as far as it says which one."""
    if isinstance(step, CommittedStep):
        return step.commit == commit
    return step_number(step) == commit.step
