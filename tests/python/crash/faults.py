# SPDX-License-Identifier: Apache-2.0
"""Programs of which the n-th system call is the last one, or fails (support/nth_call.cc)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import checking
import recording
import stepwell
from calls import Call, Model, Program, World

RUN_TIMEOUT_S = 60.0
SETTLE_S = 0.05
ERRORS = ("EIO", "ENOSPC", "EMFILE", "ENOMEM")
# Errors that a caller can do something about; others are the caller's own mistakes, or ours.
EXPECTED = ("NoSpaceError", "StorageError", "OSError", "Error", "OutcomeUnknownError",
            "PermissionDeniedError", "LockedError", "CorruptionError", "MemoryError",
            "FileNotFoundError", "StoreNotFoundError", "PermissionError")
REFUSED = ("StepAlreadyExistsError", "StepExistsError", "InvalidCheckpointError",
           "FileExistsError")


@dataclass(frozen=True)
class Fault:
    """kind: "kill", or an errno's name. call: of the program, whose n-th system call it is. until:
    "once", or "end": all others of that call, too."""

    kind: str
    call: int
    n: int
    until: str = "once"

    def __str__(self) -> str:
        return f"{self.kind} call={self.call} n={self.n} until={self.until}"


@dataclass
class Outcome:
    problems: list[str]
    reached: bool  # the n-th call was met
    counted: int = 0  # system calls of the whole call, where it came to its end


def _library() -> ctypes.CDLL:
    folder = os.environ.get("STEPWELL_BUILD_DIR")
    assert folder, "STEPWELL_BUILD_DIR must name the build folder"
    found = sorted(Path(folder).rglob("libstepwell_nth_call.so"))
    assert found, f"libstepwell_nth_call.so is not in {folder}: build it"
    library = ctypes.CDLL(str(found[0]))
    library.nth_arm.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    library.nth_counted.restype = ctypes.c_uint64
    return library


def _run(program: Program, base: str, fault: Fault, said: int, library: ctypes.CDLL) -> None:
    """In the child: all calls, one of which meets the fault. Errors of others are reported."""

    def log_line(text: str) -> None:
        os.write(said, text.replace("\n", " ").encode() + b"\n")

    world = World(base)
    for call in program.setup:
        call.run(world)
    world.close()
    if library.nth_watch(os.fsencode(base)) != 0:
        raise OSError("seccomp")
    number = 0 if fault.kind == "kill" else getattr(errno, fault.kind)
    for i, call in enumerate(program.calls):
        log_line(f"begin {i}")
        if i == fault.call:
            library.nth_arm(fault.n, number, fault.until == "end", fault.kind == "EMFILE")
            library.nth_count(1)
        try:
            if i <= fault.call:
                call.run(world)
            else:
                _run_later(call, world)
        except Exception as error:
            library.nth_count(0)
            log_line(f"failed {i} {type(error).__name__} {type(error).__module__}: {error}"[:2000])
        else:
            library.nth_count(0)
            log_line(f"done {i}")
        if i == fault.call:
            log_line(f"counted {library.nth_counted()}")
    try:
        world.close()
    except Exception as error:  # what the fault was, told once more
        log_line(f"closing {type(error).__name__}: {error}"[:500])
    log_line("closed")


def _run_later(call: Call, world: World) -> None:
    """A store whose disk failed within a commit says that it is to be opened again."""
    try:
        call.run(world)
    except stepwell.Error as error:
        if "open it again" not in str(error) or isinstance(error, stepwell.OutcomeUnknownError):
            raise
        with contextlib.suppress(Exception):  # it says the same once more
            world.close()
        world.open.clear()
        call.run(world)


def run(program: Program, folder: str, fault: Fault, checker: checking.Checker) -> Outcome:
    """One run in the empty directory `folder`, and the look at what it left."""
    base, scratch = os.path.join(folder, "disk"), os.path.join(folder, "tmp")
    for name in (base, scratch):
        os.mkdir(name)
    lines = os.path.join(folder, "said")
    library = _library()

    def work() -> None:
        said = os.open(lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _run(program, base, fault, said, library)

    status = checking.waited(checking.fork(work, scratch, os.path.join(folder, "output")),
                             RUN_TIMEOUT_S)
    said = Path(lines).read_text().splitlines() if os.path.exists(lines) else []
    outcome = _judge(program, said, status, fault)
    if outcome.problems:
        outcome.problems = [f"{each}\n{Path(folder, 'output').read_text()[-2500:]}"
                            for each in outcome.problems]
        return outcome
    if fault.kind == "kill":
        _settle(base)
    outcome.problems = checker.check(base, _acceptable(program, said))
    return outcome


def _settle(base: str) -> None:
    """Waits until no file has changed for a while. The kernel ends the io_uring of a killed process
    behind that process: a write that was under way may land later."""
    def stamps() -> dict[str, tuple[int, int]]:
        found = {}
        for folder, _, names in os.walk(base):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(os.path.join(folder, name), follow_symlinks=False)
                    found[os.path.join(folder, name)] = status.st_size, status.st_mtime_ns
        return found

    before, now = None, stamps()
    while now != before:
        time.sleep(SETTLE_S)
        before, now = now, stamps()


def _judge(program: Program, said: list[str], status: int | None, fault: Fault) -> Outcome:
    counted = next((int(line.split()[1]) for line in said if line.startswith("counted")), 0)
    outcome = Outcome([], status == -9 if fault.kind == "kill" else counted >= fault.n, counted)
    if status is None:
        outcome.problems.append(f"it hangs: {said[-3:]}")
    elif status not in (0, -9) or (status == -9 and fault.kind != "kill"):
        outcome.problems.append(f"it ended with status {status}: {said[-3:]}")
    for line in said:
        if not line.startswith("failed"):
            continue
        number, name = int(line.split()[1]), line.split()[2]
        if number == fault.call and name in EXPECTED and outcome.reached:
            continue
        if number > fault.call and outcome.reached and name in (
                "OutcomeUnknownError", "StorageError", "NoSpaceError"):
            continue  # the first to hear of the failure
        refused = name in REFUSED or (name == "ValueError" and "already exists" in line)
        if number > fault.call and refused and outcome.reached:
            continue  # what an earlier call failed to remove is there still
        if number > fault.call and name == "CalledProcessError" and outcome.reached:
            continue  # `cp` of a step that is in the store, and is not shown yet
        if number > fault.call and _cannot_be_made(program, said, number):
            continue
        outcome.problems.append(f"{program.calls[number].name}: {line}")
    return outcome


def _cannot_be_made(program: Program, said: list[str], number: int) -> bool:
    """Returns true if a call needs what an earlier one that failed may not have done."""
    calls = [line for line in said if line.split()[0] in ("begin", "done", "failed")]
    for model in _acceptable(program, [line for line in calls if int(line.split()[1]) < number]):
        try:
            program.calls[number].after(model)
        except (KeyError, TypeError, AttributeError, ValueError):
            return True
    return False


def _acceptable(program: Program, said: list[str]) -> list[Model]:
    models = program.models()[0]
    ended: dict[int, str] = {}
    for line in said:
        words = line.split()
        if words[0] in ("begin", "done", "failed"):
            ended[int(words[1])] = words[0]
    for number, how in sorted(ended.items()):
        following: list[Model] = []
        for model in models:
            call = program.calls[number]
            try:
                if how == "done":
                    following.append(call.after(model))
                else:
                    following += call.under_way(model)
            except (KeyError, TypeError, AttributeError, ValueError):
                # It could not be made. What it does first, such as to open a store, it may have.
                following.append(model)
                following += call.begun(model) if how != "done" else []
        models = [model for i, model in enumerate(following) if model not in following[:i]]
    return models


def soak(program: Program, folder: str, seed: int, count: int, kinds: tuple[str, ...],
         report: Callable[[str, str], None], go_on: Callable[[], bool] = lambda: True
         ) -> tuple[int, int]:
    """`count` runs with faults from a seed; how many met them, and how many are wrong."""
    chance = random.Random(seed)
    checker = checking.Checker(program, os.path.join(folder, "tmp"))
    longest: dict[int, int] = {}  # system calls of each call
    met = wrong = 0
    try:
        for _ in range(count):
            if not go_on():
                break
            call = chance.randrange(len(program.calls))
            if call not in longest:
                recording.empty(folder)
                longest[call] = max(1, run(program, folder, Fault("EIO", call, 1 << 40),
                                           checker).counted)
            kind = chance.choice(kinds)
            # The engine waits for memory to come back, however long that takes.
            until = "once" if kind == "ENOMEM" else chance.choice(["once", "end"])
            fault = Fault(kind, call, chance.randint(1, longest[call]), until)
            recording.empty(folder)
            outcome = run(program, folder, fault, checker)
            met += outcome.reached
            wrong += bool(outcome.problems)
            for problem in outcome.problems:
                report(f"{fault}: {program.calls[call].name}", problem)
    finally:
        checker.close()
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
    return met, wrong
