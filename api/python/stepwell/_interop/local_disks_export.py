# SPDX-License-Identifier: Apache-2.0
"""Exports of steps whose parts lie on disks of several machines, to a file system that all
processes see.

Process 0 plans the checkpoint from the records that the others send it, makes its directory and
describes it, as it does with any export; each process copies the chunks of its own part into files
there that process 0 has named (db/export/orbax/parts.h).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, SupportsIndex, cast

import numpy as np

from .. import _stepwell
from .._distributed.local_disks import Reader
from .._distributed.local_disks_table import Share
from .._distributed.lockstep import Lockstep
from .._distributed.wire import packed, unpacked
from .._lifetime import OpenStore
from .._runtime.arguments import Progress
from ..errors import Error, InvalidArgumentError, PeerError
from . import export_options

Word = dict[str, Any]
PartFile = tuple[str, list[tuple[int, int, int, int]]]  # as Core.copy_part takes it


class _Together:
    """What the processes do one thing after the other, each as long as the slowest takes. An error
    on one is one on all, once all are done."""

    def __init__(self, lockstep: Lockstep, what: str) -> None:
        self._lockstep = lockstep
        self._what = what

    def do(self, work: Callable[[], Word]) -> list[Word]:
        """What `work`, on the thread that calls, gives on every process."""
        interrupt: list[BaseException] = []

        def work_or_tell() -> Word:
            try:
                return {"export": work()}
            except Exception:
                raise
            except BaseException as error:
                interrupt.append(error)
                raise PeerError(f"{self._what} was interrupted") from error

        try:
            words = self._lockstep.all_gather_slow(work_or_tell, self._what)
        except Exception:
            if interrupt:
                raise interrupt[0] from None
            raise
        except BaseException as error:  # while it waited
            self._lockstep.abort(error)
            raise
        for process, word in enumerate(words):
            if "export" not in word:
                raise PeerError(f"process {process} does something else than {self._what}",
                                [process])
        return [word["export"] for word in words]

    def send(self, data: list[bytes], words: list[Word]) -> list[bytes]:
        """Bytes from each process to each: `data`, by process, from here. `words` have all their
        "sizes". What came, by process."""
        mine = [np.frombuffer(each, np.uint8) for each in data]
        came = [np.empty(word["sizes"][self._lockstep.index], np.uint8) for word in words]
        came[self._lockstep.index] = mine[self._lockstep.index]
        others = [process != self._lockstep.index for process in range(len(words))]
        self._lockstep.exchange(
            [[array] * other for array, other in zip(mine, others, strict=True)],
            [[array] * other for array, other in zip(came, others, strict=True)],
            max(max(word["sizes"]) for word in words))
        return [array.tobytes() for array in came]


def _check_same(words: list[Word]) -> None:
    for process, word in enumerate(words):
        for key, value in word.items():
            if value != words[0][key]:
                raise PeerError(
                    f"the processes do not export the same: {key} is {value!r} in process "
                    f"{process} and {words[0][key]!r} in process 0", [process])


def _check(to: str, how: dict[str, Any]) -> None:
    if to != "orbax":
        raise Error("an archive needs all parts of a step on one file system, and those of this "
                    "store lie on disks of several machines; to='orbax' makes a checkpoint of it")
    if how["mode"] == "link":
        raise InvalidArgumentError("mode 'link' needs all parts of a step on one file system, and "
                                   "those of this store lie on disks of several machines; use "
                                   "'copy'")


class _Export:
    """One export, on one process."""

    def __init__(self, store: OpenStore, how: dict[str, Any]) -> None:
        assert store._group is not None
        self._lockstep = store._group.lockstep
        self._together = _Together(self._lockstep, f"exporting to {how['dest']!r}")
        self._store = store
        self._how = how
        self._made: _stepwell.PartsExport | None = None  # on process 0
        self._mark = ""
        self._subtree: Any = None

    def run(self, step: SupportsIndex | None, to: str, progress: Progress | None
            ) -> export_options.ExportReport:
        how = self._how

        def asked() -> Word:
            _check(to, how)
            export_options.check_file_mode(how["file_mode"])
            self._numbers = export_options.choices(how["mode"], how["layout"], how["leaves"],
                                            how["on_unsupported"])
            return {"step": self._store._step(step), "to": to, **how, "path": repr(how["path"])}

        words = self._together.do(asked)
        _check_same(words)
        source = self._store._source(words[0]["step"])
        reader = cast(Reader, source.reader)
        self._shares = reader.shares

        def records() -> Word:
            self._chosen = self._numbers(source.reader)
            _, self._subtree = export_options.locate(source, how["path"])
            self._data = {share.part: share.reader.records(self._subtree)
                          for share in self._shares if share.part != 0}
            sizes = [sum(map(len, self._data.values()))] + [0] * (self._lockstep.count - 1)
            return {"parts": [[part, len(data)] for part, data in self._data.items()],
                    "sizes": sizes}

        words = self._together.do(records)
        came = self._together.send([b"".join(self._data.values())]
                                   + [b""] * (len(words) - 1), words)
        with contextlib.ExitStack() as stack:
            files = self._begin(words, came, stack)
            cloned = self._together.do(lambda: self._copy(files, progress))
            kinds = {kind for word in cloned for kind in word["cloned"]}
            done = self._together.do(lambda: self._finish(kinds == {True}, progress))[0]
        return export_options.report(done["report"], done["leaves"])

    def _begin(self, words: list[Word], came: list[bytes], stack: contextlib.ExitStack
               ) -> dict[int, list[PartFile]]:
        """What each part here has to copy, as process 0 says."""
        data: list[bytes] = []

        def begin() -> Word:
            if self._lockstep.index != 0:
                data.extend([b""] * len(words))
                return {"sizes": [0] * len(words)}
            how = self._how
            root = next(share for share in self._shares if share.part == 0)
            self._made = root.core.begin_export(
                root.reader, _cut(words, came), how["dest"], *self._chosen, how["zarr"],
                self._subtree, how["step_prefix"], how["step_digits"], how["unnamed_default"],
                how["file_mode"] or 0)
            stack.callback(self._made.close)
            of_part: dict[int, list[PartFile]] = {}
            for part, file in self._made.files():
                of_part.setdefault(part, []).append(file)
            for word in words:
                parts = [part for part, _ in word["parts"]]
                data.append(packed([[part, of_part.pop(part)] for part in parts
                                    if part in of_part]))
            data[0] = packed([[part, files] for part, files in of_part.items()]
                             + unpacked(data[0]))
            return {"sizes": [0, *map(len, data[1:])], "mark": self._made.mark}

        told = self._together.do(begin)
        self._mark = told[0]["mark"]
        from_leader = self._together.send(data, told)[0]
        return {part: [(path, [tuple(run) for run in runs]) for path, runs in files]
                for part, files in unpacked(from_leader)}

    def _copy(self, files: dict[int, list[PartFile]], progress: Progress | None) -> Word:
        if not os.path.isdir(self._mark):
            raise Error(
                f"process {self._lockstep.index} does not see {self._mark!r}, which process 0 has "
                "just made: where the parts of a step lie on disks of several machines, it is "
                "exported to a file system that all processes see")
        return {"cloned": [copy_part(share, files[share.part], self._chosen[0],
                                     self._how["file_mode"] or 0, progress)
                           for share in self._shares if share.part in files]}

    def _finish(self, cloned: bool, progress: Progress | None) -> Word:
        if self._made is None:
            return {}
        fields = self._made.finish(cloned, progress)
        return {"report": fields, "leaves": export_options.leaf_type(self._chosen[2])}


def _cut(words: list[Word], came: list[bytes]) -> list[tuple[int, bytes]]:
    """What each part's records are of what came from the processes."""
    records = []
    for word, data in zip(words, came, strict=True):
        at = 0
        for part, size in word["parts"]:
            records.append((part, data[at:at + size]))
            at += size
    return records


def copy_part(share: Share, files: list[PartFile], mode: int, file_mode: int,
              progress: Progress | None) -> bool:
    return share.core.copy_part(share.reader, files, mode, file_mode, progress)


def export_together(store: OpenStore, step: SupportsIndex | None, to: str, how: dict[str, Any],
           progress: Progress | None) -> export_options.ExportReport:
    """As Store.export, by all processes; `how`: its other arguments."""
    store._check()
    return _Export(store, how).run(step, to, progress)
