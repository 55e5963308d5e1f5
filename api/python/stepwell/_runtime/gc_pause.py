# SPDX-License-Identifier: Apache-2.0
"""Keeps the garbage collector out of short pieces of work."""

import gc
from types import TracebackType


class Paused:
    """Within it no cyclic collection starts by itself. For pieces that make many tuples without
    cycles: those would start collections, and one of all objects takes tens of milliseconds beside
    JAX.

    Another thread may turn collections on meanwhile; then they run, which is only slower."""

    __slots__ = ("_was_enabled",)

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._was_enabled:
            gc.enable()
