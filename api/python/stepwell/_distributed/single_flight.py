# SPDX-License-Identifier: Apache-2.0
"""Work that one process of a run does for all that ask for it alike."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from ..errors import PeerError
from .coordinator import Alive, Coordinator
from .messages import Failure, decode, encode

M = TypeVar("M")
_SLICE_SECONDS = 1.0  # between two looks at whether the other process is still at it


class SingleFlight:
    """Where the processes of a run meet that are about to do the same thing."""

    def __init__(self, coordinator: Coordinator, directory: str, alive: Alive, timeout: float
                 ) -> None:
        self._coordinator = coordinator
        self._directory = directory
        self._alive = alive
        self._timeout = timeout
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()

    def run(self, about: str, kind: type[M], work: Callable[[], M]) -> M:
        """`work`, by the first process that comes with this `about`; the others wait for it, as
        long as it is heard of, and have what it gave, or its error. A process that comes for the
        n-th time meets those that come for the n-th time, so one may also be alone."""
        digest = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        with self._lock:
            key = f"{self._directory}/{digest}/{self._asked[digest]}"
            self._asked[digest] += 1
        self._alive.begin()
        try:
            if self._coordinator.claim(f"{key}/by", str(self._coordinator.index)):
                return self._do(key, work)
            return self._receive(key, kind)
        finally:
            self._alive.end()

    def _do(self, key: str, work: Callable[[], M]) -> M:
        try:
            given = work()
        except BaseException as error:
            try:
                self._coordinator.put(f"{key}/given", encode(Failure.of(error)))
            except PeerError:
                pass  # those who wait find out by themselves
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
