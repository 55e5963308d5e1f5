# SPDX-License-Identifier: Apache-2.0
"""`stepwell push --follow`: keeps a pushed run up to date until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import queue
import signal
from typing import Any

from .. import _store
from .._display import format_bytes
from .._remote.pushed import PushReport
from .._runtime import service
from .._text import counted
from ..errors import InvalidArgumentError, StepExistsError

_LOOK_SECONDS = 0.1  # from one look for signals to the next
# What a first push says of a place that is none for it, and will not be.
_REFUSALS = (StepExistsError, InvalidArgumentError)


def _signals() -> list[int]:
    """Returns a list that gets the numbers of SIGINT and SIGTERM. The second one of a kind ends the
    process."""
    received: list[int] = []

    def receive(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        received.append(number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, receive)
    return received


class _Shown:
    """Prints each push, and counts."""

    def __init__(self, store: _store.Store, json: bool) -> None:
        self._store, self._json = store, json
        self.pushed: int | None = None
        self.pushes = self.sent_bytes = 0

    def show(self, report: PushReport) -> None:
        self.pushed = report.step
        self.pushes += 1
        self.sent_bytes += report.sent_bytes
        if not self._json:
            print(f"pushed step {report.step}: {format_bytes(report.sent_bytes)} sent, "
                  f"{_lag(self.behind())}", flush=True)

    def behind(self) -> int:
        """How many steps the store has above the one pushed last."""
        return sum(self.pushed is None or step > self.pushed for step in self._store.steps())


def _lag(behind: int) -> str:
    return f"{counted(behind, 'step')} behind" if behind else "up to date"


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Runs the command; `given.options` are for the library that opens the URL."""
    logging.basicConfig(format="stepwell: %(message)s")
    received = _signals()
    reports: queue.SimpleQueue[PushReport | None] = queue.SimpleQueue()
    with _store.open(given.store, mode="r") as store, store.push_following(
            given.url, storage_options=given.options, verify=given.verify, keep=given.keep,
            work_dir=given.work_dir, on_push=reports.put) as follower:
        shown = _Shown(store, given.json)

        def is_refused() -> bool:
            return shown.pushes == 0 and isinstance(follower.error, _REFUSALS)

        while not received and not follower.ended and not is_refused():
            with contextlib.suppress(queue.Empty):
                report = reports.get(timeout=_LOOK_SECONDS)
                if report is not None:
                    shown.show(report)
        follower.close()
        service.call_back(functools.partial(reports.put, None))  # behind what was pushed last
        for report in iter(reports.get, None):
            shown.show(report)
        if follower.error is not None and not received:  # or the store cannot be followed any more
            raise follower.error
        behind = shown.behind()
    error = None if follower.error is None else str(follower.error)
    text = "stopped; no step was pushed" if shown.pushed is None else (
        f"stopped at step {shown.pushed}, {_lag(behind)}")
    if error is not None:
        text += f"; the last push failed: {error}"
    return {"store": given.store, "pushed": shown.pushed, "pushes": shown.pushes,
            "sent_bytes": shown.sent_bytes, "behind": behind, "error": error}, f"{text}\n"
