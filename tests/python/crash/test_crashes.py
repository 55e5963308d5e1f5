# SPDX-License-Identifier: Apache-2.0
"""The facades, branches, drafts and pushes on a machine that loses its power, or kills them: what
was acknowledged is there, by every door, and nothing is left behind. soak.py is the long form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROGRAMS = ("manager", "two managers", "one root, two managers", "manager over Orbax's steps",
            "checkpointer", "checkpointer over Orbax's steps", "steps of a root by their paths",
            "single", "partial", "v0 checkpointers", "flax", "flax and a manager in one directory",
            "equinox", "branches", "draft", "push", "copies", "moved", "seed 7", "seed 12")
Ask = Callable[..., dict[str, Any]]


def _all_right(answer: dict[str, Any], least: int) -> None:
    assert not answer["problems"], "\n\n".join(answer["problems"])
    assert answer["done"] >= least


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_power_cut_or_a_kill_at_any_time_keeps_what_was_acknowledged(
        ask: Ask, program: str) -> None:
    _all_right(ask("images", program=program, seed=1, count=8), 4)


@pytest.mark.parametrize("program", PROGRAMS[::3])
def test_a_process_killed_instead_of_a_system_call(ask: Ask, program: str) -> None:
    _all_right(ask("faults", program=program, seed=2, count=2, kinds=["kill"]), 1)


@pytest.mark.parametrize("program", PROGRAMS[1::3])
def test_a_system_call_that_fails_is_an_error_and_no_more(ask: Ask, program: str) -> None:
    _all_right(ask("faults", program=program, seed=3, count=2,
                   kinds=["EIO", "ENOSPC", "EMFILE", "ENOMEM"]), 0)


@pytest.mark.parametrize("program", ["single", "branches", "draft", "push", "equinox"])
def test_ctrl_c_at_any_line_leaves_before_or_after(ask: Ask, program: str) -> None:
    _all_right(ask("interrupts", program=program, seed=4, count=2), 3)


@pytest.mark.parametrize("plant", ["directories are not synced", "files are not synced",
                                   "acknowledged early"])
def test_the_net_finds_a_planted_bug(ask: Ask, plant: str) -> None:
    answer = ask("images", program="v0 checkpointers", seed=1, count=60, plant=plant)
    assert answer["problems"] and answer["done"] >= 20
