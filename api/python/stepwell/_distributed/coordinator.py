# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a `jax.distributed` run. JAX's own coordination service, which
process 0 runs, carries them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from typing import Any

from .._runtime.service import logger
from .._runtime.threads import Thread
from ..errors import PeerError, StorageError

_SLICE_SECONDS = 5.0  # between two checks for missing processes
_VALUE_LENGTH = 256 << 10  # of one value of a long text


class Coordinator:
    """A key-value store that all processes of a run see; keys are written once."""

    def __init__(self, client: Any, index: int, count: int) -> None:
        """`client`: of `jax.distributed.initialize`. `index`: of this process, of `count`."""
        self._client = client
        self.index = index
        self.count = count

    def put(self, key: str, value: str) -> None:
        self._call(self._client.key_value_set, key, value)

    def claim(self, key: str, value: str) -> bool:
        """Puts it unless the key is there; whether it was not."""
        try:
            self._call(self._client.key_value_set, key, value)
        except PeerError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def get(self, key: str, timeout: float) -> str | None:
        """Waits until the key is there; None when `timeout` seconds have passed."""
        found = self._call(self._client.blocking_key_value_get, key, max(1, int(timeout * 1000)))
        return None if found is None else str(found)

    def keys(self, directory: str) -> list[str]:
        """Those below `directory/`, without it."""
        pairs = self._call(self._client.key_value_dir_get, directory + "/") or []
        return [key.removeprefix(directory + "/") for key, _ in pairs]

    def delete(self, directory: str) -> None:
        self._call(self._client.key_value_delete, directory + "/")

    def _call(self, function: Any, *arguments: Any) -> Any:
        """None for what ran out of time."""
        try:
            return function(*arguments)
        except Exception as error:
            text = str(error)
            if "DEADLINE_EXCEEDED" in text:
                return None
            raise PeerError(
                "JAX's coordination service does not answer; process 0 runs it, is it gone? "
                f"({text.splitlines()[0] if text else type(error).__name__})") from error


class _LocalClient:
    """Stands in for JAX's client in a run of this process alone: nothing comes while it waits."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str) -> None:
        if key in self._values:
            raise KeyError("ALREADY_EXISTS")
        self._values[key] = value

    def blocking_key_value_get(self, key: str, timeout_ms: int) -> str | None:
        return self._values.get(key)

    def key_value_dir_get(self, directory: str) -> list[tuple[str, str]]:
        return [pair for pair in self._values.items() if pair[0].startswith(directory)]

    def key_value_delete(self, directory: str) -> None:
        for key, _ in self.key_value_dir_get(directory):
            del self._values[key]


def current() -> Coordinator | None:
    """Returns this run's coordinator; None unless `jax.distributed` is initialised with several
    processes."""
    distributed = sys.modules.get("jax._src.distributed")
    state = getattr(distributed, "global_state", None)
    if state is None or state.client is None or (state.num_processes or 1) < 2:
        return None
    return Coordinator(state.client, state.process_id, state.num_processes)


def part_path(root: str, part: int) -> str:
    """Returns the path that db::PartPath gives."""
    return root if part == 0 else os.path.join(root, f"process_{part}")


def is_store(path: str) -> bool:
    return os.path.exists(os.path.join(path, "STEPWELL"))


def coordinator_for(root: str) -> Coordinator | None:
    """The coordinator of this run; None for a store that one process writes and always wrote."""
    coordinator = current()
    if coordinator is None and is_store(part_path(root, 1)):
        coordinator = Coordinator(_LocalClient(), 0, 1)  # parts of earlier runs must follow
    return coordinator


class Watch:
    """For how long other processes have been silent (Alive)."""

    def __init__(self, coordinator: Coordinator, directory: str) -> None:
        self._coordinator = coordinator
        self._directory = directory
        self._begin = time.monotonic()
        self._last_beats: dict[int, tuple[set[str], float]] = {}  # process to its beats, and when

    def silent_seconds(self, process: int) -> float:
        """Since its last beat, or since it was watched first."""
        beats = set(self._coordinator.keys(f"{self._directory}/{process}"))
        now = time.monotonic()
        known, last_beat = self._last_beats.get(process, (set(), self._begin))
        if beats - known:
            last_beat = now
        self._last_beats[process] = beats, last_beat
        return now - last_beat


class Alive:
    """Beats every `seconds` while this process does work without a time limit. Others wait for it
    with a Watch."""

    def __init__(self, coordinator: Coordinator, directory: str, seconds: float) -> None:
        self._coordinator = coordinator
        self._directory = directory
        self._seconds = seconds
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._busy = 0
        self._last: int | None = None
        self._stop = threading.Event()

    def begin(self) -> None:
        """Calls of `begin` and `end` must balance."""
        with self._lock:
            self._busy += 1
            if self._busy == 1:
                self._stop = threading.Event()
                try:
                    Thread("stepwell-alive", self._beat, self._stop)
                except StorageError as error:  # others wait for this process less long
                    logger.warning("%s", error)

    def end(self) -> None:
        with self._lock:
            self._busy -= 1
            if self._busy == 0:
                self._stop.set()

    def watch(self) -> Watch:
        return Watch(self._coordinator, self._directory)

    def _beat(self, stop: threading.Event) -> None:
        own = f"{self._directory}/{self._coordinator.index}"
        with contextlib.suppress(PeerError):  # the processes that wait time out
            while not stop.is_set():
                number = next(self._numbers)
                self._coordinator.put(f"{own}/{number}/beat", "1")
                if self._last is not None:
                    self._coordinator.delete(f"{own}/{self._last}")
                self._last = number
                stop.wait(self._seconds)


def wait_for(coordinator: Coordinator, key: str, process: int, timeout: float, what: str) -> str:
    """Waits for the value that `process` puts at `key`."""
    value = coordinator.get(key, timeout)
    if value is None:
        raise PeerError(f"process {process} of {coordinator.count} did not answer within "
                        f"{timeout:g} s ({what}): has it ended, or does it not take part?",
                        [process])
    return value


def gather(coordinator: Coordinator, directory: str, value: str, timeout: float, what: str,
           watch: Watch | None = None) -> list[str]:
    """The `value` of every process, by process. PeerError, within `timeout` seconds, names all
    processes that have not put theirs; with `watch`, those that were silent for so long."""
    coordinator.put(f"{directory}/{coordinator.index}", value)
    end = time.monotonic() + timeout
    values: list[str] = []
    while len(values) < coordinator.count:
        left = end - time.monotonic() if watch is None else timeout / 4
        found = coordinator.get(f"{directory}/{len(values)}", min(max(left, 0.0), _SLICE_SECONDS))
        if found is not None:
            values.append(found)
        elif watch is not None or left <= _SLICE_SECONDS:
            there = set(coordinator.keys(directory))
            missing = [i for i in range(coordinator.count) if str(i) not in there]
            if watch is not None:
                missing = [i for i in missing if watch.silent_seconds(i) >= timeout]
            if not missing:
                continue  # it came at the last moment, or will
            names = ", ".join(map(str, missing))
            noun = "process" if len(missing) == 1 else "processes"
            raise PeerError(
                f"{noun} {names} of {coordinator.count} did not answer within {timeout:g} s "
                f"({what}): ended, or not taking part?", missing)
    return values


def broadcast(coordinator: Coordinator, directory: str, text: str) -> int:
    """Puts a long text below `directory`, in as many values as it returns; for `receive`."""
    count = -(-len(text) // _VALUE_LENGTH)
    for number in range(count):
        coordinator.put(f"{directory}/{number}",
                        text[number * _VALUE_LENGTH:(number + 1) * _VALUE_LENGTH])
    return count


def receive(coordinator: Coordinator, directory: str, count: int, process: int, timeout: float,
         what: str) -> str:
    return "".join([wait_for(coordinator, f"{directory}/{number}", process, timeout, what)
                    for number in range(count)])
