# SPDX-License-Identifier: Apache-2.0
"""A step to a pushed run, in order. Why that order: README.md, "A pushed run"."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from .. import _stepwell
from .._lifetime import OpenStore
from .._load.source import Source
from .._runtime import durable
from .._runtime.arguments import Progress
from .._stepwell import DataObject
from ..errors import CorruptionError, FormatError, StepExistsError, StorageError
from . import push_manifest, run
from .directory_store import DirectoryStore
from .object_store import ObjectStore
from .pushed import PushReport
from .run import RunStore
from .run_delete import remove_unnamed
from .transfer import Transfers, claimed

# How often a push plans anew because steps that it referred to were deleted meanwhile.
_ATTEMPTS = 20
_MARKERS_NAME = "markers"  # in the work directory: markers of this store's that may be there


def push_to_run(store: OpenStore, source: Source, place: ObjectStore | DirectoryStore,
                if_exists: str, verify: bool, work: str, progress: Progress | None) -> PushReport:
    """Does `push`, which documents it. `work`: a directory that no other push to `place` uses."""
    mode = stat.S_IMODE(os.stat(store.path).st_mode) & 0o777
    bucket = run.writable(place, mode)
    if not _begins(bucket, source.step, if_exists):
        return PushReport(bucket.url, source.step, 0, 0, 0, 0, skipped=True)
    with claimed(work, keep_on_error=True) as folder:
        push = _Push(store._backend.files("a push"), source, bucket, folder, verify, progress)
        try:
            for _ in range(_ATTEMPTS):
                report = push.attempt()
                if report is not None:
                    return report
            raise StorageError(f"{bucket.url}: steps that this one refers to were deleted "
                               f"{_ATTEMPTS} times while it was pushed; push again")
        except BaseException:
            if not push.markers():  # nothing of it is there, so there is nothing to note
                durable.remove_tree(folder)
            raise


def _begins(bucket: RunStore, step: int, if_exists: str) -> bool:
    """Makes the run where there is none; whether the push goes on. StepExistsError."""
    there = bucket.list()
    if run.MARK in there:
        run.is_run(bucket)  # of this version
    elif there:
        raise StepExistsError(f"{bucket.url} is not a pushed run, and not empty: it has "
                              f"{len(there)} objects, such as {min(there)!r}; push a run to a "
                              "place of its own")
    else:
        bucket.put(run.MARK, run.mark())
    if run.step_key(step) in there and if_exists == "error":
        raise StepExistsError(f"{bucket.url} has step {step} already; if_exists=\"replace\" "
                              "replaces it, \"skip\" keeps it")
    return run.step_key(step) not in there or if_exists == "replace"


def _salt_of(marker: str) -> int:
    """Returns the salt of the objects that a marker is the first to name. It comes from the
    marker's random name, so no delete can have listed an object with this salt before."""
    return int(marker[:16], 16)


@dataclass
class _Sources:
    """The lists that this push takes objects of others from: they must be there once its marker
    is."""

    lists: list[bytes] = field(default_factory=list)
    headers: dict[str, bytes] = field(default_factory=dict)  # of lists and markers, by key
    # What pushes of this store that were cut off may have sent, by SHA-256 and size: objects that a
    # marker was the first to name. Of the others it names it may have been too late to hold them.
    sent: dict[tuple[bytes, int], DataObject] = field(default_factory=dict)


class _Push:
    def __init__(self, core: _stepwell.Core, source: Source, bucket: RunStore, folder: str,
                 verify: bool, progress: Progress | None) -> None:
        self._core = core
        self._source = source
        self._bucket = bucket
        self._markers_path = os.path.join(folder, _MARKERS_NAME)
        self._verify = verify
        self._progress = progress
        self._sent: list[int] = []  # sizes of the objects that were put

    def attempt(self) -> PushReport | None:
        """None: something that the step was to refer to has gone; plan anew."""
        step, bucket = self._source.step, self._bucket
        there = run.listing(bucket)
        sources = self._sources(there.steps)
        plan = self._plan(sources, there.data)
        transfers = Transfers(2 * sum(plan.sizes), self._progress)
        marker = secrets.token_hex(16)
        made = self._name(plan, sources, _salt_of(marker), transfers)
        self._mark(marker, [*plan.referred, *made])
        if any(run.read_header(bucket, key) != header for key, header in sources.headers.items()):
            return None
        self._unmark({marker, *(name for name in self.markers()
                                if _salt_of(name) in {each.salt for each in made})})
        self._send(plan, made, sources, transfers)
        data = plan.list(made)
        if bucket.size(run.marker_key(marker)) is None:
            raise self._swept()  # a step that this one was to replace stays
        self._put(run.step_key(step), data)
        if self._verify and run.read_list(bucket, run.step_key(step)) != data:
            raise CorruptionError(f"{bucket.url}/{run.step_key(step)} is not what was sent")
        self._check_mark(marker)
        self._unmark(set())
        if step in there.steps:
            remove_unnamed(bucket)
        head = _stepwell.pushed_head(data)
        return PushReport(bucket.url, step, len(head.objects), head.stored_bytes,
                          len(self._sent), sum(self._sent))

    def _sources(self, steps: list[int]) -> _Sources:
        """Reads the lists of the nearest steps, and this store's own markers. The push passes over
        damaged lists."""
        own = self._source.step
        lower = [step for step in steps if step < own][-1:]
        higher = [step for step in steps if step > own][:1]
        sources = _Sources()
        for step in [*lower, *(step for step in steps if step == own), *higher]:
            key = run.step_key(step)
            try:
                data = run.read_list(self._bucket, key)
                if data is not None and _stepwell.pushed_step(data) == step:
                    sources.lists.append(data)
                    sources.headers[key] = data[:_stepwell.PUSHED_HEADER_BYTES]
            except (CorruptionError, FormatError):
                continue
        for name in self.markers():
            key = run.marker_key(name)
            header = run.read_header(self._bucket, key)
            try:
                head = run.read_head(self._bucket, key)
            except (CorruptionError, FormatError):
                continue
            if header is not None and head is not None:
                sources.headers[key] = header
                sources.sent |= {(each.sha256, each.size_bytes): each for each in head.objects
                                 if each.salt == _salt_of(name)}
        return sources

    def _plan(self, sources: _Sources, sizes: dict[str, int]) -> _stepwell.PushPlan:
        """Refers to nothing that the place has lost: nothing is taken from a list that names it.
        `sizes`: of the data there, by name."""
        while True:
            plan = self._core.plan_push(self._source.reader, sources.lists)
            lost = self._lost(plan.referred, sizes)
            if not lost:
                return plan
            sources.lists = [data for data in sources.lists if lost.isdisjoint(
                each.name for each in _stepwell.pushed_head(data).objects)]

    def _lost(self, objects: list[DataObject], sizes: dict[str, int]) -> set[str]:
        """Names of the objects that are not there, are cut short, or, with `verify`, damaged."""
        by_name = {each.name: each for each in objects}
        lost: set[str] = set()
        transfers = Transfers(0, None)

        def look(name: str) -> None:
            transfers.check()
            # What another push has put since the listing is asked for.
            if (self._verify or sizes.get(name) != by_name[name].size_bytes) and not (
                    self._is_there(by_name[name], transfers.check)):
                lost.add(name)

        transfers.run(look, by_name)
        return lost

    def _name(self, plan: _stepwell.PushPlan, sources: _Sources, salt: int, transfers: Transfers
              ) -> list[DataObject]:
        made: dict[int, DataObject] = {}

        def name(key: str) -> None:
            number = int(key)
            transfers.check()
            data = plan.read(number)
            digest = hashlib.sha256(data).digest()
            made[number] = sources.sent.get((digest, len(data))) or DataObject(
                digest, salt, len(data))
            transfers.add(len(data))

        transfers.run(name, map(str, range(len(plan.sizes))))
        return [made[number] for number in range(len(plan.sizes))]

    def _send(self, plan: _stepwell.PushPlan, made: list[DataObject], sources: _Sources,
              transfers: Transfers) -> None:
        sent = {each.name for each in sources.sent.values()}

        def send(key: str) -> None:
            each, number = made[int(key)], int(key)
            transfers.check()
            if each.name not in sent or not self._is_there(each, transfers.check):
                data = plan.read(number)
                if hashlib.sha256(data).digest() != each.sha256:
                    raise CorruptionError("the store's chunks changed while they were pushed")
                self._put(run.data_key(each.name), data)
                if self._verify and not self._is_there(each, transfers.check):
                    raise CorruptionError(f"{self._bucket.url}/{run.data_key(each.name)} is not "
                                          "what was sent; push again")
            transfers.add(each.size_bytes)

        transfers.run(send, map(str, range(len(made))))

    def _is_there(self, each: DataObject, check: Callable[[], None]) -> bool:
        key = run.data_key(each.name)
        if self._bucket.size(key) != each.size_bytes:
            return False
        return not self._verify or push_manifest.bucket_sha256(
            self._bucket, key, each.size_bytes, check) == each.sha256.hex()

    def _put(self, key: str, data: bytes) -> None:
        self._bucket.put(key, data)
        self._sent.append(len(data))

    # ---- markers --------------------------------------------------------------------------------

    def markers(self) -> list[str]:
        """Those that this store put there and has not removed yet, as far as it knows."""
        try:
            with open(self._markers_path, encoding="ascii") as file:
                return [line for line in file.read().split("\n") if run.is_marker(line)]
        except (FileNotFoundError, UnicodeDecodeError):
            return []

    def _mark(self, name: str, objects: list[DataObject]) -> None:
        """Puts a marker that names the objects. It is known here before it is there."""
        self._note([*self.markers(), name])
        self._put(run.marker_key(name), _stepwell.push_marker(objects))

    def _check_mark(self, name: str) -> None:
        """Takes the list back if the marker was removed before the list was there: a delete may
        have removed the data since."""
        if self._bucket.size(run.marker_key(name)) is not None:
            return
        key = run.step_key(self._source.step)
        self._bucket.delete(key)
        raise self._swept()

    def _swept(self) -> StorageError:
        return StorageError(f"{self._bucket.url}: this push was swept while it was under way "
                            "(delete_pushed with sweep); push again")

    def _unmark(self, keep: set[str]) -> None:
        """Removes this store's markers, also those of pushes that were cut off."""
        there = self.markers()
        for name in there:
            if name not in keep:
                self._bucket.delete(run.marker_key(name))
        if keep and not keep.issuperset(there):
            self._note([name for name in there if name in keep])

    def _note(self, markers: list[str]) -> None:
        durable.write(self._markers_path, "\n".join(markers).encode(), mode=0o600)
