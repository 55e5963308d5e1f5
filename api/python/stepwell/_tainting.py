# SPDX-License-Identifier: Apache-2.0
"""Steps that are not to be resumed from, and the way back to one that is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

from ._lifetime import OpenStore
from ._runtime.arguments import step_number, step_numbers
from ._text import brief
from .errors import InvalidArgumentError


def taint(self: OpenStore, steps: SupportsIndex | Iterable[SupportsIndex], why: str) -> None:
    """Marks one step or several as not to be resumed from: `taint(880, "loss spike")`. Durable
    when it returns.

    Whatever means the newest step passes tainted ones over: `latest`, `load` and `load_or` without
    a step, `store[-1]`, and the facades. By its number a step is loaded as before, and `steps()`
    lists it. Retention keeps the newest step that is not tainted below tainted ones, whatever the
    policy says; tainted steps count as any, but not as the best (`BestN`). To save a tainted step
    again, use `if_exists="replace"`; the new step is not tainted.

    why: the reason, at most 1,024 bytes as UTF-8; `tainted_steps`, `store[step].taint`,
        `stepwell ls` and `stepwell show` give it. A new reason takes the place of the old one.

    Raises StepNotFoundError, and nothing is tainted, when a step is not there, and
    InvalidArgumentError for a reason that is empty or too long.
    """
    self._check()
    numbers = step_numbers(steps)
    _change(self, numbers, check_reason(why))


def untaint(self: OpenStore, *steps: SupportsIndex | Iterable[SupportsIndex]) -> None:
    """Undoes `taint`; durable when it returns. StepNotFoundError when a step is not there."""
    self._check()
    _change(self, [number for each in steps for number in step_numbers(each)], "")


def rollback(self: OpenStore, to: SupportsIndex, *, taint: str | None = None) -> list[int]:
    """Makes step `to` the newest: deletes all steps above it, in one commit, and returns their
    numbers. Saves under way are waited for, and deleted if they are above it.

    taint: a reason; the steps above are then tainted with it instead of deleted. Steps that were
        tainted before get it, too.

    Raises StepNotFoundError when `to` is not there, InvalidArgumentError when it is tainted, and
    StepPinnedError when a step that is to be deleted is pinned; nothing was changed then.
    OutcomeUnknownError as from `save`.
    """
    self._check()
    number = step_number(to)
    why = None if taint is None else check_reason(taint)
    self._check_writable()
    self._pending.wait()
    self._raise_background()
    return self._backend.rollback(number, why)


def check_reason(why: str) -> str:
    """Returns the reason of a taint. InvalidArgumentError unless it is a text that says something;
    the engine bounds its length."""
    if not isinstance(why, str) or not why.strip():
        raise InvalidArgumentError(f"a taint needs a reason, a str that says why, not {brief(why)}")
    try:
        why.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a taint's reason must be Unicode text: {error}") from None
    return why


def _change(store: OpenStore, numbers: list[int], why: str) -> None:
    store._check_writable()
    if numbers:
        store._backend.change("taint", numbers, [], why)
