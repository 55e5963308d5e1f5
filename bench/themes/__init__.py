# SPDX-License-Identifier: Apache-2.0
"""The measurements: one module a theme, each with `run(job)`, run in a process of a contender."""

import gc
import pathlib
import time
from collections.abc import Callable
from typing import Any

import counters
import machine
import states
from contenders import Contender


class Job:
    """The needs of a theme: the contender, the states, and where results go."""

    def __init__(self, make: type[Contender], settings: dict[str, Any],
                 emit: Callable[[dict[str, Any]], None]) -> None:
        self.make = make
        self.settings = settings
        self.directory = pathlib.Path(settings["directory"])
        self.size_bytes: int = settings["size_bytes"]
        self.seed: int = settings["round"]
        self._emit = emit
        self._open: list[Contender] = []

    def emit(self, row: str, value: float | None, limit: float | None = None) -> None:
        """One measured value, and its limit where the row's limit is "own". None: the system does
        not tell."""
        if value is not None:
            self._emit({"row": row, "value": value, "limit": limit})

    def cannot(self, row: str, why: str) -> None:
        self._emit({"row": row, "cannot": why})

    def contender(self, name: str, **options: Any) -> Contender:
        """A new object of the contender in the directory `name`."""
        directory = self.directory / name
        directory.mkdir(parents=True, exist_ok=True)
        made = self.make(directory, **options)
        self._open.append(made)
        return made

    def close(self) -> list[Contender]:
        """Closes what `contender` made; returns it."""
        for contender in self._open:
            contender.close()
        return self._open

    def state(self, kind: str = "NumPy") -> Any:
        state = states.make_state(self.size_bytes, self.seed)
        return states.to_jax(state) if kind == "jax" else state

    def make_cold(self, contender: Contender) -> None:
        machine.drop_cached(contender.directory)
        gc.collect()
        machine.warm_memory(2 * self.size_bytes)


class Timed:
    """Seconds and bytes read within a `with` block."""

    def __enter__(self) -> "Timed":
        self._read = counters.read_bytes()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start
        read = counters.read_bytes()
        self.read = None if read is None or self._read is None else read - self._read
