# SPDX-License-Identifier: Apache-2.0
"""Signals that announce the end of the process, and JAX's preemption service."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ..errors import InvalidArgumentError


def _jax_has_sigterm() -> bool:
    """Returns true if JAX's preemption service runs, which handles SIGTERM outside of Python."""
    distributed = sys.modules.get("jax._src.distributed")
    return getattr(getattr(distributed, "global_state", None), "preemption_sync_manager",
                   None) is not None


def jax_preempts_at(step: int) -> bool:
    """Returns true if JAX's preemption service, if it runs, has named this step; asked for every
    step."""
    if not _jax_has_sigterm():
        return False
    from jax.experimental import multihost_utils  # JAX is there

    return bool(multihost_utils.reached_preemption_sync_point(step))


class Watch:
    """Handlers for signals, from now until `stop`. Knows no store: one that is dropped may go."""

    def __init__(self, signals: Iterable[int]) -> None:
        self.received = 0  # the last signal
        self._active = True
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        for number in signals:
            if number == signal.SIGTERM and _jax_has_sigterm():
                continue
            try:
                self._before[number] = signal.signal(number, self._handle)
            except (ValueError, OSError) as error:
                self.stop()
                why = (error if threading.current_thread() is threading.main_thread()
                       else "only the main thread of a process can install handlers: open the "
                            "store there")
                raise InvalidArgumentError(
                    f"SaveOnPreemption cannot handle {signal.Signals(number).name}: {why}"
                ) from None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        here = self._active and os.getpid() == self._process  # not in a forked child
        if here:
            self.received = number
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        elif not here and before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def ends_process(self) -> bool:
        """Returns true if the signal that came would have ended the process."""
        return self.received != 0 and self._before.get(self.received) == signal.SIG_DFL

    def stop(self) -> None:
        """Puts back what was there. A handler that was installed later stays, and may go on calling
        this one, which passes the signal on."""
        self._active = False
        for number, before in self._before.items():
            if (signal.getsignal(number) == self._handle and before is not None
                    and not (number == signal.SIGTERM and _jax_has_sigterm())):
                with contextlib.suppress(ValueError):  # not the main thread
                    signal.signal(number, before)
