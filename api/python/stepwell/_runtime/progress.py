# SPDX-License-Identifier: Apache-2.0
"""Progress of loads, exports, pushes and pulls: a caller's function, or a bar of tqdm or rich."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .._text import brief
from ..errors import InvalidArgumentError
from .arguments import Progress


class _TqdmBar:
    """A bar of bytes. It ends when all of them are done; with an error, when it is dropped."""

    def __init__(self, tqdm: Any, what: str) -> None:
        self._tqdm = tqdm.tqdm
        self._what = what
        self._bar: Any = None

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            self._bar = self._tqdm(desc=self._what, total=total_bytes, unit="B", unit_scale=True,
                                   unit_divisor=1024)
        self._bar.update(done_bytes - self._bar.n)
        if done_bytes >= total_bytes:
            self._bar.close()


class _RichBar:
    """The same by rich, on a console of its own: a console shows one bar at a time."""

    def __init__(self, rich: Any, what: str) -> None:
        self._bar = rich.Progress(
            "{task.description}", rich.BarColumn(), rich.TaskProgressColumn(),
            rich.DownloadColumn(binary_units=True), rich.TransferSpeedColumn(),
            console=importlib.import_module("rich.console").Console(stderr=True))
        self._task = self._bar.add_task(what, total=None)

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar.finished:
            return  # a second start would show it twice
        self._bar.start()
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)
        if done_bytes >= total_bytes:
            self._bar.stop()

    def __del__(self) -> None:
        self._bar.stop()


def progress_of(progress: Progress | bool | None, what: str) -> Progress | None:
    """Returns a function that is called with bytes done and all bytes. True: a bar of tqdm, or else
    of rich; one must be installed. Raises InvalidArgumentError."""
    if progress is None or progress is False:
        return None
    if progress is not True:
        if not callable(progress):
            raise InvalidArgumentError(
                f"progress must be a function of two ints or True, not {brief(progress)}")
        return progress
    bars: dict[str, Callable[[Any, str], Progress]] = {
        "tqdm.auto": _TqdmBar, "rich.progress": _RichBar}
    for library, bar in bars.items():
        try:
            module = importlib.import_module(library)
        except ImportError:
            continue
        return bar(module, what)
    raise InvalidArgumentError(
        "progress=True shows a bar of tqdm or rich, and neither is installed: pip install tqdm, or "
        "pass a function that takes the bytes done and all bytes")
