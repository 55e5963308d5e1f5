# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at the n-th line that a call runs of the code between the facades and the engine. What is
there afterwards is what was there before or after the call, nothing is left, and the process goes
on and ends."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

import checking
import programs
import recording
import stepwell
from calls import Call, Program, World
from lines import interrupt_at

PARTS = ("_runtime/durable.py", "_runtime/files.py", "_branch.py", "_draft.py",
         "_root_metadata.py", "_remote/push.py", "_remote/transfer.py", "compat/_claim.py",
         "compat/_resolve.py", "compat/_root.py", "compat/_single.py", "compat/_work.py")
_PACKAGE = os.path.dirname(stepwell.__file__)
_FILES = {os.path.join(_PACKAGE, part) for part in PARTS}


def _once(program: Program, number: int, line: int, base: str) -> tuple[int, list[str]]:
    """Interrupts call `number`; how many lines it ran, and what is wrong."""
    os.mkdir(base)
    world = World(base)
    models = program.models()
    call: Call = program.calls[number]
    for each in [*program.setup, *program.calls[:number]]:
        each.run(world)
    interrupted, lines = interrupt_at(line, _FILES, lambda: call.run(world))
    where = f"{call.name}, interrupted at line {line}"
    acceptable = models[2 * number + (1 if interrupted else 2)]
    try:
        world.close()
    except Exception as error:
        return lines, [f"{where}: then closing: {type(error).__name__}: {error}"]
    return lines, [f"{where}: {problem}" for problem in checking.check(
        base, program, acceptable, thorough=True)]


def work(program: Program, folder: str, seed: int, count: int | None,
         report: Callable[[str], None]) -> int:
    """`count` interrupts of each call of the program, or one at every line; how many there were. In
    this process, which uses JAX and keeps threads."""
    chance = random.Random(seed)
    done = 0
    for number in range(len(program.calls)):
        lines, problems = _once(program, number, 0, os.path.join(folder, f"{number}"))
        for each in problems:
            report(each)
        wanted = list(range(1, lines + 1))
        for line in wanted if count is None else sorted(chance.sample(wanted,
                                                                      min(count, lines))):
            base = os.path.join(folder, f"{number}-{line}")
            _, problems = _once(program, number, line, base)
            done += 1
            for each in problems:
                report(each)
            recording.empty(base)
    threading._shutdown()  # type: ignore[attr-defined]  # as at the interpreter's end: it may hang
    return done


# Those whose calls go through that code, in few calls.
PROGRAMS = ("single", "v0 checkpointers", "branches", "draft", "checkpointer", "push", "equinox",
            "flax")


def run(name: str, folder: str, seed: int, count: int | None, timeout: float
        ) -> tuple[int, list[str]]:
    """In a child of this process: how many interrupts, and what is wrong."""
    said = os.path.join(folder, "said")
    for each in ("tmp", "disks"):
        os.mkdir(os.path.join(folder, each))

    def child() -> None:
        with open(said, "a", buffering=1, encoding="utf-8") as file:
            done = work(programs.program_of(name), os.path.join(folder, "disks"), seed, count,
                        lambda text: recording.void(file.write(f"wrong {text!r}\n")))
            file.write(f"done {done}\n")

    status = checking.waited(checking.fork(child, os.path.join(folder, "tmp"),
                                           os.path.join(folder, "output")), timeout)
    lines = open(said, encoding="utf-8").read().splitlines() if os.path.exists(said) else []
    problems = [line.removeprefix("wrong ") for line in lines if line.startswith("wrong")]
    if status != 0:
        output = open(os.path.join(folder, "output"), encoding="utf-8").read()
        problems.append(f"{name}: {'it hangs' if status is None else f'status {status}'}: "
                        f"{output[-3000:]}")
    return sum(int(line.split()[1]) for line in lines if line.startswith("done")), problems
