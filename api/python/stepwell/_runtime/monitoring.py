# SPDX-License-Identifier: Apache-2.0
"""Durations of saves and loads as events of jax.monitoring, if a program has imported that."""

from __future__ import annotations

import sys
import time
from typing import Any

from . import service

SAVE_BLOCKING = "/stepwell/save/blocking_secs"  # the call of `save`
SAVE_DURABLE = "/stepwell/save/durable_secs"  # from the call until the step is durable
LOAD = "/stepwell/load/secs"  # the call of `load`


def record(event: str, seconds: float) -> None:
    monitoring: Any = sys.modules.get("jax.monitoring")  # without it no listener can be there
    if monitoring is not None:
        monitoring.record_event_duration_secs(event, seconds)


def _has_listener() -> bool:
    """Returns true if there may be a listener: an event at the end of each save takes two threads'
    time."""
    if "jax.monitoring" not in sys.modules:
        return False
    # Not public; without it there may be one.
    internal = sys.modules.get("jax._src.monitoring")
    listeners = getattr(internal, "get_event_duration_listeners", None)
    return listeners is None or bool(listeners())


def record_save(operation: service.Operation, begun: float) -> None:
    """`begun`: time.monotonic() when `save` was called."""
    if not _has_listener():
        return
    record(SAVE_BLOCKING, time.monotonic() - begun)

    def done() -> None:
        if operation.error() is None and not operation.skipped:
            record(SAVE_DURABLE, time.monotonic() - begun)

    service.call_when_done(operation, done)
