# SPDX-License-Identifier: Apache-2.0
"""Policies. Which steps to keep: objects for `open(keep=...)`.

    keep = LatestN(3) | EveryN(1000) | BestN(2, "eval_loss")

`a | b` keeps a step that `a` or `b` keeps. Whatever the policy, pinned steps (`Store.pin`) and the
step just saved are kept, and below tainted steps (`Store.taint`) the newest other one. Rules are
applied with each commit, in the commit itself; a step that they do not keep is gone from then on.
Opening a store with a policy deletes nothing before the next save; it warns where that deletes more
than the place it takes, and `Store.retention` says which policy keeps each step.

Which steps to save: objects for `open(save=...)`, which `Store.should_save` asks.

    save = SaveEvery(100) | SaveAfter(600) | SaveOnPreemption()
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, SupportsIndex

from ._runtime.arguments import COUNT_MAX, count_of
from ._save_policy import (SaveAfter, SaveAt, SaveEvery, SaveOnPreemption, SavePolicy,
                           SaveWhenIdle)
from ._stepwell import KeepKind, KeepRule
from .errors import InvalidArgumentError

__all__ = ["BestN", "ByteBudget", "EveryN", "KeepFor", "LastVerified", "LatestN", "Pinned",
           "Policy", "SaveAfter", "SaveAt", "SaveEvery", "SaveOnPreemption", "SavePolicy",
           "SaveWhenIdle"]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Rule:
    """A KeepRule of the engine, as one that can be compared, copied and pickled."""

    kind: KeepKind
    count: int = 0  # of steps or bytes
    duration_ns: int = 0
    metric: str = ""
    larger_is_better: bool = False

    @classmethod
    def of(cls, rule: KeepRule) -> Rule:
        return cls(**{name: getattr(rule, name) for name in cls.__annotations__})


class Policy:
    """Base of the policies, and the union of several. Immutable; equal when the rules are."""

    __slots__ = ("_parts",)
    _parts: tuple[tuple[Rule, str], ...]  # each rule once, with how it was written

    def __init__(self, *policies: Policy) -> None:
        parts = [part for policy in policies for part in policy._parts]
        if not parts:
            raise InvalidArgumentError(
                "a Policy is made of others; open(keep=None) keeps every step")
        self._parts = tuple({rule: (rule, text) for rule, text in parts}.values())

    @property
    def _rules(self) -> list[Rule]:
        return [rule for rule, _ in self._parts]

    def _for_engine(self) -> list[KeepRule]:
        return [KeepRule(**vars(rule)) for rule in self._rules]

    @staticmethod
    def _of_rule(rule: Rule) -> Policy:
        match rule.kind:
            case KeepKind.BEST:
                return BestN(rule.count, rule.metric, "max" if rule.larger_is_better else "min")
            case KeepKind.DURATION:
                return KeepFor(timedelta(microseconds=rule.duration_ns / 1000))
            case KeepKind.LATEST:
                return LatestN(rule.count)
            case KeepKind.EVERY:
                return EveryN(rule.count)
            case KeepKind.BYTES:
                return ByteBudget(rule.count)
            case KeepKind.LAST_VERIFIED:
                return LastVerified()
        return Pinned()

    def __or__(self, other: Policy) -> Policy:
        if not isinstance(other, Policy):
            return NotImplemented
        return Policy(self, other)

    def __repr__(self) -> str:
        return " | ".join(text for _, text in self._parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and set(self._rules) == set(other._rules)

    def __hash__(self) -> int:
        return hash(frozenset(self._rules))


class LatestN(Policy):
    """Keep the `n` highest steps.

    `n` is an int >= 1; anything else raises `InvalidArgumentError`. The step just saved is one of
    the `n`, whatever its number.
    """

    __slots__ = ("n",)

    def __init__(self, n: SupportsIndex) -> None:
        self.n = count_of("LatestN", n)
        self._parts = ((Rule(KeepKind.LATEST, self.n), f"LatestN({self.n})"),)


class EveryN(Policy):
    """Keep steps whose number is a multiple of `n`, an int >= 1; 0 is a multiple."""

    __slots__ = ("n",)

    def __init__(self, n: SupportsIndex) -> None:
        self.n = count_of("EveryN", n)
        self._parts = ((Rule(KeepKind.EVERY, self.n), f"EveryN({self.n})"),)


class BestN(Policy):
    """Keep the `n` steps with the best `metric`, a name in `save(metrics=...)`.

    mode: "min" where lower is better (a loss), "max" where higher is (an accuracy).

    Of equal values the higher step is better. Steps whose metrics lack the name, or have no finite
    number there, are not kept by this policy, nor are tainted ones. While no step has the metric,
    as after a typo, the policy cannot tell the best, and takes nothing away: it keeps the steps
    that were there when the store was opened, and where it stands alone, or beside `Pinned` alone,
    every step.
    """

    __slots__ = ("metric", "mode", "n")

    def __init__(self, n: SupportsIndex, metric: str, mode: Literal["min", "max"] = "min") -> None:
        self.n = count_of("BestN", n)
        if not isinstance(metric, str) or not metric:
            raise InvalidArgumentError(f"BestN's metric must be the name of one, not {metric!r}")
        if mode not in ("min", "max"):
            raise InvalidArgumentError(f"BestN's mode must be 'min' or 'max', not {mode!r}")
        self.metric = metric
        self.mode = mode
        self._parts = ((Rule(KeepKind.BEST, self.n, metric=metric, larger_is_better=mode == "max"),
                        f"BestN({self.n}, {metric!r}, mode={mode!r})"),)


class KeepFor(Policy):
    """Keep steps that were committed at most `duration` before the newest commit.

    `duration` is a `datetime.timedelta` or a number of seconds, >= 0. Time passes with commits: a
    store that is not written to loses nothing. The time between the last commit of one session and
    the first of the next does not count, so a run that resumes after a week keeps what it had; nor
    does the machine's clock when it is set, or was wrong at the start.
    """

    __slots__ = ("duration",)

    def __init__(self, duration: float | timedelta) -> None:
        try:
            self.duration = (duration if isinstance(duration, timedelta)
                             else timedelta(seconds=float(duration)))
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgumentError(
                f"KeepFor takes seconds or a timedelta, not {duration!r}") from None
        nanos = self.duration // timedelta(microseconds=1) * 1000
        if not 0 <= nanos <= COUNT_MAX:
            raise InvalidArgumentError(
                f"KeepFor's duration must be 0 seconds to 292 years, not {self.duration}")
        self._parts = ((Rule(KeepKind.DURATION, duration_ns=nanos),
                        f"KeepFor({self.duration / timedelta(seconds=1):g})"),)


class ByteBudget(Policy):
    """Keep the highest steps that together take at most `size` on disk.

    `size` is a number of bytes or a text such as "500 MB", "10GB" (powers of 1000) or "10GiB"
    (powers of 1024). Going down from the highest step, the first that does not fit ends it. The
    records of a step count, too: about half a KiB a leaf. A chunk to which several steps refer
    counts once: with the step that wrote it or, if the policy has deleted that step, with the
    oldest step that is left. If `delete` or if_exists="replace" has removed the writer, it may
    count for no step. In a store of many processes what process 0 stores counts.
    """

    __slots__ = ("nbytes",)

    def __init__(self, size: SupportsIndex | str) -> None:
        self.nbytes = _bytes(size)
        self._parts = ((Rule(KeepKind.BYTES, self.nbytes), f"ByteBudget({self.nbytes})"),)


class Pinned(Policy):
    """Keep pinned steps and the step just saved, nothing else."""

    __slots__ = ()

    def __init__(self) -> None:
        self._parts = ((Rule(KeepKind.PINNED), "Pinned()"),)


class LastVerified(Policy):
    """Keep the newest step that `Store.verify` or `Store.verify_in_background` found whole; tainted
    steps do not count.

    Only the store that is open for writing records what it verified: `verify` with mode "r", and
    `stepwell verify`, which is another process, record nothing. The record is of the step as it was
    saved: a step that replaces another is not verified, and one in which a later verification finds
    damage is not any more. While no step is verified this policy keeps none, so use it with others,
    such as `LatestN(20) | LastVerified()`, which keep a step until it is verified. Not with
    `disks="local"`, where no process reads all of a step.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._parts = ((Rule(KeepKind.LAST_VERIFIED), "LastVerified()"),)


def _bytes(size: SupportsIndex | str) -> int:
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        unit = _UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise InvalidArgumentError(
                f"ByteBudget takes bytes or a text like '10GB' or '512 MiB', not {size!r}")
        whole, _, fraction = match[1].partition(".")
        nbytes = int(whole + fraction) * unit // int(10**len(fraction))
    else:
        try:
            if isinstance(size, bool):
                raise TypeError
            nbytes = operator.index(size)
        except TypeError:
            raise InvalidArgumentError(
                f"ByteBudget takes bytes or a text like '10GB', not {size!r}") from None
    if not 1 <= nbytes <= COUNT_MAX:
        raise InvalidArgumentError(f"ByteBudget takes 1 byte to 2^63 - 1 bytes, not {size!r}")
    return nbytes
