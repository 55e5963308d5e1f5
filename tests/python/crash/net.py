# SPDX-License-Identifier: Apache-2.0
"""A process that has imported everything and used nothing of it: it forks what the tests ask for.
Requests are lines of JSON on stdin, answers on stdout.

    {"do": "images", "program": "single", "seed": 1, "count": 20, "plant": ""}
    {"do": "faults", "program": "single", "seed": 1, "count": 3, "kinds": ["kill"]}
    {"do": "interrupts", "program": "single", "seed": 1, "count": 10}
    {"do": "race", "name": "one branch by two threads"}
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from typing import Any

import faults
import interrupts
import programs
import races
import recording
from images import Machine, Op, Record

Answer = dict[str, Any]


def _images(request: Answer, folder: str) -> Answer:
    program = programs.program_of(request["program"])
    problems = recording.record(program, folder)
    plant = PLANTS[request["plant"]] if request.get("plant") else None
    found = recording.check_images(
        program, folder, request["seed"], request["count"],
        skip=plant if callable(plant) else None, early=plant == "early")
    return {"done": found.images, "problems": problems + [
        f"{len(each)} times: {each[0]}" for each in found.problems.values()]}


def _faults(request: Answer, folder: str) -> Answer:
    problems: list[str] = []
    os.mkdir(os.path.join(folder, "cases"))
    met, _ = faults.soak(programs.program_of(request["program"]), os.path.join(folder, "cases"),
                         request["seed"], request["count"], tuple(request["kinds"]),
                         lambda where, problem: problems.append(f"{where}: {problem}"))
    return {"done": met, "problems": problems}


def _interrupts(request: Answer, folder: str) -> Answer:
    done, problems = interrupts.run(request["program"], folder, request["seed"],
                                    request["count"], 120)
    return {"done": done, "problems": problems}


def _race(request: Answer, folder: str) -> Answer:
    return {"done": 1, "problems": races.run_in_child(request["name"], folder)}


# ---- planted bugs: what a disk that lies, or a call that says too much, would do ----------------


def _no_folder_syncs(machine: Machine, record: Record) -> bool:
    """Syncs of directories above the stores do nothing."""
    return record.op == Op.SYNC_DIRECTORY and ".stepwell" not in machine.inodes[record.a].where


def _no_file_syncs(machine: Machine, record: Record) -> bool:
    """Nor do those of the files there."""
    where = machine.inodes[record.a].where if record.op == Op.SYNC else ""
    return bool(where) and ".stepwell" not in where and ".orbax-checkpoint-tmp" in where


PLANTS: dict[str, Callable[[Machine, Record], bool] | str] = {
    "directories are not synced": _no_folder_syncs, "files are not synced": _no_file_syncs,
    "acknowledged early": "early"}


def main() -> None:
    folder = sys.argv[1]
    does = {"images": _images, "faults": _faults, "interrupts": _interrupts, "race": _race}
    for line in sys.stdin:
        request = json.loads(line)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        try:
            answer = does[request["do"]](request, folder)
        except Exception:
            answer = {"done": 0, "problems": [traceback.format_exc()]}
        print(json.dumps(answer), flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
