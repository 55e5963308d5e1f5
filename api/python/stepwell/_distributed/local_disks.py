# SPDX-License-Identifier: Apache-2.0
"""A store whose parts lie on the disks of several machines, so that no process can read a step by
itself.

Process 0 has the root: it tells the others which steps there are (with each decision), and what is
in a step when all of them look at it. Every process reads what is in its own part, and XLA carries
it to who wants it. Looking at a step, and reading anything of it, are therefore things that all
processes do together, in the same order; what each wants of it is its own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import _stepwell
from .._pytree.dtypes import NUMBERS
from .._pytree.records import ARRAY, Record
from .._pytree.tree import Component
from ..errors import Error, StepNotFoundError
from .local_disks_table import Key, Share, Table
from .wire import packed_text, unpacked_text

if TYPE_CHECKING:
    from .group import Group

T = TypeVar("T")
Summary = tuple[Any, ...]  # of Core.steps()

_DTYPES = {number: dtype for dtype, number in NUMBERS.items()}


# ---- which steps there are ----------------------------------------------------------------------


class Steps:
    """The steps of the root, as every process knows them. Read by any thread."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._all = {int(summary[0]): tuple(summary) for summary in summaries}
        self.error: Error | None = None  # why they are not known any more

    def all(self) -> list[Summary]:
        if self.error is not None:
            raise type(self.error)(f"which steps there are is not known here: {self.error}")
        return list(self._all.values())

    def advance(self, summaries: Sequence[Summary]) -> dict[str, Any]:
        """On process 0, with those of the root: what the others have to be told."""
        now = {int(summary[0]): tuple(summary) for summary in summaries}
        old, self._all = self._all, now
        return {"gone": [step for step in old if step not in now],
                "new": [summary for step, summary in now.items() if old.get(step) != summary]}

    def follow(self, told: dict[str, Any]) -> None:
        gone = set(told["gone"])
        now = {step: summary for step, summary in self._all.items() if step not in gone}
        now.update({int(summary[0]): tuple(summary) for summary in told["new"]})
        self._all = dict(sorted(now.items()))


# ---- what is in a step --------------------------------------------------------------------------


def _row_told(record: Record) -> list[Any]:
    return list(record._replace(dtype=None if record.dtype is None else NUMBERS[record.dtype]))


def _row_heard(row: list[Any]) -> tuple[Any, ...]:
    record = Record._make(row)
    return tuple(record._replace(
        component=None if record.component is None else tuple(record.component),
        dtype=None if record.dtype is None else _DTYPES[record.dtype], shape=tuple(record.shape),
        chunk_shape=tuple(record.chunk_shape), shard_shape=tuple(record.shard_shape)))


def _key_heard(key: list[list[Any]]) -> Key:
    return tuple([cast(Component, tuple(component)) for component in key])


class Look:
    """A step that all processes look at: from `word`, which each tells process 0, to `tell` there
    and `hear` on the others. Keeps what is here from being reclaimed while it lives."""

    def __init__(self, step: int, cores: Sequence[_stepwell.Core]) -> None:
        self.step = step
        self.shares: list[Share] = []
        for core in cores:
            _, part, _, _ = core.group_status()
            try:
                reader = core.read_share(step)
            except StepNotFoundError:
                if part == 0:
                    raise
                continue  # it was not saved by this part
            table = reader.leaves()
            self.shares.append(Share(part, core, reader, table,
                                     [Record._make(row) for row in table.rows()]))
        self.about: dict[str, Any] = {}

    def word(self) -> dict[str, Any]:
        """Told with it: arrays of which a part other than 0 has all, on a mesh of one process."""
        alone = []
        for share in self.shares:
            if share.part == 0:
                continue
            partial = share.table.pieces()
            paths = share.table.paths()
            alone += [[share.part, paths[number][0].hex(), key, _row_told(record)]
                      for number, (key, record)
                      in enumerate(zip(share.keys(), share.records, strict=True))
                      if record.kind == ARRAY and number not in partial]
        return {"parts": [[share.part, share.save_id] for share in self.shares],
                "stored": sum(share.reader.stored_bytes for share in self.shares),
                "alone": packed_text(alone) if alone else ""}

    def tell(self, words: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """On process 0: what is in the step."""
        root = self.shares[0]
        reader = root.reader
        save_id, parts = (root.save_id, reader.group[1]) if reader.group else ("", [0])
        here = {part for word in words for part, saved in word["parts"] if saved == save_id}
        missing = [part for part in parts if part not in here]
        if missing:
            raise Error(
                f"step {self.step} was saved by parts {_numbers(parts)}, and no process of this "
                f"run has part {_numbers(missing)}: on disks of their own, a run needs the "
                "machines, and the numbers of their processes, of the run that saved; on a file "
                "system that all share it may have any number of processes")
        rows = [_row_told(record) for record in root.records]
        keys = [key for key, *_ in root.table.paths()]
        numbers = {key: number for number, key in enumerate(root.keys())}
        alone: dict[int, int] = {}
        for part, key, path, row in [leaf for word in words if word["alone"]
                                     for leaf in unpacked_text(word["alone"])]:
            place = _key_heard(path)
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
        self.about = {
            "commit": reader.commit, "time_ns": reader.time_ns, "pinned": reader.pinned,
            "metadata_json": reader.metadata_json, "metrics_json": reader.metrics_json,
            "logical_bytes": reader.logical_bytes, "items": reader.items(),
            "stored_bytes": sum(word["stored"] for word in words), "save_id": save_id,
            "rows": rows, "alone": [[now[number], part] for number, part in alone.items()],
            "partial": [now[number] for number in root.table.pieces()],
        }
        return self.about

    def hear(self, about: dict[str, Any]) -> None:
        self.about = about
        self.shares = [share for share in self.shares if share.save_id == about["save_id"]]


def _numbers(parts: Sequence[int]) -> str:
    return ", ".join(map(str, parts))


class Reader:
    """As `_stepwell.Reader`, of a step that all processes have looked at."""

    def __init__(self, look: Look, group: Group) -> None:
        about = look.about
        self._about = about
        self.step = look.step
        self.commit: int = about["commit"]
        self.time_ns: int = about["time_ns"]
        self.pinned: bool = about["pinned"]
        self.metadata_json: str = about["metadata_json"]
        self.metrics_json: str = about["metrics_json"]
        self.logical_bytes: int = about["logical_bytes"]
        self.stored_bytes: int = about["stored_bytes"]
        self._table = Table(self.step, [_row_heard(row) for row in about["rows"]],
                            about["partial"], dict(map(tuple, about["alone"])), look.shares, group)
        self.tree = self._table.tree
        self.shares = [share for share in look.shares
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

    def __init__(self, group: Group) -> None:
        self._group = group

    def steps(self) -> list[Summary]:
        return self._group.steps.all()

    def newest(self) -> int | None:
        return max((summary[0] for summary in self.steps()), default=None)

    def read(self, step: int) -> Reader:
        return Reader(self._group.look(step), self._group)

    def verify(self, step: int | None = None) -> Any:
        return self._group.writer.verify_share(step)

    def stats(self) -> dict[str, object]:
        return self._group.writer.stats()

    def recovery(self) -> dict[str, object]:
        return self._group.writer.recovery()

    def close(self) -> None:
        pass
