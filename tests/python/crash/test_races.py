# SPDX-License-Identifier: Apache-2.0
"""Two threads, two processes, two facades, two prefixes on one directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RACES = (
    "one branch by two threads", "two branches by two threads", "one checkpoint by two threads",
    "saved and deleted by two threads", "two managers of one root by two threads",
    "two prefixes by two threads", "one checkpoint by two processes",
    "saved and deleted by two processes", "two managers of one root by two processes",
    "two prefixes by two processes", "one Checkpointer, two threads",
    "flax and a manager, two threads", "one place pushed to twice")


@pytest.mark.parametrize("name", RACES)
def test_two_at_a_time_are_one_behind_the_other(
        ask: Callable[..., dict[str, Any]], name: str) -> None:
    problems = ask("race", name=name)["problems"]
    assert not problems, "\n\n".join(problems)
