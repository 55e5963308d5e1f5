# SPDX-License-Identifier: Apache-2.0
"""One face for everything that is compared: save, restore, load a part, load one leaf."""

import contextlib
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import counters
import machine


class Cannot(Exception):
    """The contender's format or interface has no such job; the text says why."""


class Saved(NamedTuple):
    stall: float  # seconds until the caller got control back
    done: float  # seconds until it said that the checkpoint is there
    durable: float  # seconds until it survives a power cut
    cpu: float  # core-seconds of this process, until durable
    written: int | None  # bytes that this process sent to the disk


class Contender:
    """One way to checkpoint; each object has a directory of its own and keeps its newest steps."""

    key = ""
    name = ""
    package = ""  # whose version counts
    import_line = ""  # what a training program says
    durable = False  # whether "done" means that it survives a power cut
    opens_once = False  # whether a step stays open for several loads
    meshes = False  # whether it loads arrays onto another mesh
    writes_orbax = False  # whether its checkpoints are Orbax's
    kinds: tuple[str, ...] = ("NumPy", "jax")  # which arrays it takes

    def __init__(self, directory: pathlib.Path, keep: int = 1) -> None:
        self.directory = directory
        self.keep = keep
        self.step = 0

    # ---- what each contender does in its own way ----

    def begin(self, state: Any) -> Any:
        """Starts a save of step `self.step`; returns what `finish` takes."""
        raise NotImplementedError

    def finish(self, pending: Any) -> None:
        """Waits until it says that the checkpoint is there. Nothing for what has no background."""

    def restore(self, like: Any) -> Any:
        """The newest step, opened anew; `like` is a tree of arrays, jax ones may be abstract."""
        raise NotImplementedError

    def load_part(self, name: str, like: Any) -> Any:
        """Loads the top-level key `name`, and nothing else; `like` is that subtree."""
        raise NotImplementedError

    def open_leaf(self, like: dict[str, Any]) -> contextlib.AbstractContextManager[
            Callable[[str], Any]]:
        """The newest step (a flat dict) opened for loading single leaves by name."""
        raise NotImplementedError

    def tidy(self) -> None:
        """Removes all but the newest `keep` steps."""
        shutil.rmtree(self.path(self.step - self.keep), ignore_errors=True)

    def close(self) -> None:
        pass

    # ---- the same for all ----

    def path(self, step: int) -> pathlib.Path:
        return self.directory / str(step)

    def save(self, state: Any) -> Saved:
        self.step += 1
        written = counters.written_bytes()
        cpu = time.process_time()
        start = time.perf_counter()
        pending = self.begin(state)
        stall = time.perf_counter() - start
        self.finish(pending)
        done = time.perf_counter() - start
        if not self.durable:
            machine.sync(self.directory)
        durable = time.perf_counter() - start
        cpu = time.process_time() - cpu
        after = counters.written_bytes()
        self.tidy()
        return Saved(stall, done, durable, cpu,
                     None if written is None or after is None else after - written)


class FileContender(Contender):
    """One file a step, written by a blocking call; made durable as a careful user would: a new
    name, fsync, rename, fsync of the directory."""

    durable = True

    def write(self, file: pathlib.Path, state: Any) -> None:
        raise NotImplementedError

    def begin(self, state: Any) -> None:
        unfinished = self.path(self.step).with_suffix(".new")
        self.write(unfinished, state)
        fsync(unfinished)
        unfinished.rename(self.path(self.step))
        fsync(self.directory)

    def tidy(self) -> None:
        self.path(self.step - self.keep).unlink(missing_ok=True)


def fsync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def loader(load: Callable[[str], Any]) -> Iterator[Callable[[str], Any]]:
    """For those that open anew with each load."""
    yield load
