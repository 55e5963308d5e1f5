# SPDX-License-Identifier: Apache-2.0
"""Programs of facade calls: a list of written ones, and any number from seeds."""

from __future__ import annotations

import random
from collections.abc import Callable

import calls as c
from calls import Call, Program
from places import (CheckpointerRoot, Copy, Equinox, Flat, FlaxRoot, ManagerRoot, NativeStore,
                    Pushed, Single)


def _manager() -> Program:
    run = ManagerRoot("run", keep=2)
    return Program("manager", [run], [
        c.manager_save(run, 1, 11), c.manager_save(run, 2, 12), c.manager_save(run, 3, 13),
        c.manager_delete(run, 2), c.reopen(run), c.manager_save(run, 4, 14)])


def _two_managers() -> Program:
    one, two = ManagerRoot("run", prefix="a", alone=False), ManagerRoot("run/", prefix="b",
                                                                        keep=1, alone=False)
    return Program("two managers", [one, two], [
        c.manager_save(one, 1, 11), c.manager_save(two, 1, 21), c.manager_save(one, 2, 12),
        c.manager_save(two, 2, 22), c.manager_delete(one, 1)])


def _same_manager_twice() -> Program:
    run = ManagerRoot("run", keep=2)
    return Program("one root, two managers", [run], [
        c.manager_save(run, 1, 11, "A"), c.manager_save(run, 2, 12, "B"),
        c.manager_save(run, 3, 13, "A"), c.manager_delete(run, 2, "B")])


def _manager_over_orbax() -> Program:
    run = ManagerRoot("run", keep=2, foreign=(1, 2))
    return Program("manager over Orbax's steps", [run], [
        c.manager_save(run, 3, 13), c.manager_delete(run, 2), c.manager_save(run, 4, 14)],
        [c.orbax_manager_saves(run, 1, 2)])


def _checkpointer() -> Program:
    run = CheckpointerRoot("run")
    return Program("checkpointer", [run], [
        c.checkpointer_save(run, 1, 11), c.checkpointer_save(run, 2, 20, items=("a", "b")),
        c.checkpointer_save(run, 1, 15, overwrite=True), c.checkpointer_delete(run, 2, "b"),
        c.checkpointer_delete(run, 1)])


def _checkpointer_over_orbax() -> Program:
    run = ManagerRoot("run")
    root = CheckpointerRoot("run", foreign=(1, 2))
    return Program("checkpointer over Orbax's steps", [root], [
        c.checkpointer_save(root, 1, 15, overwrite=True), c.checkpointer_delete(root, 2),
        c.checkpointer_save(root, 3, 13)], [c.orbax_manager_saves(run, 1, 2)])


def _steps_by_path() -> Program:
    run = CheckpointerRoot("run", foreign=(1, 3))  # a new path is a checkpoint of its own
    return Program("steps of a root by their paths", [run], [
        c.checkpointer_save(run, 1, 11), c.checkpointer_save(run, 2, 12),
        c.save_in_root(run, 1, 15), c.delete_in_root(run, 2), c.reopen(run),
        c.save_in_root(run, 3, 17)])


def _single() -> Program:
    path = Single("single")
    return Program("single", [path], [
        c.save(path, 1, overwrite=False), c.save(path, 2), c.save(path, 30, "a", "b"),
        c.delete(path, "b"), c.delete(path), c.save(path, 5)])


def _partial() -> Program:
    path = Single("single")
    return Program("partial", [path], c.partial(path, 3))


def _flat() -> Program:
    one, two = Flat("one"), Flat("deep/two")
    return Program("v0 checkpointers", [one, two], [
        c.flat_save(one, 1), c.flat_save(one, 2), c.pytree_save(two, 3), c.pytree_save(two, 4)])


def _flax() -> Program:
    one = FlaxRoot("run", keep=2, alone=False)
    two = FlaxRoot("run/", prefix="other_", keep=1, alone=False)
    return Program("flax", [one, two], [
        c.flax_save(one, 1, 11), c.flax_save(one, 2, 12), c.flax_save(two, 1, 21),
        c.flax_save(one, 3, 13), c.flax_save(one, 2, 15, overwrite=True), c.flax_save(two, 5, 25)])


def _flax_and_manager() -> Program:
    flax = FlaxRoot("run", keep=2, alone=False)
    manager = ManagerRoot("run/", keep=1, alone=False)
    return Program("flax and a manager in one directory", [flax, manager], [
        c.flax_save(flax, 10, 10), c.flax_save(flax, 20, 20), c.manager_save(manager, 30, 30),
        c.reopen(manager), c.flax_save(flax, 40, 40)])


def _equinox() -> Program:
    path = Equinox("model")
    return Program("equinox", [path], [c.equinox_save(path, 1), c.equinox_save(path, 2)])


def _branches() -> Program:
    store = NativeStore("store")
    return Program("branches", [store], [
        c.store_open(store, {"run": 1}), c.store_save(store, 1, 11), c.store_save(store, 2, 12),
        c.store_branch(store, "one", 1), c.store_branch(store, "two", 2), c.store_delete(store, 1),
        c.branch_save(store, "one", 5, 15), c.store_open(store, {"run": 2})])


def _draft() -> Program:
    store = NativeStore("store")
    return Program("draft", [store], [c.store_save(store, 1, 11), *c.store_draft(store, 2, 12)])


def _push() -> Program:
    place, store = Pushed("pushed/1"), NativeStore("store")
    return Program("push", [place, store], [
        c.push(place, 1, 11), c.push(place, 2, 12, replace=True), c.pull(store, place, 7)])


def _copies() -> Program:
    run, copy, link = CheckpointerRoot("run"), Copy("copy/33"), Copy("links/33")
    return Program("copies", [run, copy, link], [
        c.checkpointer_save(run, 3, 13), c.copy_step(run, 3, copy),
        c.copy_step(run, 3, link, "-al"),
        c.checkpointer_save(run, 3, 15, overwrite=True), c.checkpointer_delete(run, 3)])


def _moved() -> Program:
    run, moved = ManagerRoot("run"), ManagerRoot("moved")
    return Program("moved", [run, moved], [
        c.manager_save(run, 1, 11), c.reopen(run), c.move(run, moved), c.manager_save(moved, 2, 12),
        c.manager_save(run, 3, 13)])


WRITTEN: dict[str, Callable[[], Program]] = {
    make().name: make for make in (
        _manager, _two_managers, _same_manager_twice, _manager_over_orbax, _checkpointer,
        _checkpointer_over_orbax, _steps_by_path, _single, _partial, _flat, _flax,
        _flax_and_manager, _equinox, _branches, _draft, _push, _copies, _moved)}


# ---- from seeds ---------------------------------------------------------------------------------


def generated(seed: int) -> Program:
    """Two or three places, and calls on them in any order."""
    chance = random.Random(seed)
    numbers = iter(range(seed % 7 * 100 + 1, 10**6))
    kinds = chance.sample([_any_manager, _any_checkpointer, _any_single, _any_flat, _any_flax,
                           _any_equinox, _any_store, _any_push], chance.choice([1, 2, 2, 3]))
    places, makers = [], []
    for kind in kinds:
        place, make = kind(chance)
        places.append(place)
        makers.append(make)
    program = Program(f"seed {seed}", places, [])
    model = program.models()[0][0]
    made: list[Call] = []
    while len(made) < chance.randint(6, 9):
        for call in makers[chance.randrange(len(makers))](model, next(numbers)):
            made.append(call)
            model = call.after(model)
    return Program(program.name, places, made)


Maker = Callable[[c.Model, int], list[Call]]


def _any_manager(chance: random.Random) -> tuple[ManagerRoot, Maker]:
    place = ManagerRoot("managed", keep=chance.choice([None, 1, 2]),
                        prefix=chance.choice([None, None, "c"]))

    def make(model: c.Model, number: int) -> list[Call]:
        steps = model[place.name]
        if steps and chance.random() < 0.25:
            return [c.manager_delete(place, chance.choice(list(steps)))]
        if chance.random() < 0.2:
            return [c.reopen(place)]
        return [c.manager_save(place, max(steps, default=0) + chance.randint(1, 9), number,
                               chance.choice(["", "", "B"]))]

    return place, make


def _any_checkpointer(chance: random.Random) -> tuple[CheckpointerRoot, Maker]:
    place = CheckpointerRoot("checkpointed")

    def make(model: c.Model, number: int) -> list[Call]:
        steps = model[place.name]
        items = chance.choice([(), (), ("a", "b")])
        several = [step for step, value in steps.items() if isinstance(value, dict)
                   and len(value) > 1]
        action = chance.choice(["save", "save", "overwrite", "delete", "item", "by path"])
        if action == "overwrite" and steps:
            return [c.checkpointer_save(place, chance.choice(list(steps)), number, overwrite=True,
                                        items=items)]
        if action == "delete" and steps:
            return [c.checkpointer_delete(place, chance.choice(list(steps)))]
        if action == "item" and several:
            return [c.checkpointer_delete(place, chance.choice(several), "b")]
        if action == "by path" and steps:
            return [c.reopen(place), chance.choice([c.delete_in_root(place, max(steps)),
                                                    c.save_in_root(place, max(steps), number)])]
        return [c.checkpointer_save(place, max(steps, default=0) + 1, number, items=items)]

    return place, make


def _any_single(chance: random.Random) -> tuple[Single, Maker]:
    place = Single("some/single")

    def make(model: c.Model, number: int) -> list[Call]:
        value = model[place.name]
        if isinstance(value, dict) and len(value) > 1 and chance.random() < 0.5:
            return [c.delete(place, min(value))]
        if value is not None and chance.random() < 0.2:
            return [c.delete(place)]
        if value is None and chance.random() < 0.2:
            return c.partial(place, number)
        return [c.save(place, number, *chance.choice([(), ("a", "b"), ("a", "b", "c")]))]

    return place, make


def _any_flat(chance: random.Random) -> tuple[Flat, Maker]:
    place = Flat("flat")
    return place, lambda model, number: [chance.choice([c.flat_save, c.pytree_save])(place, number)]


def _any_flax(chance: random.Random) -> tuple[FlaxRoot, Maker]:
    place = FlaxRoot("flax", keep=chance.randint(1, 3),
                     prefix=chance.choice(["checkpoint_", "model_"]))

    def make(model: c.Model, number: int) -> list[Call]:
        steps = model[place.name]
        if steps and chance.random() < 0.3:
            return [c.flax_save(place, chance.choice(list(steps)), number, overwrite=True)]
        return [c.flax_save(place, max(steps, default=0) + chance.randint(1, 5), number)]

    return place, make


def _any_equinox(chance: random.Random) -> tuple[Equinox, Maker]:
    place = Equinox("equinox")
    return place, lambda model, number: [c.equinox_save(place, number)]


def _any_store(chance: random.Random) -> tuple[NativeStore, Maker]:
    place = NativeStore("store")

    def make(model: c.Model, number: int) -> list[Call]:
        value = model[place.name]
        if value is None or chance.random() < 0.1:
            return [c.store_open(place, chance.choice([None, {"number": number}]))]
        steps, branches = value["steps"], value["branches"]
        action = chance.choice(["save", "save", "replace", "delete", "branch", "branch",
                                "in branch", "draft"])
        if action == "replace" and steps:
            return [c.store_save(place, chance.choice(list(steps)), number, replace=True)]
        if action == "delete" and steps:
            return [c.store_delete(place, chance.choice(list(steps)))]
        if action == "branch" and steps:
            return [c.store_branch(place, f"b{number}", chance.choice(list(steps)))]
        if action == "in branch" and branches:
            return [c.branch_save(place, chance.choice(list(branches)), 1000 + number, number)]
        step = max(steps, default=0) + chance.randint(1, 4)
        return c.store_draft(place, step, number) if action == "draft" else [
            c.store_save(place, step, number)]

    return place, make


def _any_push(chance: random.Random) -> tuple[Pushed, Maker]:
    place = Pushed("pushed")
    return place, lambda model, number: [
        c.push(place, number, number, replace=model[place.name] is not None)]


def program_of(name: str) -> Program:
    """By the name in a report."""
    return WRITTEN[name]() if name in WRITTEN else generated(int(name.removeprefix("seed ")))
