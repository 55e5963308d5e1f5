# SPDX-License-Identifier: Apache-2.0
"""Where a row of steps turns from good to bad: the search alone, without processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import Enum


class Verdict(Enum):
    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"  # it cannot be told of this step


class Search:
    """Asks for a verdict on one step at a time, until a good step and a bad one have nothing but
    skipped steps between them.

    steps: from one that is good to one that is bad; these two are never asked for.

    Where the verdicts turn more than once, it finds one of the places. Where no step is skipped it
    asks for ceil(log2(len(steps) - 1)) at most, and for no step twice.
    """

    def __init__(self, steps: Sequence[int]) -> None:
        if len(steps) < 2 or len(set(steps)) < len(steps):
            raise ValueError("steps are at least two, each once")
        self._steps = steps
        self._good, self._bad = 0, len(steps) - 1  # positions
        self._skipped: set[int] = set()  # positions

    @property
    def last_good(self) -> int:
        return self._steps[self._good]

    @property
    def first_bad(self) -> int:
        """One of `skipped` may be bad before it."""
        return self._steps[self._bad]

    @property
    def skipped(self) -> list[int]:
        """The skipped steps between `last_good` and `first_bad`, from there to here."""
        return [self._steps[i] for i in range(self._good + 1, self._bad) if i in self._skipped]

    @property
    def left(self) -> int:
        """How many steps may still be asked for."""
        return sum(map(len, self._runs()))

    def next(self) -> int | None:
        """The step to ask for; None: the search is over.

        It is the middle of a run of open steps. Steps that cannot be told lie side by side, as a
        rule, so the runs beside the good and the bad step come first: these find the ends of what
        cannot be told as fast as they find a border that is outside of it."""
        runs = self._runs()
        outer = [run for run in runs
                 if run.start == self._good + 1 or run.stop == self._bad]
        run = max(outer or runs, key=len, default=None)
        return None if run is None else self._steps[run[len(run) // 2]]

    def tell(self, step: int, verdict: Verdict) -> None:
        """`step`: one that is still open, such as that of `next`."""
        position = self._steps.index(step)
        if not self._good < position < self._bad or position in self._skipped:
            raise ValueError(f"step {step} is not open")
        if verdict is Verdict.SKIPPED:
            self._skipped.add(position)
        elif verdict is Verdict.GOOD:
            self._good = position
        else:
            self._bad = position

    def skip_all_but(self, steps: Iterable[int]) -> None:
        """Of the open steps those that are not among `steps` cannot be told."""
        there = set(steps)
        self._skipped.update(i for i in range(self._good + 1, self._bad)
                             if self._steps[i] not in there)

    def _runs(self) -> list[range]:
        """The positions of open steps."""
        walls = [self._good, *sorted(i for i in self._skipped if self._good < i < self._bad),
                 self._bad]
        return [range(one + 1, other) for one, other in itertools.pairwise(walls)
                if one + 1 < other]
