# SPDX-License-Identifier: Apache-2.0
"""Which steps a store on local disks has, and what is in one of them, as all processes know it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from .. import _stepwell
from .._pytree.dtypes import NUMBERS
from .._pytree.records import ARRAY, Record
from .._pytree.tree import Component
from .._runtime.stats import StepSummary
from ..errors import Error, StepNotFoundError
from .local_disks_table import Key, Share, Table
from .lockstep import Lockstep
from .messages import StepContents, StepNews, StepVote

_DTYPES = {number: dtype for dtype, number in NUMBERS.items()}


class StepList:
    """The steps of the root, as every process knows them. Read by any thread."""

    def __init__(self, summaries: Iterable[StepSummary]) -> None:
        self._all = {summary.step: summary for summary in summaries}
        self.error: Error | None = None  # why they are not known any more

    def all(self) -> list[StepSummary]:
        if self.error is not None:
            raise type(self.error)(f"which steps there are is not known here: {self.error}")
        return list(self._all.values())

    def advance(self, summaries: Iterable[StepSummary]) -> StepNews:
        """On process 0, with those of the root: the news for the others."""
        now = {summary.step: summary for summary in summaries}
        old, self._all = self._all, now
        return StepNews([step for step in old if step not in now],
                        [summary for step, summary in now.items() if old.get(step) != summary])

    def follow(self, news: StepNews) -> None:
        gone = set(news.gone)
        now = {step: summary for step, summary in self._all.items() if step not in gone}
        now.update({summary.step: summary for summary in map(StepSummary._make, news.new)})
        self._all = dict(sorted(now.items()))


def _row_sent(record: Record) -> list[Any]:
    return list(record._replace(dtype=None if record.dtype is None else NUMBERS[record.dtype]))


def _row_received(row: list[Any]) -> tuple[Any, ...]:
    record = Record._make(row)
    return tuple(record._replace(
        component=None if record.component is None else tuple(record.component),
        dtype=None if record.dtype is None else _DTYPES[record.dtype], shape=tuple(record.shape),
        chunk_shape=tuple(record.chunk_shape), shard_shape=tuple(record.shard_shape)))


def _key_received(key: list[list[Any]]) -> Key:
    return tuple([cast(Component, tuple(component)) for component in key])


class Snapshot:
    """What is in a step, as all processes see it: each votes, process 0 merges the votes and
    broadcasts the outcome, the others receive it. Keeps what is here from being reclaimed while it
    lives."""

    def __init__(self, step: int, cores: Sequence[_stepwell.Core]) -> None:
        self.step = step
        self.shares: list[Share] = []
        for core in cores:
            part = core.group_status().part
            try:
                reader = core.read_share(step)
            except StepNotFoundError:
                if part == 0:
                    raise
                continue  # it was not saved by this part
            table = reader.leaves()
            self.shares.append(Share(part, core, reader, table,
                                     [Record._make(row) for row in table.rows()]))
        self.contents: StepContents | None = None

    def vote(self) -> StepVote:
        """Told with it: arrays of which a part other than 0 has all, on a mesh of one process."""
        alone = []
        for share in self.shares:
            if share.part == 0:
                continue
            partial = share.table.pieces()
            paths = share.table.paths()
            alone += [[share.part, paths[number][0].hex(), key, _row_sent(record)]
                      for number, (key, record)
                      in enumerate(zip(share.keys(), share.records, strict=True))
                      if record.kind == ARRAY and number not in partial]
        return StepVote([(share.part, share.save_id) for share in self.shares],
                        sum(share.reader.stored_bytes for share in self.shares), alone)

    def merge(self, votes: Sequence[StepVote]) -> StepContents:
        """On process 0: what is in the step."""
        root = self.shares[0]
        reader = root.reader
        save_id, parts = (root.save_id, reader.group[1]) if reader.group else ("", [0])
        here = {part for vote in votes for part, saved in vote.parts if saved == save_id}
        missing = [part for part in parts if part not in here]
        if missing:
            raise Error(
                f"step {self.step} was saved by parts {_numbers(parts)}, and no process of this "
                f"run has part {_numbers(missing)}: on disks of their own, a run needs the "
                "machines, and the numbers of their processes, of the run that saved; on a file "
                "system that all share it may have any number of processes")
        rows = [_row_sent(record) for record in root.records]
        keys = [key for key, *_ in root.table.paths()]
        numbers = {key: number for number, key in enumerate(root.keys())}
        alone: dict[int, int] = {}
        for part, key, path, row in [leaf for vote in votes for leaf in vote.alone]:
            place = _key_received(path)
            if place in numbers or part not in parts:
                continue  # part 0's counts, or that of a lower part
            numbers[place] = len(rows)
            alone[len(rows)] = part
            row[0] = numbers.get(place[:-1], -1)
            rows.append(row)
            keys.append(bytes.fromhex(key))
        order = sorted(range(len(rows)), key=keys.__getitem__)
        now = {number: place for place, number in enumerate(order)}
        rows = [[now.get(rows[number][0], -1), *rows[number][1:]] for number in order]
        self.contents = StepContents(
            reader.commit, reader.time_ns, reader.pinned, reader.metadata_json,
            reader.metrics_json, reader.logical_bytes, sum(vote.stored_bytes for vote in votes),
            reader.items(), save_id, rows, [(now[number], part) for number, part in alone.items()],
            [now[number] for number in root.table.pieces()])
        return self.contents

    def receive(self, contents: StepContents) -> None:
        self.contents = contents
        self.shares = [share for share in self.shares if share.save_id == contents.save_id]


def _numbers(parts: Sequence[int]) -> str:
    return ", ".join(map(str, parts))


class Reader:
    """As `_stepwell.Reader`: what is of the step itself is in its StepContents."""

    def __init__(self, snapshot: Snapshot, lockstep: Lockstep) -> None:
        contents = snapshot.contents
        assert contents is not None
        self._contents = contents
        self.step = snapshot.step
        self.table = Table(self.step, [_row_received(row) for row in contents.rows],
                           contents.partial, dict(contents.alone), snapshot.shares,
                           lockstep)
        self.tree = self.table.tree
        self.shares = [share for share in snapshot.shares
                       if share.part == 0 or share.save_id == contents.save_id]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contents, name)

    def items(self) -> list[tuple[str, int, int, int]]:
        return [tuple(item) for item in self._contents.items]

    def shardings(self) -> list[str]:
        return self.table.shardings()

    def leaves(self) -> Table:
        return self.table
