# SPDX-License-Identifier: Apache-2.0
"""Progress of loads, exports, pushes and pulls: a caller's function, or a bar of tqdm."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import InvalidArgumentError
from .arguments import Progress
from .text import brief


class _Bar:
    """A bar of bytes. It ends when all of them are done; with an error, when it is dropped."""

    def __init__(self, tqdm: Any, what: str) -> None:
        self._tqdm = tqdm
        self._what = what
        self._bar: Any = None

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            self._bar = self._tqdm(desc=self._what, total=total_bytes, unit="B", unit_scale=True,
                                   unit_divisor=1024)
        self._bar.update(done_bytes - self._bar.n)
        if done_bytes >= total_bytes:
            self._bar.close()


def progress_of(progress: Progress | bool | None, what: str) -> Progress | None:
    """What is called with bytes done and all bytes. True: a bar of tqdm, which must be installed.
    Raises InvalidArgumentError."""
    if progress is None or progress is False:
        return None
    if progress is not True:
        if not callable(progress):
            raise InvalidArgumentError(
                f"progress must be a function of two ints or True, not {brief(progress)}")
        return progress
    try:
        return _Bar(importlib.import_module("tqdm.auto").tqdm, what)
    except ImportError:
        raise InvalidArgumentError(
            "progress=True shows a bar of tqdm, which is not installed: pip install tqdm, or pass "
            "a function that takes the bytes done and all bytes") from None
