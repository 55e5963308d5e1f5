# SPDX-License-Identifier: Apache-2.0
"""Stores of many processes whose parts lie on disks of their own, under a real jax.distributed. A
machine is a directory here: its processes see what is in it, and nothing else."""

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from group_runs import Said, machines, run, run_matrix
from group_values import values

import stepwell

Act = list[Any]
CLOSE: Act = ["close", {}]


def opened(roots: list[pathlib.Path], **more: Any) -> Act:
    return ["open", {"disks": "local", "roots": [str(root) for root in roots], **more}]


def all_fail(said: list[Said], number: int, *words: str) -> None:
    for one in said:
        line = one.lines[number]
        assert "error" in line, line
        assert all(word in line["text"] for word in words), line["text"]


def test_machines_of_one_process_and_of_two(tmp_path: pathlib.Path) -> None:
    apart, pairs = machines(tmp_path / "a", 0, 1, 2, 3), machines(tmp_path / "b", 0, 0, 2, 2)
    shared = machines(tmp_path / "c", 0, 0, 0, 0)
    for said in run(apart, [
            opened(apart), ["save", {"step": 1}], ["save", {"step": 2}], ["check", {"step": 1}],
            ["look", {"step": 2}], ["steps", {}], CLOSE,
            opened(pairs), ["save", {"step": 5}], ["check", {"step": 5}], CLOSE,
            opened(shared), ["save", {"step": 7}], ["check", {"step": 7}], CLOSE], processes=4):
        assert [said.gave(i) for i in (0, 1, 2, 3, 5)] == [[], 1, 2, "equal", [1, 2]]
        metadata, leaves, items, pinned, part, name = said.gave(4)
        assert (metadata, leaves, items, pinned, name) == ({"at": 2}, 10, ["state"], False, "run")
        np.testing.assert_array_equal(part, values("both", 2)[2:5, ::3])
        assert [said.gave(i) for i in (8, 9, 12, 13)] == [5, "equal", 7, "equal"]

    def parts(roots: list[pathlib.Path]) -> list[list[str]]:
        return [sorted(path.name for path in root.glob("process_*")) for root in roots]

    assert parts(apart) == [[], ["process_1"], ["process_2"], ["process_3"]]
    assert parts(pairs) == [["process_1"]] * 2 + [["process_2", "process_3"]] * 2
    with stepwell.open(apart[0], "r") as store, pytest.raises(stepwell.Error, match="process_1"):
        store.load(1)
    with stepwell.open(shared[0], "r") as store:  # a store like any other
        assert store.load(7)["count"] == 7


def test_upkeep_and_other_numbers_of_processes(tmp_path: pathlib.Path) -> None:
    roots = machines(tmp_path, 0, 1)
    said = run(roots, [
        opened(roots, keep=3), *[["save", {"step": step}] for step in (1, 2, 3, 4)], ["steps", {}],
        ["pin", {"step": [3]}], ["delete", {"steps": [2]}], ["delete", {"steps": [3]}],
        ["verify", {}], ["reclaim", {}],
        ["look", {"step": 1}], ["misfit", {"step": 4, "process": 1}], ["check", {"step": 4}],
        ["differ", {"step": 4, "paths": ["params/rows", "params/whole"]}], ["retention", {}],
        CLOSE])
    for process, one in enumerate(said):
        assert one.gave(15) == ["LatestN(3)", []]  # of steps 3, pinned, and 4
        assert [one.gave(i) for i in (5, 6, 7)] == [[2, 3, 4], [3], [3, 4]]
        assert one.lines[8]["error"] == "StepPinnedError"
        chunks, problems = one.gave(9)
        assert chunks > 4 and problems == []
        assert one.gave(10) == "reclaimed"
        assert one.lines[11]["error"] == "StepNotFoundError"
        assert one.lines[12]["error"] == "MismatchError"
        assert one.gave(13) == "equal"
        np.testing.assert_array_equal(one.gave(14), values(("rows", "whole")[process], 4))
    all_fail(said, 11, "step 1")
    assert said[0].lines[12]["text"].startswith("process 1: ")
    larger = machines(tmp_path, 0, 1, 2, 3)
    for one in run(larger, [opened(larger), ["check", {"step": 4}], ["save", {"step": 5}],
                            ["check", {"step": 5}], CLOSE], processes=4):
        assert [one.gave(i) for i in range(4)] == [[3, 4], "equal", 5, "equal"]
    said = run(roots, [opened(roots), ["check", {"step": 5}], ["check", {"step": 4}],
                       ["save", {"step": 6}], ["check", {"step": 6}], CLOSE])
    all_fail(said, 1, "step 5 was saved by parts 0, 1, 2, 3", "part 2, 3")
    for one in said:
        assert [one.gave(i) for i in (0, 2, 3, 4)] == [[3, 4, 5], "equal", 6, "equal"]


def test_parts_that_are_not_where_they_were(tmp_path: pathlib.Path) -> None:
    names = ["typo", "lost disk", "older copy", "lost root", "exchanged", "not said", "new"]
    stores = {name: machines(tmp_path / name, 0, 1) for name in names}
    acts: list[Act] = []
    for name in names[:-1]:
        acts += [opened(stores[name]), ["save", {"step": 1}], CLOSE]
    for one in run(stores["new"], acts):
        assert [one.gave(i) for i in range(1, len(acts), 3)] == [1] * len(names[:-1])

    wrong = {name: list(roots) for name, roots in stores.items()}
    words = {}
    wrong["typo"][1] = tmp_path / "typo" / "machine_3" / "store"
    wrong["typo"][1].parent.mkdir()
    words["typo"] = ["part 1", "process 1", str(wrong["typo"][1] / "process_1")]
    shutil.rmtree(stores["lost disk"][1])
    words["lost disk"] = ["part 1", "process 1", str(stores["lost disk"][1] / "process_1")]
    shutil.copytree(stores["older copy"][1], tmp_path / "copy")
    run(stores["new"], [opened(stores["older copy"]), ["save", {"step": 2}], CLOSE])
    shutil.rmtree(stores["older copy"][1])
    shutil.copytree(tmp_path / "copy", stores["older copy"][1])
    words["older copy"] = ["part 1 of step 2 is missing", "process 1"]
    shutil.rmtree(stores["lost root"][0])
    words["lost root"] = ["process 0 has no store", str(stores["lost root"][0]), "process 1",
                          "process_1", str(stores["lost root"][1])]
    wrong["exchanged"].reverse()
    words["exchanged"] = ["process 0 has no store", str(stores["exchanged"][1]), "process_1"]
    words["not said"] = ["process 1", 'disks="local"']

    before = sorted(tmp_path.rglob("STEPWELL"))
    tried = [*names[:-2], "not said"]
    said = run(stores["new"], [
        *[opened(wrong[name], **({"disks": "shared"} if name == "not said" else {}))
          for name in tried], opened(stores["exchanged"]), ["check", {"step": 1}], CLOSE],
        timeout=20)
    for number, name in enumerate(tried):
        all_fail(said, number, *words[name])
    assert sorted(tmp_path.rglob("STEPWELL")) == before  # nothing was made
    for one in said:
        assert one.gave(len(tried) + 1) == "equal"


def test_a_process_that_dies_leaves_all_or_none(tmp_path: pathlib.Path) -> None:
    kills = [(1, "after_vote"), (0, "after_decide"), (1, "in_load")]
    stores = [machines(tmp_path / point, 0, 1) for _, point in kills]
    for roots, (victim, point) in zip(stores, kills, strict=True):
        last = ["check", {"step": 1}] if point == "in_load" else ["save", {"step": 2}]
        died = run(roots, [opened(roots), ["save", {"step": 1}], last], kill=[2, victim, point],
                   timeout=3)
        assert died[victim].status == -9
        other = died[1 - victim].lines
        if len(other) > 2:  # else JAX ended it
            assert other[2].get("error", "PeerError") in ("PeerError", "OutcomeUnknownError")
            assert "error" in other[2] or point == "after_vote"
            if point == "in_load":
                assert "process 1 of 2 did not answer" in other[2]["text"], other[2]
    acts: list[Act] = []
    for roots in stores:
        acts += [opened(roots), ["check", {"step": 1}], ["save", {"step": 3}], ["steps", {}],
                 ["check", {"step": 3}], CLOSE]
    after = run(stores[0], acts)
    for number, (_, point) in enumerate(kills):
        found = after[0].gave(6 * number)
        assert found in {"after_decide": [[1, 2]], "in_load": [[1]]}.get(point, [[1], [1, 2]])
        for said in after:
            assert [said.gave(6 * number + i) for i in range(5)] == [
                found, "equal", 3, [*found, 3], "equal"]


def test_everything_is_as_on_a_shared_disk(tmp_path: pathlib.Path) -> None:
    roots = machines(tmp_path, 0, 1)
    for said in run(roots, [opened(roots), ["odd", {"shared": str(tmp_path / "shared")}],
                            ["far_slices", {}], CLOSE]):
        assert [said.gave(1), said.gave(2)] == ["equal", "equal"]


@pytest.mark.parametrize("processes, begin, count", [(2, 0, 32), (4, 1000, 16)])
def test_random_arrays_on_random_meshes(tmp_path: pathlib.Path, processes: int, begin: int,
                                        count: int) -> None:
    counted = run_matrix(f"{tmp_path}/machine_{{}}/store", processes, begin, begin + count)
    for counts in counted:
        assert counts["cases"] == count
        assert counts["spread"] > count / 3
    assert sum(counts["shards"] for counts in counted) > 3 * count
    assert {counts["needed"] for counts in counted} == {sum(counts["chunks"] for counts in counted)}
