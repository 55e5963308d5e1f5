# SPDX-License-Identifier: Apache-2.0
"""Crash images, kills and failing system calls of programs of facade calls, by the thousands.

    STEPWELL_BUILD_DIR=<build> PYTHONPATH=<build>/python python tests/python/crash/soak.py DIR
        [--images 20000] [--kills 2000] [--faults 500] [--interrupts 1000] [--races 200]
        [--jobs 2] [--minutes 120] [--seed 1] [--only NAME]
        [--record tests/python/crash/CRASHES.md]

A seed is a program (programs.py): it is recorded, 60 images of the record are checked, it is killed
at 6 system calls and failed at 2. Beside it, calls of the written programs are interrupted at 10 of
their lines each, and there is one race. What was done is in DIR/progress-*.json, so that the same
command goes on where it stopped; what was found is in DIR/problems.txt. DIR should be in memory
(/dev/shm): a seed takes 50 MB there. With --record the whole is one line in that file. Status 1 if
anything was lost or wrong.

    soak.py DIR --only "seed 17" --images 500       looks closer at one program
    soak.py DIR --again RECORD LOSS DRAW            makes the last image of a report once more, of
                                                    the record that DIR/0 still has, at DIR/0/disk
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

import checking
import faults
import interrupts
import programs
import races
import recording
from calls import Program
from images import Loss

KINDS = ("images", "kills", "faults", "interrupts", "races")
IMAGES_OF_ONE, KILLS_OF_ONE, FAULTS_OF_ONE = 60, 6, 2


@dataclasses.dataclass
class Progress:
    """Of one job. lost: an acknowledged change is not there, or one that was not; wrong: all else
    that is not right."""

    seed: int
    programs: int = 0
    images: int = 0
    kills: int = 0
    faults: int = 0
    interrupts: int = 0
    races: int = 0
    lost: int = 0
    wrong: int = 0
    seconds: float = 0.0


class Job:
    def __init__(self, folder: Path, number: int, options: argparse.Namespace) -> None:
        self._folder, self._options = folder / str(number), options
        self._saved = folder / f"progress-{number}.json"
        self._problems = folder / "problems.txt"
        self.progress = Progress(options.seed + number)
        if self._saved.exists():
            self.progress = Progress(**json.loads(self._saved.read_text()))
        self._name = ""

    def _report(self, where: str, problem: str) -> None:
        if "the model says" in problem:
            self.progress.lost += 1
        else:
            self.progress.wrong += 1
        with open(self._problems, "a", encoding="utf-8") as file:
            file.write(f"{self._name}: {where}: {problem}\n\n")

    def run(self) -> None:
        options, progress = self._options, self.progress
        end = time.monotonic() + options.minutes * 60
        wanted = {kind: -(-getattr(options, kind) // options.jobs) for kind in KINDS}

        def missing() -> set[str]:
            return {kind for kind in KINDS if getattr(progress, kind) < wanted[kind]}

        while missing() and time.monotonic() < end:
            begun = time.monotonic()
            program = program_of(progress.seed, options.only)
            self._name = f"{program.name} (seed {progress.seed})"
            left = missing()
            try:
                if "images" in left:
                    self._images(program, wanted["images"] - progress.images, end)
                for kind, count, kinds in (("kills", KILLS_OF_ONE, ("kill",)),
                                           ("faults", FAULTS_OF_ONE, faults.ERRORS)):
                    if kind in left:
                        self._fresh(self._folder)
                        met, _ = faults.soak(program, str(self._folder), progress.seed, count,
                                             kinds, self._report, lambda: time.monotonic() < end)
                        setattr(progress, kind, getattr(progress, kind) + met)
                if "interrupts" in left:
                    self._interrupts()
                if "races" in left:
                    self._race()
            except Exception:
                self._report("the soak itself", traceback.format_exc())
            progress.programs += 1
            progress.seed += options.jobs
            progress.seconds += time.monotonic() - begun
            self._saved.write_text(json.dumps(dataclasses.asdict(progress)))
            print(f"{self._name}: {progress}", flush=True)

    def _interrupts(self) -> None:
        name = interrupts.PROGRAMS[self.progress.seed // 2 % len(interrupts.PROGRAMS)]
        self._fresh(self._folder)
        done, problems = interrupts.run(name, str(self._folder), self.progress.seed, 10, 300)
        self.progress.interrupts += done
        for problem in problems:
            self._report(name, problem)

    def _race(self) -> None:
        name = list(races.RACES)[self.progress.seed // 2 % len(races.RACES)]
        self._fresh(self._folder)
        for problem in races.run_in_child(name, str(self._folder)):
            self._report("race", problem)
        self.progress.races += 1

    def _images(self, program: Program, missing: int, end: float) -> None:
        count = min(missing, IMAGES_OF_ONE) if self._options.only is None else missing
        self._fresh(self._folder)
        for problem in recording.record(program, str(self._folder)):
            self._report("recorded", problem)
        found = recording.check_images(program, str(self._folder), self.progress.seed, count,
                                       self._report, lambda: time.monotonic() < end)
        self.progress.images += found.images

    @staticmethod
    def _fresh(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def program_of(seed: int, only: str | None) -> Program:
    """Written ones and generated ones in turn."""
    if only is not None:
        return programs.program_of(only)
    names = list(programs.WRITTEN)
    return programs.program_of(names[seed // 2 % len(names)] if seed % 2 == 0 else f"seed {seed}")


def record(path: Path, jobs: list[Progress], begun: int, minutes: float) -> None:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                          text=True, check=False, cwd=path.parent)
    sums = [sum(getattr(job, name) for job in jobs)
            for name in ("programs", *KINDS, "lost", "wrong")]
    line = " | ".join(map(str, [datetime.date.today(), done.stdout.strip() or "?", begun, *sums,
                                f"{minutes:.0f} min"]))
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"| {line} |\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=2_000)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--interrupts", type=int, default=1_000)
    parser.add_argument("--races", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--again", nargs=3, metavar=("RECORD", "LOSS", "DRAW"))
    options = parser.parse_args()
    if options.again is not None:
        number, loss, draw = options.again
        recording.rebuild(str(options.folder / "0"), int(number), Loss[loss], int(draw))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    children = [checking.fork(Job(options.folder, number, options).run, "/tmp")
                for number in range(options.jobs)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    jobs = [Job(options.folder, number, options).progress for number in range(options.jobs)]
    for job in jobs:
        print(job)
    if options.record is not None:
        record(options.record, jobs, options.seed, (time.monotonic() - begun) / 60)
    return 1 if any(statuses) or any(job.lost or job.wrong for job in jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
