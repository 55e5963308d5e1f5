# SPDX-License-Identifier: Apache-2.0
"""Runs work that uses JAX's devices on the calling threads, in the same order on all processes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from ..errors import PeerError
from .coordinator import Alive, Coordinator, Watch, gather
from .exchange import Exchange
from .messages import Failure, Value, decode, encode

M = TypeVar("M")
T = TypeVar("T")
_SLICE_SECONDS = 1.0  # between two checks whether the other process is alive
_PROBE_SECONDS = 10.0  # for finding out which processes have ended


def all_gather(coordinator: Coordinator, directory: str, work: Callable[[], M], timeout: float,
               what: str, watch: Watch | None = None) -> list[M]:
    """The messages that `work` gives on all processes; an error on one is one on all."""
    def gather_texts(text: str) -> list[str]:
        return gather(coordinator, directory, text, timeout, what, watch)

    try:
        mine = work()
        text = encode(mine)
    except Exception as error:
        # Those that are missing are so because of this, or it does not matter any more.
        with contextlib.suppress(PeerError):
            gather_texts(encode(Failure.of(error)))
        raise
    return [decode(each, type(mine), process, what)
            for process, each in enumerate(gather_texts(text))]


class Lockstep:
    """The numbered exchanges of a run that its processes make on the threads that call; and what
    one does for all that are about to do the same."""

    def __init__(self, coordinator: Coordinator, run: str, alive: Alive, timeout: float) -> None:
        self._coordinator = coordinator
        self._run = run
        self._directory = f"{run}/lockstep"
        self._alive = alive
        self._timeout = timeout
        self._numbers = itertools.count()
        self._exchange: Exchange | None = None
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()  # for what `once` does
        self.index = coordinator.index
        self.count = coordinator.count

    def all_gather(self, work: Callable[[], M], what: str, watch: Watch | None = None
                   ) -> list[M]:
        """The messages that `work` gives on all processes; an error on one is one on all."""
        number = next(self._numbers)
        results = all_gather(self._coordinator, f"{self._directory}/{number}", work, self._timeout,
                             what, watch)
        if self.index == 0 and number > 0:  # every process that answered has read the last one
            self._coordinator.delete(f"{self._directory}/{number - 1}")
        return results

    def all_gather_slow(self, work: Callable[[], M], what: str) -> list[M]:
        """The same of `work` without a time limit, as long as its process is alive."""
        self._alive.begin()
        try:
            return self.all_gather(work, what, self._alive.watch())
        finally:
            self._alive.end()

    def from_leader(self, work: Callable[[], T], what: str) -> T:
        """Runs `work` on process 0 alone and gives its result, which is JSON, to all."""
        given = self.all_gather(lambda: Value(work() if self.index == 0 else None), what)
        return cast(T, given[0].value)

    def abort(self, error: BaseException) -> None:
        """Reports at the next `all_gather` of the others that this process takes no part."""
        self._report(f"{self._directory}/{next(self._numbers)}/{self.index}", error)

    def _report(self, key: str, error: BaseException) -> None:
        with contextlib.suppress(PeerError):  # no process waits for it, or those that do time out
            self._coordinator.put(key, encode(Failure.of(error)))

    def exchange(self, send: list[list[Any]], receive: list[list[Any]], most: int) -> None:
        """Does Exchange.run. PeerError: it did not run on all processes."""
        try:
            if self._exchange is None:
                self._exchange = Exchange(self.index, self.count)
            self._exchange.run(send, receive, most)
        except Exception as error:
            text = str(error).splitlines()
            failed = PeerError("JAX cannot carry what is loaded between the processes: "
                               f"{text[0] if text else type(error).__name__}")
            # The processes that are alive tell each other, and find those that are not.
            gather(self._coordinator, f"{self._directory}/{next(self._numbers)}",
                   encode(Failure.of(failed)), min(self._timeout, _PROBE_SECONDS), "loading a step")
            raise failed from error

    def send(self, data: list[bytes], sizes: list[list[int]]) -> list[bytes]:
        """Bytes from each process to each: `data`, by process, from here; `sizes`: of all of them.
        What came, by process."""
        index = self.index
        mine = [np.frombuffer(each, np.uint8) for each in data]
        came = [np.empty(each[index], np.uint8) for each in sizes]
        came[index] = mine[index]
        others = [process != index for process in range(len(sizes))]
        self.exchange(
            [[array] * other for array, other in zip(mine, others, strict=True)],
            [[array] * other for array, other in zip(came, others, strict=True)],
            max(map(max, sizes)))
        return [array.tobytes() for array in came]

    def once(self, about: str, kind: type[M], work: Callable[[], M]) -> M:
        """`work`, by the first process that comes with this `about`; the others wait for it, as
        long as it is heard of, and have what it gave, or its error. A process that comes for the
        n-th time meets those that come for the n-th time, so one may also be alone. May be called
        by any thread, in any order."""
        digest = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        with self._lock:
            key = f"{self._run}/once/{digest}/{self._asked[digest]}"
            self._asked[digest] += 1
        self._alive.begin()
        try:
            if self._coordinator.claim(f"{key}/by", str(self.index)):
                return self._do(key, work)
            return self._receive(key, kind)
        finally:
            self._alive.end()

    def _do(self, key: str, work: Callable[[], M]) -> M:
        try:
            given = work()
        except BaseException as error:
            self._report(f"{key}/given", error)
            raise
        self._coordinator.put(f"{key}/given", encode(given))
        return given

    def _receive(self, key: str, kind: type[M]) -> M:
        by = self._coordinator.get(f"{key}/by", self._timeout)
        process = int(by) if by is not None else 0
        watch = self._alive.watch()
        text = None
        while text is None:
            text = self._coordinator.get(f"{key}/given", _SLICE_SECONDS)
            if text is None and watch.silent_seconds(process) >= self._timeout:
                raise PeerError(f"process {process} was doing this for all and has not been heard "
                                f"of for {self._timeout:g} s: has it ended?", [process])
        return decode(text, kind, process, "this")
