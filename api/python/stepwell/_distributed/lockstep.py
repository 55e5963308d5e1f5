# SPDX-License-Identifier: Apache-2.0
"""What all processes do in the same order on the threads that call, as they use JAX's devices."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from ..errors import PeerError
from .coordinator import Alive, Coordinator, Watch, gather
from .exchange import Exchange
from .peer_errors import raised, told

_PROBE_SECONDS = 10.0  # for finding out which processes have ended


def gather_results(coordinator: Coordinator, directory: str, work: Callable[[], dict[str, Any]],
                   timeout: float, what: str, watch: Watch | None = None) -> list[dict[str, Any]]:
    """What `work` gives on every process; an error on one is one on all."""
    def everyones(text: str) -> list[str]:
        return gather(coordinator, directory, text, timeout, what, watch)

    try:
        mine = json.dumps(work())
    except Exception as error:
        try:
            everyones(json.dumps(told(error)))
        except PeerError:
            pass  # they are missing because of this, or it does not matter any more
        raise
    results = [json.loads(text) for text in everyones(mine)]
    for process, other in enumerate(results):
        if "error" in other:
            raise raised({**other, "processes": [process]})
    return results


class Lockstep:
    """The numbered exchanges of a run that its processes make on the threads that call."""

    def __init__(self, coordinator: Coordinator, run: str, alive: Alive, timeout: float) -> None:
        self._coordinator = coordinator
        self._directory = f"{run}/lockstep"
        self._alive = alive
        self._timeout = timeout
        self._numbers = itertools.count()
        self._exchange: Exchange | None = None
        self.index = coordinator.index
        self.count = coordinator.count

    def all_gather(self, work: Callable[[], dict[str, Any]], what: str,
                   watch: Watch | None = None) -> list[dict[str, Any]]:
        """What `work` gives on every process; an error on one is one on all."""
        number = next(self._numbers)
        results = gather_results(self._coordinator, f"{self._directory}/{number}", work,
                                 self._timeout, what, watch)
        if self.index == 0 and number > 0:  # every process that answered has read the last one
            self._coordinator.delete(f"{self._directory}/{number - 1}")
        return results

    def all_gather_slow(self, work: Callable[[], dict[str, Any]], what: str
                        ) -> list[dict[str, Any]]:
        """The same of `work` without a time limit, as long as its process is alive."""
        self._alive.begin()
        try:
            return self.all_gather(work, what, self._alive.watch())
        finally:
            self._alive.end()

    def abort(self, error: BaseException) -> None:
        """Reports at the next `all_gather` of the others that this process takes no part."""
        try:
            self._coordinator.put(f"{self._directory}/{next(self._numbers)}/{self.index}",
                                  json.dumps(told(error)))
        except PeerError:
            pass  # then no process waits

    def exchange(self, send: list[list[Any]], receive: list[list[Any]], most: int) -> None:
        """As Exchange.run. PeerError: not on all processes."""
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
                   json.dumps(told(failed)), min(self._timeout, _PROBE_SECONDS), "loading a step")
            raise failed from error
