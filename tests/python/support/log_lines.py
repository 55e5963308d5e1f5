# SPDX-License-Identifier: Apache-2.0
"""Lines of the engine's log, which come from a thread of their own."""

from __future__ import annotations

import time

import pytest


def wait_for(text: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1000):
        if text in caplog.text:
            return
        time.sleep(0.01)
    raise AssertionError(f"{text!r} is not in the log:\n{caplog.text}")
