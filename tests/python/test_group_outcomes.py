# SPDX-License-Identifier: Apache-2.0
"""Compares the reports of several processes about a change that fails after process 0 began to
decide it with what the next open finds: done, not done, or unknown, and never a part of it."""

import pathlib
from typing import Any

import pytest
from group_runs import Said, run

import stepwell

Act = list[Any]
DISKS = ("shared", "local")


def roots_of(folder: pathlib.Path, disks: str) -> list[pathlib.Path]:
    if disks == "shared":
        return [folder / "store"] * 2
    for number in range(2):
        (folder / f"machine_{number}").mkdir(parents=True)
    return [folder / f"machine_{number}" / "store" for number in range(2)]


def fault(point: str, process: int = 0) -> Act:
    return ["fault", {"process": process, "point": point}]


def outcomes(said: list[Said], number: int) -> list[Any]:
    """By process, what an act gave or the class of its error."""
    return [one.lines[number].get("error", one.lines[number].get("gave")) for one in said]


def opens_with(roots: list[pathlib.Path], disks: str, steps: list[int]) -> None:
    """The next open by all: these steps, whole, and the store is as good as ever."""
    checks = [["check", {"step": step}] for step in steps]
    said = run(roots, [["open", {"disks": disks}], *checks, ["save", {"step": 9}],
                       ["check", {"step": 9}], ["verify", {}], ["close", {}]])
    for one in said:
        assert one.gave(0) == steps, one.output[-3000:]
        assert [one.gave(i + 1) for i in range(len(steps))] == ["equal"] * len(steps)
        assert one.gave(len(steps) + 1) == 9
        assert one.gave(len(steps) + 2) == "equal"
        assert one.gave(len(steps) + 3)[1] == []
    if disks == "shared":
        with stepwell.open(roots[0], "r") as store:
            assert store.steps() == [*steps, 9]
            assert store.verify().problems == []


@pytest.mark.parametrize("disks", DISKS)
@pytest.mark.parametrize("point", ["flush", "after_decide"])
def test_what_part_0_may_have_committed_is_aborted_nowhere(tmp_path: pathlib.Path, point: str,
                                                           disks: str) -> None:
    for attempt in range(8):
        (tmp_path / str(attempt)).mkdir()
        roots = roots_of(tmp_path / str(attempt), disks)
        said = run(roots, [["open", {"disks": disks}], ["save", {"step": 1}], fault(point),
                           ["save", {"step": 2}]], posix=True)
        if outcomes(said, 3) != ["StorageError"] * 2:
            break
        # The first flush that failed was that of STEPWELL, behind the prepared step, and came
        # before the decision was begun: then it is not done, and nothing else.
        opens_with(roots, disks, [1])
    assert outcomes(said, 3) == ["OutcomeUnknownError"] * 2, [one.lines for one in said]
    for one in said:
        text = one.lines[3]["text"]
        assert "step 2 was committed" in text or "save 2 was done" in text, text
        assert "is not known" in text and "open it again" in text
    assert said[1].lines[3]["text"].startswith("process 0: ")
    if disks == "shared":  # by one process, before anybody opened it for writing
        with stepwell.open(roots[0], "r") as store:
            assert store.steps() == [1, 2]
            assert store.load(2)["count"] == 2
            assert store.verify().problems == []
    opens_with(roots, disks, [1, 2])


@pytest.mark.parametrize("disks", DISKS)
def test_a_delete_and_a_pin_of_unknown_outcome(tmp_path: pathlib.Path, disks: str) -> None:
    roots = roots_of(tmp_path, disks)
    said = run(roots, [["open", {"disks": disks}], ["save", {"step": 1}], ["save", {"step": 2}],
                       fault("after_decide"), ["pin", {"step": [1]}]], posix=True)
    assert outcomes(said, 4) == ["OutcomeUnknownError"] * 2
    said = run(roots, [["open", {"disks": disks}], fault("flush"), ["delete", {"steps": [2]}],
                       ["save", {"step": 3}]], posix=True)
    assert outcomes(said, 2) == ["OutcomeUnknownError"] * 2
    assert outcomes(said, 3) == ["Error"] * 2  # it cannot have begun
    opens_with(roots, disks, [1])


@pytest.mark.parametrize("disks", DISKS)
def test_what_was_not_begun_is_not_done(tmp_path: pathlib.Path, disks: str) -> None:
    """Pinned: process 0's store refuses the decision, so nothing can be there."""
    roots = roots_of(tmp_path, disks)
    said = run(roots, [["open", {"disks": disks}], ["save", {"step": 1}], ["pin", {"step": [1]}],
                       ["save", {"step": 1, "if_exists": "replace"}], ["save", {"step": 2}],
                       ["steps", {}], ["close", {}]])
    for one in said:
        assert one.lines[3]["error"] == "StepPinnedError"
        assert one.gave(4) == 2
        assert one.gave(5) == [1, 2]


@pytest.mark.parametrize("disks", DISKS)
def test_what_is_committed_is_not_called_failed(tmp_path: pathlib.Path, disks: str) -> None:
    roots = roots_of(tmp_path, disks)
    said = run(roots, [["open", {"disks": disks}], ["save", {"step": 1}],
                       fault("left"), ["save", {"step": 2}], ["steps", {}],
                       fault("before_decide", process=1), ["save", {"step": 3}],
                       fault("advance"), ["save", {"step": 4}], ["steps", {}]])
    assert [outcomes(said, number) for number in (3, 6, 8)] == [[2, 2], [3, 3], [4, 4]]
    assert outcomes(said, 4) == [[1, 2], [1, 2]]
    if disks == "local":  # which steps there are was not told
        assert all("not known here" in one.lines[9]["text"] for one in said)
    opens_with(roots, disks, [1, 2, 3, 4])


def test_who_is_not_told_does_not_know(tmp_path: pathlib.Path) -> None:
    roots = roots_of(tmp_path, "shared")
    said = run(roots, [["open", {}], ["save", {"step": 1}], fault("no_broadcast"),
                       ["save", {"step": 2}]], timeout=3)
    assert outcomes(said, 3) == [2, "OutcomeUnknownError"], [one.lines for one in said]
    opens_with(roots, "shared", [1, 2])
