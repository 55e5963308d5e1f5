# SPDX-License-Identifier: Apache-2.0
"""Crash images, kills and failing system calls of programs of facade calls: one call of tests/soak.

    STEPWELL_BUILD_DIR=<build> PYTHONPATH=<build>/python python tests/python/crash/soak.py DIR
        [--seed 1] [--programs 1] [--images 60] [--only NAME]

A seed is a program (programs.py): it is recorded, 60 images of the record are checked, it is killed
at 6 system calls and failed at 2. Beside it, calls of a written program are interrupted at 10 of
their lines, and there is one race. Prints what was done, and what was found. DIR should be in
memory (/dev/shm): a seed takes 50 MB there. Status 1 if anything was lost or wrong.

    soak.py DIR --only "seed 17" --images 500       looks closer at one program
    soak.py DIR --again RECORD LOSS DRAW            makes the last image of a report once more, of
                                                    the record that DIR still has, at DIR/disk
"""

from __future__ import annotations

import argparse
import collections
import shutil
import sys
import traceback
from pathlib import Path

import faults
import interrupts
import programs
import races
import recording
from calls import Program
from images import Loss

KILLS, FAULTS, LINES = 6, 2, 10  # of a program


class Soak:
    """lost: an acknowledged change is not there, or one that was not; wrong: all else that is not
    right."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self.counts: collections.Counter[str] = collections.Counter()

    def _report(self, where: str, problem: str) -> None:
        self.counts["lost" if "the model says" in problem else "wrong"] += 1
        print(f"{self._name}: {where}: {problem}\n", flush=True)

    def run(self, program: Program, seed: int, images: int) -> None:
        self._name = f"{program.name} (seed {seed})"
        try:
            for count, kinds in ((KILLS, ("kill",)), (FAULTS, faults.ERRORS)):
                self._fresh()
                met, _ = faults.soak(program, str(self._folder), seed, count, kinds, self._report,
                                     lambda: True)
                self.counts["kills" if kinds == ("kill",) else "faults"] += met
            self._interrupts(seed)
            self._race(seed)
            self._images(program, seed, images)
        except Exception:
            self._report("the soak itself", traceback.format_exc())
        self.counts["programs"] += 1

    def _interrupts(self, seed: int) -> None:
        name = interrupts.PROGRAMS[seed // 2 % len(interrupts.PROGRAMS)]
        self._fresh()
        done, problems = interrupts.run(name, str(self._folder), seed, LINES, 300)
        self.counts["interrupts"] += done
        for problem in problems:
            self._report(name, problem)

    def _race(self, seed: int) -> None:
        name = list(races.RACES)[seed // 2 % len(races.RACES)]
        self._fresh()
        for problem in races.run_in_child(name, str(self._folder)):
            self._report("race", problem)
        self.counts["races"] += 1

    def _images(self, program: Program, seed: int, count: int) -> None:
        """Last: their record is what --again looks at."""
        self._fresh()
        for problem in recording.record(program, str(self._folder)):
            self._report("recorded", problem)
        found = recording.check_images(program, str(self._folder), seed, count, self._report,
                                       lambda: True)
        self.counts["images"] += found.images

    def _fresh(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)


def program_of(seed: int, only: str | None) -> Program:
    """Written ones and generated ones in turn."""
    if only is not None:
        return programs.program_of(only)
    names = list(programs.WRITTEN)
    return programs.program_of(names[seed // 2 % len(names)] if seed % 2 == 0 else f"seed {seed}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60, help="of each program")
    parser.add_argument("--only")
    parser.add_argument("--again", nargs=3, metavar=("RECORD", "LOSS", "DRAW"))
    options = parser.parse_args()
    if options.again is not None:
        number, loss, draw = options.again
        recording.rebuild(str(options.folder), int(number), Loss[loss], int(draw))
        return 0
    soak = Soak(options.folder)
    for seed in range(options.seed, options.seed + options.programs):
        soak.run(program_of(seed, options.only), seed, options.images)
    print(" ".join(f"{what}={count}" for what, count in sorted(soak.counts.items())))
    return 1 if soak.counts["lost"] or soak.counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
