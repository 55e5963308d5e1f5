# SPDX-License-Identifier: Apache-2.0
"""Runs a program on a file system that records it, and makes images of the record."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import checking
from calls import Model, Program, World
from images import Loss, Machine, Op, Record, read_log

RUN_TIMEOUT_S = 120.0
MARKS = ".marks"


def recorder_program() -> str:
    folder = os.environ.get("STEPWELL_BUILD_DIR")
    assert folder, "STEPWELL_BUILD_DIR must name the build folder"
    found = sorted(Path(folder).rglob("stepwell_record_files"))
    programs = [str(path) for path in found if path.is_file() and os.access(path, os.X_OK)]
    assert programs, (f"stepwell_record_files is not in {folder}: build it; it needs libfuse3 "
                      "(libfuse3-dev)")
    return programs[0]


@contextlib.contextmanager
def recorded(folder: str) -> Iterator[str]:
    """A file system at folder/disk, empty; what happens to it is in folder/log."""
    for name in ("disk", "backing"):
        os.mkdir(os.path.join(folder, name))
    point = os.path.join(folder, "disk")
    with subprocess.Popen([recorder_program(), os.path.join(folder, "backing"), point,
                           os.path.join(folder, "log")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdin is not None
        assert server.stdout.readline() == b"ready\n", (
            "the test cannot mount a file system of its own here (it needs root and /dev/fuse)")
        try:
            yield point
        finally:
            server.stdin.close()
            server.wait()
    shutil.rmtree(os.path.join(folder, "backing"))


def run_calls(program: Program, base: str, mark: Callable[[str], None]) -> None:
    """The program, in this process. It says what it does, and goes on after an error."""
    world = World(base)
    for call in program.setup:
        call.run(world)
    world.close()
    mark("setup")
    for i, call in enumerate(program.calls):
        mark(f"begin {i}")
        try:
            call.run(world)
        except Exception as error:
            mark(f"failed {i} {type(error).__name__}: {error}")
        else:
            mark(f"done {i}")
    world.close()
    mark("closed")


def record(program: Program, folder: str) -> list[str]:
    """Records the program; what went wrong already."""
    os.mkdir(os.path.join(folder, "tmp"))
    with recorded(folder) as disk:

        def work() -> None:
            marks = os.open(os.path.join(disk, MARKS), os.O_WRONLY)
            run_calls(program, disk, lambda text: void(os.write(marks, text.encode())))

        status = checking.waited(checking.fork(work, os.path.join(folder, "tmp"),
                                               os.path.join(folder, "output")), RUN_TIMEOUT_S)
    problems = [] if status == 0 else [f"the program ended with status {status}: "
                                       f"{Path(folder, 'output').read_text()[-3000:]}"]
    for each in read_log(os.path.join(folder, "log")):
        if each.op == Op.MARK and each.data.startswith(b"failed"):
            number = int(each.data.split()[1])
            problems.append(f"{program.calls[number].name}: {each.data.decode()[:1500]}")
    return problems


def void(_: object) -> None:
    pass


@dataclass(frozen=True)
class Instant:
    """After a record of the log: what may be there then."""

    record: int
    models: int  # the index into Program.models()


def instants(program: Program, records: list[Record]) -> list[Instant]:
    """Those after which the directory, or what was acknowledged, is another one."""
    found: list[Instant] = []
    at, ready = 0, False
    for number, each in enumerate(records):
        if each.op == Op.MARK:
            words = each.data.decode().split()
            ready = ready or words[0] == "setup"
            if words[0] in ("begin", "done"):
                at = 2 * int(words[1]) + (1 if words[0] == "begin" else 2)
            if words[0] == "failed":
                return found  # what is there after it is another matter
        if ready and each.op != Op.MODE:
            found.append(Instant(number, at))
    return found


@dataclass
class Found:
    images: int = 0
    alike: int = 0  # not looked at: the same as another one
    problems: dict[str, list[str]] = field(default_factory=dict)  # by kind


def weight(machine: Machine, each: Record) -> float:
    """Most of the log is the engine's own, which has crash tests of its own."""
    where = machine.where(each)
    if each.op in (Op.MARK, Op.SYNC_DIRECTORY, Op.RENAME):
        return 4.0
    if "/index" in where or "BALLAST" in where:
        return 0.3
    return 1.0 if ".stepwell" in where else 3.0


Skip = Callable[[Machine, Record], bool]


def _play(machine: Machine, record: Record, skip: Skip | None = None) -> None:
    if skip is None or not skip(machine, record):
        machine.play(record)
    if record.op == Op.MARK and record.data == b"setup":
        machine.sync()


LOSSES = {Loss.ALL: 3, Loss.DATA: 2, Loss.NAMES: 1, Loss.NOTHING: 3, Loss.PREFIX: 3,
          Loss.PIECES: 4}


def check_images(program: Program, folder: str, seed: int, count: int,
                 report: Callable[[str, str], None] | None = None,
                 go_on: Callable[[], bool] = lambda: True, skip: Skip | None = None,
                 early: bool = False) -> Found:
    """Makes `count` images of folder/log, and checks them at the same path folder/disk. Planted
    bugs: records that the disk does not heed, calls that are acknowledged when they begin."""
    records = list(read_log(os.path.join(folder, "log")))
    models = program.models()
    chance = random.Random(seed)
    there = instants(program, records)
    if early:
        there = [Instant(each.record, each.models + each.models % 2) for each in there]
    machine = Machine()
    weights = []
    at = {each.record: each for each in there}
    for number, each in enumerate(records):
        _play(machine, each, skip)
        if number in at:
            weights.append(weight(machine, each))
    plan: dict[int, list[Loss]] = {}
    for instant in chance.choices(there, weights, k=count) if there else []:
        plan.setdefault(instant.record, []).append(
            chance.choices(list(LOSSES), list(LOSSES.values()))[0])
    found, seen = Found(), set[tuple[int, int]]()
    checker = checking.Checker(program, os.path.join(folder, "tmp"))
    machine = Machine()
    disk = os.path.join(folder, "disk")
    try:
        for number, each in enumerate(records):
            _play(machine, each, skip)
            for loss in plan.get(number, []):
                if not go_on():
                    return found
                draw = chance.randrange(1 << 30)
                image = machine.image(loss, random.Random(draw))
                key = (image.key(), at[number].models)
                if key in seen:
                    found.alike += 1
                    continue
                seen.add(key)
                empty(disk)
                image.write(disk)
                found.images += 1
                acceptable: list[Model] = models[at[number].models]
                for problem in checker.check(disk, acceptable, draw % 2 == 0, image.after_boot):
                    where = (f"record {number} {loss.name} draw {draw}: "
                             f"{_during(program, at[number].models)}")
                    found.problems.setdefault(_kind(problem), []).append(f"{where}: {problem}")
                    if report is not None:
                        report(where, problem)
                    empty(os.path.join(folder, "tmp"))
    finally:
        checker.close()
    return found


def rebuild(folder: str, record: int, loss: Loss, draw: int) -> None:
    """The image of a report once more, at folder/disk; the log must be the same."""
    machine = Machine()
    for number, each in enumerate(read_log(os.path.join(folder, "log"))):
        _play(machine, each)
        if number == record:
            break
    os.makedirs(os.path.join(folder, "disk"), exist_ok=True)
    empty(os.path.join(folder, "disk"))
    machine.image(loss, random.Random(draw)).write(os.path.join(folder, "disk"))


def _during(program: Program, models: int) -> str:
    if models == 0:
        return "before the first call"
    call = program.calls[(models - 1) // 2]
    return f"{'within' if models % 2 else 'after'} {call.name}"


def _kind(problem: str) -> str:
    """Problems of one kind differ in numbers only."""
    return "".join("#" if each.isdigit() else each for each in problem.strip()[:160])


def empty(folder: str) -> None:
    """Removes what is in it. A directory without permissions is no reason to stop."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=False)
            else:
                os.unlink(entry.path)
