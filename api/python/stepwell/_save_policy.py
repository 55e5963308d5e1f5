# SPDX-License-Identifier: Apache-2.0
"""Which steps to save: policies for `open(save=...)`, and the decision for one step."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple, SupportsIndex

from ._runtime.arguments import count_of, seconds_of, step_numbers
from .errors import InvalidArgumentError


class Moment(NamedTuple):
    """The facts that a policy looks at."""

    step: int
    idle: bool  # no save is under way
    seconds: float  # since the last save
    preempted: bool  # a signal came, and no save was begun since


class SavePolicy:
    """Base of the policies that say which steps to save, and the union of several: `a | b` saves a
    step that `a` or `b` saves. Immutable."""

    __slots__ = ("_parts",)
    _parts: tuple[SavePolicy, ...]
    _alike = True  # whether every process comes to the same answer by itself
    _signals: tuple[int, ...] = ()

    def __init__(self, *policies: SavePolicy) -> None:
        self._parts = tuple([part for policy in policies for part in policy._parts])
        if not self._parts:
            raise InvalidArgumentError(
                "a SavePolicy is made of others; open(save=None) saves every step")

    def _wants(self, moment: Moment) -> bool:
        return any(part._wants(moment) for part in self._parts)

    def __or__(self, other: SavePolicy) -> SavePolicy:
        if not isinstance(other, SavePolicy):
            return NotImplemented
        return SavePolicy(self, other)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SavePolicy) and set(map(repr, self._parts)) == set(
            map(repr, other._parts))

    def __hash__(self) -> int:
        return hash(frozenset(map(repr, self._parts)))


class _One(SavePolicy):
    __slots__ = ()

    def __init__(self) -> None:
        self._parts = (self,)


class SaveEvery(_One):
    """Save steps whose number is a multiple of `n`, an int >= 1; 0 is a multiple."""

    __slots__ = ("n",)

    def __init__(self, n: SupportsIndex) -> None:
        super().__init__()
        self.n = count_of("SaveEvery", n)

    def _wants(self, moment: Moment) -> bool:
        return moment.step % self.n == 0

    def __repr__(self) -> str:
        return f"SaveEvery({self.n})"


class SaveAt(_One):
    """Save these steps."""

    __slots__ = ("steps",)

    def __init__(self, steps: Iterable[SupportsIndex]) -> None:
        super().__init__()
        self.steps = frozenset(step_numbers(steps))

    def _wants(self, moment: Moment) -> bool:
        return moment.step in self.steps

    def __repr__(self) -> str:
        return f"SaveAt({sorted(self.steps)})"


class SaveAfter(_One):
    """Save when the last save began at least so long ago. `seconds` is a number or a `timedelta`.

    In a store that was just opened, the newest step counts as the last save; without steps, the
    first step asked about is saved.
    """

    __slots__ = ("seconds",)
    _alike = False

    def __init__(self, seconds: float | timedelta) -> None:
        super().__init__()
        self.seconds = seconds_of("SaveAfter", seconds)

    def _wants(self, moment: Moment) -> bool:
        return moment.seconds >= self.seconds

    def __repr__(self) -> str:
        return f"SaveAfter({self.seconds:g})"


class SaveWhenIdle(SaveAfter):
    """Save when no save is under way and the last one began at least so long ago, as in
    `SaveAfter`."""

    __slots__ = ()

    def __init__(self, seconds: float | timedelta = 0) -> None:
        _One.__init__(self)
        self.seconds = seconds_of("SaveWhenIdle", seconds)

    def _wants(self, moment: Moment) -> bool:
        return moment.idle and moment.seconds >= self.seconds

    def __repr__(self) -> str:
        return f"SaveWhenIdle({self.seconds:g})"


class SaveOnPreemption(_One):
    """Save the first step asked about after a signal that announces the end of the process.
    `Store.preempted` is true from then on: leave the loop.

    `open` installs handlers for `signals`, and must run on the main thread for that; `close` puts
    back what was there. A Python handler that was there is called after ours. The default action,
    which ends the process, does not happen while the store is open: leave the loop yourself.
    Under `jax.distributed`, SIGTERM belongs to JAX's preemption service, which is asked instead: it
    names one step for all processes, and needs `should_save` to be called for every step.
    """

    __slots__ = ("_signals",)
    _signals: tuple[int, ...]
    _alike = False

    def __init__(self, signals: Iterable[int] = (signal.SIGTERM,)) -> None:
        super().__init__()
        try:
            self._signals = tuple(dict.fromkeys([signal.Signals(number) for number in signals]))
        except (TypeError, ValueError):
            self._signals = ()
        if not self._signals:
            raise InvalidArgumentError(
                f"SaveOnPreemption takes signals, such as (signal.SIGTERM,), not {signals!r}")

    @property
    def signals(self) -> tuple[int, ...]:
        return self._signals

    def _wants(self, moment: Moment) -> bool:
        return moment.preempted

    def __repr__(self) -> str:
        names = ", ".join([signal.Signals(number).name for number in self._signals])
        return f"SaveOnPreemption(({names},))"


def signals_of(policy: SavePolicy | None) -> list[int]:
    """The signals that a policy needs handlers for."""
    parts = () if policy is None else policy._parts
    return list(dict.fromkeys([number for part in parts for number in part._signals]))


def is_alike(policy: SavePolicy | None) -> bool:
    """True if every process comes to the same answer by itself."""
    return policy is None or all(part._alike for part in policy._parts)
