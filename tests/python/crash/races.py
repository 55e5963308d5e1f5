# SPDX-License-Identifier: Apache-2.0
"""Calls that two threads, or two processes, make at a time. Afterwards everything is as if those
that succeeded had been made one behind the other, in some order; the others say why not."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import calls as c
import checking
from calls import Call, Model, Program, World
from places import CheckpointerRoot, FlaxRoot, ManagerRoot, NativeStore, Place, Pushed, Single

# Who comes second may be told so.
REFUSED = ("LockedError", "StepExistsError", "StepAlreadyExistsError", "StepNotFoundError",
           "InvalidCheckpointError", "ValueError", "FileNotFoundError", "StepPinnedError")


@dataclass(frozen=True)
class Race:
    """first: made before. shared: threads use the same open objects; else each has its own.
    processes: two of them, each with objects of its own."""

    name: str
    places: Sequence[Place]
    first: Sequence[Call]
    sides: tuple[Sequence[Call], Sequence[Call]]
    shared: bool = False
    processes: bool = False


def _merges(one: Sequence[Call], two: Sequence[Call]) -> Iterator[list[Call]]:
    for where in itertools.combinations(range(len(one) + len(two)), len(one)):
        left, right = iter(one), iter(two)
        yield [next(left) if i in where else next(right) for i in range(len(one) + len(two))]


def acceptable(race: Race, succeeded: tuple[list[Call], list[Call]]) -> list[Model]:
    before = Program("", race.places, [], race.first).models()[0][0]
    found: list[Model] = []
    for order in _merges(*succeeded):
        model = before
        try:
            for call in order:
                model = call.after(model)
        except (KeyError, TypeError, AttributeError):
            continue
        if model not in found:
            found.append(model)
    return found


def _side(world: World, side: Sequence[Call], go: Callable[[], object],
          say: Callable[[str], object]) -> None:
    go()
    for i, call in enumerate(side):
        try:
            # A manager skips a step below the newest one, and says so.
            say(f"skipped {i}" if call.run(world) is False else f"done {i}")
        except Exception as error:
            say(f"failed {i} {type(error).__name__}: {error}".replace("\n", " "))


def run(race: Race, folder: str) -> list[str]:
    """In this process, which uses JAX; what is wrong."""
    base = os.path.join(folder, "disk")
    os.mkdir(base)
    world = World(base)
    for call in race.first:
        call.run(world)
    worlds = [world, world if race.shared else World(base)]
    said: list[list[str]] = [[], []]
    if race.processes:
        world.close()
        ready, go = os.pipe(), os.pipe()  # each closes the first when it is ready
        children = []
        for i, side in enumerate(race.sides):
            def child(i: int = i, side: Sequence[Call] = side) -> None:
                lines: list[str] = []
                there = World(base)
                os.close(go[1])

                def wait() -> None:
                    os.close(ready[1])
                    os.read(go[0], 1)

                _side(there, side, wait, lines.append)
                there.close()
                with open(os.path.join(folder, f"said{i}"), "w", encoding="utf-8") as file:
                    file.write("\n".join(lines))

            children.append(checking.fork(child, folder, os.path.join(folder, "output")))
        os.close(ready[1]), os.close(go[0])
        os.read(ready[0], 1)
        os.close(go[1]), os.close(ready[0])
        statuses = [checking.waited(child, 60) for child in children]
        if statuses != [0, 0]:
            output = open(os.path.join(folder, "output"), encoding="utf-8").read()
            return [f"{race.name}: ended with {statuses}: {output[-3000:]}"]
        for i in range(2):
            with open(os.path.join(folder, f"said{i}"), encoding="utf-8") as file:
                said[i] = file.read().splitlines()
    else:
        barrier = threading.Barrier(2)
        threads = [threading.Thread(target=_side, daemon=True, args=(
            worlds[i], side, barrier.wait, said[i].append)) for i, side in enumerate(race.sides)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                return [f"{race.name}: it hangs: {said}"]
        for each in {id(each): each for each in worlds}.values():
            each.close()
    problems = [f"{race.name}: {line}" for side in said for line in side
                if line.startswith("failed") and line.split()[2].rstrip(":") not in REFUSED]
    succeeded = ([], [])  # type: tuple[list[Call], list[Call]]
    for i in range(2):
        succeeded[i].extend(race.sides[i][int(line.split()[1])] for line in said[i]
                            if line.startswith("done"))
    if not race.processes and not any(succeeded):
        problems.append(f"{race.name}: nobody succeeded: {said}")
    program = Program(race.name, race.places, [], race.first)
    if not race.processes:
        return problems + [f"{race.name}: {said}: {each}" for each in checking.check(
            base, program, acceptable(race, succeeded), thorough=True)]
    checker = checking.Checker(program, os.path.join(folder, "tmp"))
    try:
        return problems + [f"{race.name}: {said}: {each}" for each in checker.check(
            base, acceptable(race, succeeded))]
    finally:
        checker.close()


def _races() -> Iterator[Race]:
    store, single, root = NativeStore("store"), Single("single"), CheckpointerRoot("run")
    managed, pushed = ManagerRoot("run", keep=2), Pushed("pushed")
    saves = [c.store_save(store, 1, 11), c.store_save(store, 2, 12)]
    yield Race("one branch by two threads", [store], saves, (
        [c.store_branch(store, "b", 1)], [c.store_branch(store, "b", 2)]), shared=True)
    yield Race("two branches by two threads", [store], saves, (
        [c.store_branch(store, "a", 1)], [c.store_branch(store, "b", 2)]), shared=True)
    for processes in (False, True):
        how = "processes" if processes else "threads"
        yield Race(f"one checkpoint by two {how}", [single], [c.save(single, 1)], (
            [c.save(single, 2), c.save(single, 3)], [c.save(single, 4), c.save(single, 5)]),
            processes=processes)
        yield Race(f"saved and deleted by two {how}", [single], [c.save(single, 1)], (
            [c.save(single, 2)], [c.delete(single)]), processes=processes)
        yield Race(f"two managers of one root by two {how}", [managed],
                   [c.manager_save(managed, 1, 11)], (
            [c.manager_save(managed, 2, 12, "A"), c.manager_save(managed, 4, 14, "A")],
            [c.manager_save(managed, 3, 13, "B")]), processes=processes)
        one = FlaxRoot("flax", prefix="a_", keep=2, alone=False)
        two = FlaxRoot("flax/", prefix="b_", keep=1, alone=False)
        yield Race(f"two prefixes by two {how}", [one, two], [], (
            [c.flax_save(one, 1, 11), c.flax_save(one, 2, 12)],
            [c.flax_save(two, 1, 21), c.flax_save(two, 2, 22)]), processes=processes)
    yield Race("one Checkpointer, two threads", [root], [
        c.checkpointer_save(root, 1, 11), c.checkpointer_save(root, 2, 12)], (
        [c.checkpointer_delete(root, 1), c.checkpointer_save(root, 3, 13)],
        [c.checkpointer_delete(root, 2), c.checkpointer_save(root, 4, 14, overwrite=True)]),
        shared=True)
    flax, manager = FlaxRoot("both", keep=2, alone=False), ManagerRoot("both/", alone=False)
    yield Race("flax and a manager, two threads", [flax, manager], [], (
        [c.flax_save(flax, 1, 11), c.flax_save(flax, 2, 12)],
        [c.manager_save(manager, 5, 15), c.manager_save(manager, 6, 16)]))
    yield Race("one place pushed to twice", [pushed], [c.push(pushed, 1, 11)], (
        [c.push(pushed, 2, 12, replace=True)], [c.push(pushed, 3, 13, replace=True)]), shared=True)


RACES = {race.name: race for race in _races()}


def run_in_child(name: str, folder: str) -> list[str]:
    """Returns what is wrong."""
    race = RACES[name]
    os.mkdir(os.path.join(folder, "tmp"))
    if race.processes:  # whose children this process forks: it must not use JAX
        race = Race(race.name, race.places, (), race.sides, processes=True)
        return run(race, folder)
    said = os.path.join(folder, "said")

    def child() -> None:
        with open(said, "w", encoding="utf-8") as file:
            file.write("\0".join(run(race, folder)))

    status = checking.waited(checking.fork(child, os.path.join(folder, "tmp"),
                                           os.path.join(folder, "output")), 120)
    if status != 0:
        output = open(os.path.join(folder, "output"), encoding="utf-8").read()
        return [f"{name}: {'it hangs' if status is None else f'status {status}'}: "
                f"{output[-3000:]}"]
    with open(said, encoding="utf-8") as file:
        text = file.read()
    return text.split("\0") if text else []
