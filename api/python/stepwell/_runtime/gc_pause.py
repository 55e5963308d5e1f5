# SPDX-License-Identifier: Apache-2.0
"""Keeps the garbage collector out of short pieces of work."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Within it no cyclic collection starts by itself. For pieces that make many tuples without
    cycles: those would start collections, and one of all objects takes tens of milliseconds beside
    JAX.

    Another thread may turn collections on meanwhile; then they run, which is only slower."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
