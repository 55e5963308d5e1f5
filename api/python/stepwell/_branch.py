# SPDX-License-Identifier: Apache-2.0
"""Branches: stores that begin as a copy of another one and share its bytes."""

from __future__ import annotations

import os
import re
from typing import SupportsIndex

from ._lifetime import BRANCHES, OpenStore, check_no_link
from ._runtime import durable
from ._runtime.arguments import NEWEST, step_or_newest
from ._text import brief
from .errors import (Error, InvalidArgumentError, LockedError, StepExistsError, StepNotFoundError)

_MADE = "branch"  # in the temporary directory


def path_of(store: str, name: str) -> str:
    """Returns the path of the branch `name` of the store at `store`. Raises
    InvalidArgumentError."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name) or (
            name.endswith("-tmp")):
        raise InvalidArgumentError(
            f"a branch's name has letters, digits, '_', '.', '+' and '-', not {brief(name)}")
    path = os.path.join(store, BRANCHES, name)
    for each in (os.path.dirname(path), path):
        check_no_link(each)
    return path


def branches(self: OpenStore) -> list[str]:
    """The names of the store's branches, sorted."""
    self._check()
    try:
        names = os.listdir(os.path.join(self.path, BRANCHES))
    except FileNotFoundError:
        return []
    return sorted(name for name in names if not name.endswith("-tmp"))


def branch(self: OpenStore, name: str, step: SupportsIndex | None = NEWEST) -> str:
    """Makes a branch, a store of its own that has the steps up to `step`, by default all, and
    returns its path; `open(path, branch=name)` opens it.

    A branch copies no data: its files are hard links to this store's. Both stores then go on by
    themselves: what one saves or deletes, the other does not see. Space that both use is given
    back when neither needs the file that it lies in. Branches lie in the store's directory,
    `branches/<name>`; `shutil.rmtree` of that path removes one.

    Raises StepNotFoundError, StepExistsError if there is a branch of this name, LockedError if it
    is being made, NoSpaceError, Error if the file system has no hard links, InvalidArgumentError in
    a run of several processes.
    """
    self._check()
    self._check_writable()
    if self._backend.collective:
        raise InvalidArgumentError("a store of several processes cannot be branched: export a step "
                                   "and import it into another store")
    made = path_of(self.path, name)
    if os.path.lexists(made):
        raise StepExistsError(f"{self.path!r} has a branch {name!r} already")
    last = step_or_newest(step)
    number = self._latest_of_all() if last is None else last
    if number is None:  # also where all are tainted, and "all" is not what anybody goes on from
        raise self._no_step("branch from one by its number")
    if number not in self.steps():
        raise _without(self.path, number)
    durable.make_directories(os.path.dirname(made), 0o700)
    try:
        with durable.Folder(made) as folder:
            temporary = os.path.join(folder.temporary, _MADE)
            self._backend.writer.branch(temporary)
            with self._open_alone(temporary) as store:
                if last is not None and number not in store.steps():  # it was deleted meanwhile
                    raise _without(self.path, number)
                if last is not None:
                    _cut(store, number)
            folder.commit(_MADE)
    except LockedError as error:
        raise LockedError(f"the branch {name!r} of {self.path!r} is being made by another thread "
                          f"or process: {error}") from None
    except StepExistsError:
        raise StepExistsError(f"{self.path!r} has a branch {name!r} already") from None
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise Error(f"the branch {made!r} cannot be made: {error}") from error
    return made


def _without(path: str, number: int) -> StepNotFoundError:
    return StepNotFoundError(f"{path!r} has no step {number} to branch from")


def _cut(store: OpenStore, last: int) -> None:
    """Deletes the steps behind `last`, pinned ones, too."""
    later = [summary for summary in store._backend.steps() if summary.step > last]
    pinned = [summary.step for summary in later if summary.pinned]
    if pinned:
        store._backend.change("unpin", pinned, [])
    if later:
        store._backend.change("delete", [summary.step for summary in later], [])
