# SPDX-License-Identifier: Apache-2.0
"""Which steps a store on local disks has, and what is in one of them, as all processes know it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .. import _stepwell
from .._pytree.records import ARRAY
from .._runtime.stats import StepSummary
from ..errors import Error, StepNotFoundError
from .local_disks_table import Share, Table
from .lockstep import Lockstep
from .messages import StepContents, StepNews, StepVote


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


class Snapshot:
    """The contents of a step, as all processes see it: each votes, process 0 merges the votes and
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
            self.shares.append(Share(part, core, reader, reader.tree()))
        self.contents: StepContents | None = None

    def vote(self) -> StepVote:
        """Told with it: arrays of which a part other than 0 has all, on a mesh of one process."""
        alone: list[tuple[int, str, str]] = []
        for share in self.shares:
            if share.part == 0:
                continue
            partial = share.tree.pieces()
            alone += [(share.part, key.hex(), value.hex())
                      for number, ((key, value), record)
                      in enumerate(zip(share.tree.encoded_records().items(), share.tree.records,
                                       strict=True))
                      if record.kind == ARRAY and number not in partial]
        return StepVote([(share.part, share.save_id) for share in self.shares],
                        sum(share.reader.stored_bytes for share in self.shares),
                        sum(share.reader.owned_bytes for share in self.shares), alone)

    def merge(self, votes: Sequence[StepVote]) -> StepContents:
        """On process 0: what is in the step."""
        root = self.shares[0]
        reader = root.reader
        save_id, parts = (root.save_id, reader.group.parts) if reader.group else ("", [0])
        here = {part for vote in votes for part, saved in vote.parts if saved == save_id}
        missing = [part for part in parts if part not in here]
        if missing:
            raise Error(
                f"step {self.step} was saved by parts {_numbers(parts)}, and no process of this "
                f"run has part {_numbers(missing)}: on disks of their own, a run needs the "
                "machines, and the numbers of their processes, of the run that saved; on a file "
                "system that all share it may have any number of processes")
        records = {key.hex(): value.hex() for key, value in root.tree.encoded_records().items()}
        keys = root.tree.keys()
        partial = [keys[number].hex() for number in root.tree.pieces()]
        owner: dict[str, int] = {}
        for part, key, value in [leaf for vote in votes for leaf in vote.alone]:
            if key not in records and part in parts:  # part 0's counts, or that of a lower part
                records[key] = value
                owner[key] = part
        # Hexadecimal digits sort as the bytes do.
        number = {key: number for number, key in enumerate(sorted(records))}
        self.contents = StepContents(
            reader.commit, reader.time_ns, reader.pinned, reader.taint,
            reader.metadata_json, reader.metrics_json, reader.logical_bytes,
            sum(vote.stored_bytes for vote in votes), sum(vote.owned_bytes for vote in votes),
            [item.name for item in reader.items], save_id, sorted(records.items()),
            [(number[key], part) for key, part in owner.items()],
            [number[key] for key in partial])
        return self.contents

    def receive(self, contents: StepContents) -> None:
        self.contents = contents
        self.shares = [share for share in self.shares if share.save_id == contents.save_id]


def _numbers(parts: Sequence[int]) -> str:
    return ", ".join(map(str, parts))


class Item(NamedTuple):
    """The fields of `_stepwell.ItemRecord` that are used."""

    name: str


class Reader:
    """A `_stepwell.Reader` whose facts about the step itself come from its StepContents."""

    def __init__(self, snapshot: Snapshot, lockstep: Lockstep) -> None:
        contents = snapshot.contents
        assert contents is not None
        self._contents = contents
        self.step = snapshot.step
        records = {bytes.fromhex(key): bytes.fromhex(value) for key, value in contents.records}
        self.table = Table(_stepwell.StepTree(self.step, records), self.step, contents.partial,
                           dict(contents.alone), snapshot.shares, lockstep)
        self.shares = [share for share in snapshot.shares
                       if share.part == 0 or share.save_id == contents.save_id]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contents, name)

    @property
    def items(self) -> list[Item]:
        return [Item(name) for name in self._contents.items]

    def shardings(self) -> list[str]:
        return self.table.tree.shardings()

    def tree(self) -> _stepwell.StepTree:
        return self.table.tree
