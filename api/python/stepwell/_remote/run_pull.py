# SPDX-License-Identifier: Apache-2.0
"""A step out of a pushed run, in order. README.md, "A pushed run"."""

from __future__ import annotations

import os
import threading
from typing import Any

from .. import _stepwell
from .._backend.orbax_source import exists
from .._lifetime import OpenStore
from .._runtime.arguments import Progress, if_exists_of
from .._runtime.durable import remove_tree
from .._stepwell import SaveRequest
from ..errors import (CheckpointNotFoundError, CorruptionError, Error, FormatError,
                      InvalidArgumentError, PathNotFoundError)
from . import run
from .object_store import ReadableStore
from .push_manifest import bucket_bytes
from .pushed import PullReport
from .run_delete import no_step
from .transfer import Transfers, claimed, with_context


def pull_from_run(store: OpenStore, bucket: ReadableStore, step: int | None, if_exists: Any,
                  items: list[str], work: str, progress: Progress | None) -> PullReport:
    """Does `pull`, which documents it. `work`: a directory that no other pull of `bucket` uses."""
    with with_context(f"pull of {bucket.url}"):
        number = _newest(bucket) if step is None else step
    if number in store.steps() and if_exists != "replace":
        if if_exists == "skip":
            return PullReport(bucket.url, number, 0, 0, 0, skipped=True)
        raise exists(store.path, number)
    with claimed(work, keep_on_error=True) as folder:
        received_bytes = 0
        before = None
        while True:
            with with_context(f"pull of {bucket.url}"):
                data = run.read_list(bucket, run.step_key(number))
                if data is None:
                    raise no_step(bucket.url, number, run.listing(bucket).steps)
            receiver = _Receiver(store, bucket, number, data, items, folder)
            try:
                receiver.receive(progress)
                break
            except CorruptionError:
                received_bytes += receiver.received_bytes
                if data == before:
                    raise
                before = data  # once more: another push or a delete may have come between
        handle = receiver.save(if_exists)
        handle.result()
        head = receiver.head
    return PullReport(bucket.url, number, len(head.objects), head.stored_bytes,
                      received_bytes + receiver.received_bytes, skipped=handle.skipped)


def _newest(bucket: ReadableStore) -> int:
    """The highest step that is not tainted."""
    steps = run.listing(bucket).steps
    for step in reversed(steps):
        head = run.read_head(bucket, run.step_key(step))
        if head is not None and not head.taint:
            return step
    raise CheckpointNotFoundError(f"{bucket.url} is a pushed run without steps"
                                  f"{' that are not tainted: name one' if steps else ''}")


class _Receiver:
    """One list's step into the store."""

    def __init__(self, store: OpenStore, bucket: ReadableStore, number: int, data: bytes,
                 items: list[str], folder: str) -> None:
        self._store = store
        self._bucket = bucket
        self._folder = folder
        self._number = number
        self._lock = threading.Lock()
        self.received_bytes = len(data)
        try:
            self.head = _stepwell.pushed_head(data)
            if self.head.step != number:
                raise CorruptionError(f"it is the list of step {self.head.step}")
            for name in items:
                if name not in self.head.items:
                    raise PathNotFoundError(f"the step has no item {name!r}; it has: "
                                            f"{', '.join(self.head.items)}")
            self._plan = store._backend.writer.plan_pull(data, items)
        except (CorruptionError, FormatError, PathNotFoundError) as error:
            raise run.damaged(bucket, run.step_key(number), error) from None
        except InvalidArgumentError as error:  # numbers that no store has
            raise self._is_no_step(error) from None

    def receive(self, progress: Progress | None) -> None:
        ranges = self._plan.ranges
        self._drop_others({self._name(*each) for each in ranges})
        transfers = Transfers(sum(length for _, _, length in ranges), progress)
        transfers.run(lambda key: self._receive(int(key), *ranges[int(key)], transfers),
                      map(str, range(len(ranges))))

    def _name(self, number: int, start: int, length: int) -> str:
        return f"{self.head.objects[number].name}.{start}.{length}"

    def _drop_others(self, wanted: set[str]) -> None:
        """Removes what a pull of another step left that was cut off."""
        for name in os.listdir(self._folder):
            if "." in name and name not in wanted:
                remove_tree(os.path.join(self._folder, name))

    def _receive(self, number: int, index: int, start: int, length: int, transfers: Transfers
                 ) -> None:
        each = self.head.objects[index]
        path = os.path.join(self._folder, self._name(index, start, length))
        key = run.data_key(each.name)
        with with_context(f"pull of {self._bucket.url}/{key}"):
            if not self._accept_kept(number, path, length):
                data = self._fetch(key, start, start + length, transfers)
                try:
                    self._plan.accept(number, data)
                except CorruptionError as error:
                    raise CorruptionError(f"{self._bucket.url}/{key} is damaged: {error}"
                                          ) from None
                with open(path, "wb") as file:
                    file.write(data)
            transfers.add(length)

    def _accept_kept(self, number: int, path: str, length: int) -> bool:
        """Returns true if an earlier pull, which was cut off, has it."""
        try:
            if os.path.getsize(path) != length:
                return False
            with open(path, "rb") as file:
                self._plan.accept(number, file.read())
            return True
        except (FileNotFoundError, CorruptionError):
            return False

    def _fetch(self, key: str, start: int, stop: int, transfers: Transfers) -> bytes:
        try:
            data = b"".join(bucket_bytes(self._bucket, key, start, stop, transfers.check))
        except Exception as error:
            size = self._bucket.size(key)
            if size is None:
                raise CorruptionError(f"{self._bucket.url}/{key} is missing") from error
            if size < stop:
                raise CorruptionError(f"{self._bucket.url}/{key} is damaged: it has {size:,} of "
                                      f"{stop:,} bytes") from error
            raise
        with self._lock:
            self.received_bytes += len(data)
        return data

    def save(self, if_exists: Any) -> Any:
        request = SaveRequest(step=self._number, if_exists=if_exists_of(if_exists))
        try:
            return self._store._track(self._store._backend.writer.save_pulled(request, self._plan))
        except InvalidArgumentError as error:  # what no store saves
            raise self._is_no_step(error) from None

    def _is_no_step(self, error: InvalidArgumentError) -> Error:
        return run.damaged(self._bucket, run.step_key(self._number), CorruptionError(str(error)))
