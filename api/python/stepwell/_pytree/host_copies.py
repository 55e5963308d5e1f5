# SPDX-License-Identifier: Apache-2.0
"""Copies to the host of shards on other devices than the CPU, made while a save takes them.

The engine decides which copies are made when: in the order in which it stages leaves, within a
window (db/save/far.h). So the host never has a copy of the whole state beside the staging memory.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from .._runtime import service
from .sharding import detached, transfers_allowed


class HostCopies:
    """The shards of one save, numbered as they are added; for HostCopies of host_copies.h, which
    calls the other methods from one thread at a time.

    JAX deletes an array that is donated whatever refers to it, so a shard that was donated before
    its copy was made gives an error, and never what has become of its memory. (A reference to the
    memory itself, as through DLPack, would make the donating computation fail on a GPU.)
    """

    def __init__(self) -> None:
        self._shards: list[Any] = []
        self._under_way: dict[int, Any] = {}  # arrays of our own; JAX has the copies with them
        self._copies: dict[int, np.ndarray[Any, Any]] = {}
        self._errors: dict[int, Exception] = {}  # of shards whose copies could not be begun

    def add(self, shard: Any) -> None:
        self._shards.append(shard)

    def start(self, numbers: list[int]) -> None:
        """Begins copies, and waits for none of them. What that raises, `wait` raises."""
        with transfers_allowed():
            for number in numbers:
                try:
                    own = self._under_way[number] = detached(self._shards[number])
                    own.copy_to_host_async()
                except Exception as error:
                    self._errors[number] = error

    def wait(self, number: int) -> np.ndarray[Any, Any]:
        """The copy of a shard, which stays as it is until `release`. Raises what JAX raises, as for
        an array that was donated."""
        if service.copies_given_up:
            raise RuntimeError("the process ended before")
        if number in self._errors:
            raise self._errors.pop(number)
        with transfers_allowed():
            copy = np.asarray(self._under_way[number])
        self._copies[number] = copy
        return copy

    def release(self, numbers: list[int]) -> None:
        """Gives up copies, and the shards that they are of. Any of them may not have been made."""
        for number in numbers:
            self._copies.pop(number, None)
            self._under_way.pop(number, None)
            self._shards[number] = None
        # JAX lets go of what it has copied to when Python collects garbage, and not before: it
        # listens to every collection, of which this one takes a microsecond.
        gc.collect(0)
