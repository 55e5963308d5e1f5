# SPDX-License-Identifier: Apache-2.0
"""A store whose parts lie on the disks of several machines, so that no process can read a step by
itself.

Process 0 has the root: it tells the others which steps there are (with each decision), and what is
in a step when all of them look at it. Every process reads what is in its own part, and XLA carries
it to who wants it. Looking at a step, and reading anything of it, are therefore things that all
processes do together, in the same order; what each wants of it is its own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .. import _stepwell
from .local_disks_table import Table
from .lockstep import Lockstep
from .snapshot import Snapshot, StepList, Summary, row_received

T = TypeVar("T")


class Reader:
    """As `_stepwell.Reader`, of a step that all processes have looked at."""

    def __init__(self, snapshot: Snapshot, lockstep: Lockstep) -> None:
        about = snapshot.about
        self._about = about
        self.step = snapshot.step
        self.commit: int = about["commit"]
        self.time_ns: int = about["time_ns"]
        self.pinned: bool = about["pinned"]
        self.metadata_json: str = about["metadata_json"]
        self.metrics_json: str = about["metrics_json"]
        self.logical_bytes: int = about["logical_bytes"]
        self.stored_bytes: int = about["stored_bytes"]
        self._table = Table(self.step, [row_received(row) for row in about["rows"]],
                            about["partial"], dict(map(tuple, about["alone"])), snapshot.shares,
                            lockstep)
        self.tree = self._table.tree
        self.shares = [share for share in snapshot.shares
                       if share.part == 0 or share.save_id == about["save_id"]]

    def items(self) -> list[tuple[str, int, int, int]]:
        return [tuple(item) for item in self._about["items"]]

    def shardings(self) -> list[str]:
        return self._table.shardings()

    def leaves(self, item: str | None = None) -> Table:
        return self._table

    def together(self, load: Callable[[], T]) -> T:
        """`load`, by all processes or by none: an error of one is one on all."""
        return self._table.together(load)


# ---- the store ----------------------------------------------------------------------------------


class Core:
    """What a Store asks its core, as far as that is possible here."""

    def __init__(self, writer: _stepwell.Core, steps: StepList,
                 snapshot: Callable[[int], Snapshot], lockstep: Lockstep) -> None:
        self._writer = writer
        self._steps = steps
        self._snapshot = snapshot
        self._lockstep = lockstep

    def steps(self) -> list[Summary]:
        return self._steps.all()

    def newest(self) -> int | None:
        return max((summary[0] for summary in self.steps()), default=None)

    def read(self, step: int) -> Reader:
        return Reader(self._snapshot(step), self._lockstep)

    def verify(self, step: int | None = None) -> Any:
        return self._writer.verify_share(step)

    def stats(self) -> dict[str, object]:
        return self._writer.stats()

    def recovery(self) -> dict[str, object]:
        return self._writer.recovery()

    def close(self) -> None:
        pass
