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
from typing import Any, TypeVar, cast

from .. import _stepwell
from .._backend.backend import SourceOf, StepOf
from .._backend.export_options import ExportReport, ExportRequest, locate
from .._runtime.arguments import Progress
from .._stepwell import ByteRun, PartFile
from ..errors import Error, InvalidArgumentError, PeerError
from .local_disks_table import Share
from .lockstep import Lockstep
from .messages import ExportShare, Value, pack, unpack
from .snapshot import Reader

M = TypeVar("M")


def _check_same(requests: list[dict[str, Any]]) -> None:
    for process, request in enumerate(requests):
        for key, value in request.items():
            if value != requests[0][key]:
                raise PeerError(
                    f"the processes do not export the same: {key} is {value!r} in process "
                    f"{process} and {requests[0][key]!r} in process 0", [process])


def _check(request: ExportRequest) -> None:
    if request.to != "orbax":
        raise Error("an archive needs all parts of a step on one file system, and those of this "
                    "store lie on disks of several machines; to='orbax' makes a checkpoint of it")
    if request.mode == "link":
        raise InvalidArgumentError("mode 'link' needs all parts of a step on one file system, and "
                                   "those of this store lie on disks of several machines; use "
                                   "'copy'")


class LocalDisksExport:
    """One export, on one process."""

    def __init__(self, lockstep: Lockstep, request: ExportRequest) -> None:
        self._lockstep = lockstep
        self._request = request
        self._what = f"exporting to {request.dest!r}"
        self._made: _stepwell.PartsExport | None = None  # on process 0
        self._mark = ""

    def _do(self, work: Callable[[], M]) -> list[M]:
        """The messages that `work`, on the thread that calls, gives on all processes, each as long
        as the slowest takes. An error on one is one on all, once all are done."""
        interrupt: list[BaseException] = []

        def work_or_error() -> M:
            try:
                return work()
            except Exception:
                raise
            except BaseException as error:
                interrupt.append(error)
                raise PeerError(f"{self._what} was interrupted") from error

        try:
            return self._lockstep.all_gather_slow(work_or_error, self._what)
        except Exception:
            if interrupt:
                raise interrupt[0] from None
            raise
        except BaseException as error:  # while it waited
            self._lockstep.abort(error)
            raise

    def run(self, step_of: StepOf, source_of: SourceOf, progress: Progress | None) -> ExportReport:
        def asked() -> Value:
            request = self._request
            _check(request)
            request.options()  # raises for what is wrong with them
            return Value({**vars(request), "step": step_of(request.step),
                          "path": repr(request.path)})

        requests = [each.value for each in self._do(asked)]
        _check_same(requests)
        source = source_of(requests[0]["step"])
        self._shares = cast(Reader, source.reader).shares

        def records() -> ExportShare:
            self._options = self._request.options_for(source.reader)
            _, key = locate(source, self._request.path)
            self._options.subtree_key = key
            self._data = {share.part: share.reader.records(key)
                          for share in self._shares if share.part != 0}
            sizes = [sum(map(len, self._data.values()))] + [0] * (self._lockstep.count - 1)
            return ExportShare(sizes, [(part, len(data)) for part, data in self._data.items()])

        have = self._do(records)
        came = self._lockstep.send([b"".join(self._data.values())] + [b""] * (len(have) - 1),
                          [each.sizes for each in have])
        with contextlib.ExitStack() as stack:
            files = self._begin(have, came, stack)
            cloned = self._do(lambda: Value(self._copy(files, progress)))
            kinds = {kind for each in cloned for kind in each.value}
            done = self._do(lambda: self._finish(kinds == {True}, progress))[0]
        return ExportReport.from_fields(done.value)

    def _begin(self, have: list[ExportShare], came: list[bytes], stack: contextlib.ExitStack
               ) -> list[PartFile]:
        """Starts to copy what each part here has to copy, as process 0 decides."""
        data: list[bytes] = []

        def begin() -> ExportShare:
            if self._lockstep.index != 0:
                data.extend([b""] * len(have))
                return ExportShare([0] * len(have))
            request = self._request
            root = next(share for share in self._shares if share.part == 0)
            self._made = root.core.begin_export(
                root.reader, cut_records(have, came), request.dest, self._options)
            stack.callback(self._made.close)
            holder = {part: process for process, each in enumerate(have) for part, _ in each.parts}
            plans: list[list[Any]] = [[] for _ in have]
            for file in self._made.files:
                plans[holder.get(file.part, 0)].append(_fields(file))
            data.extend([pack(Value(plan)) for plan in plans])
            return ExportShare([0, *map(len, data[1:])], mark=self._made.mark)

        plans = self._do(begin)
        self._mark = plans[0].mark
        from_leader = self._lockstep.send(data, [plan.sizes for plan in plans])[0]
        return [PartFile(part, path, [ByteRun(*run) for run in runs])
                for part, path, runs in unpack(from_leader, Value, 0, self._what).value]

    def _copy(self, files: list[PartFile], progress: Progress | None) -> list[bool]:
        if not os.path.isdir(self._mark):
            raise Error(
                f"process {self._lockstep.index} does not see {self._mark!r}, which process 0 has "
                "just made: where the parts of a step lie on disks of several machines, it is "
                "exported to a file system that all processes see")
        return [copy_part(share, mine, self._options, progress) for share in self._shares
                if (mine := [file for file in files if file.part == share.part])]

    def _finish(self, cloned: bool, progress: Progress | None) -> Value:
        if self._made is None:
            return Value()
        made = self._made.finish(cloned, progress)
        return Value(vars(ExportReport.of(made, self._options.leaves.name)))


def cut_records(have: list[ExportShare], came: list[bytes]) -> dict[int, bytes]:
    """Cuts each part's records out of what came from the processes."""
    records = {}
    for each, data in zip(have, came, strict=True):
        at = 0
        for part, size in each.parts:
            records[part] = data[at:at + size]
            at += size
    return records


def copy_part(share: Share, files: list[PartFile], options: _stepwell.OrbaxOptions,
              progress: Progress | None) -> bool:
    return share.core.copy_part(share.reader, files, options.mode, options.file_mode, progress)


def _fields(file: PartFile) -> tuple[int, str, list[tuple[int, int, int, int]]]:
    return file.part, file.path, [(run.segment, run.start, run.length, run.to)
                                  for run in file.runs]
