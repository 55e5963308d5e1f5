# SPDX-License-Identifier: Apache-2.0
"""Calls of the facades, each with what it does to the model: {place: value}."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orbax.checkpoint as orbax

import stepwell
from places import (CheckpointerRoot, Copy, Equinox, Flat, FlaxRoot, ManagerRoot, Maybe,
                    NativeStore, Place, Pushed, Single, Value, state)
from stepwell.compat import equinox as equinox_io
from stepwell.compat import flax as flax_io
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as v1

Model = dict[str, Value]


class World:
    """The objects that a program has open, in the process that runs it."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.open: dict[tuple[str, str], Any] = {}
        self.added: set[tuple[str, str]] = set()  # what, in parts: of _in_parts

    def at(self, place: Place) -> str:
        return place.at(self.base)

    def opened(self, place: Place, who: str, opens: Callable[[], Any]) -> Any:
        key = (place.name, who)
        if key not in self.open:
            self.open[key] = opens()
        return self.open[key]

    def manager(self, place: ManagerRoot, who: str = "") -> Any:
        return self.opened(place, who, lambda: v0.CheckpointManager(
            self.at(place), options=place.options(v0)))

    def checkpointer(self, place: CheckpointerRoot, who: str = "") -> Any:
        return self.opened(place, who, lambda: v1.training.Checkpointer(self.at(place)))

    def store(self, place: NativeStore | Pushed | str) -> Any:
        name = place if isinstance(place, str) else place.name
        key = (name, "")
        if key not in self.open:
            self.open[key] = stepwell.open(os.path.join(self.base, name))
        return self.open[key]

    def close(self) -> None:
        while self.open:
            self.open.popitem()[1].close()


@dataclass(frozen=True)
class Call:
    """`change` makes of the model before the call the one after it, or KeyError where the call must
    fail. `halfway`: what else may be there if the call does not come to its end; a call of one
    change has nothing."""

    name: str
    run: Callable[[World], Any]
    change: Callable[[Model], Any]
    halfway: tuple[Callable[[Model], Any], ...] = ()

    def after(self, model: Model) -> Model:
        changed = copy.deepcopy(model)
        self.change(changed)
        return changed

    def under_way(self, model: Model) -> list[Model]:
        """Returns the states that a crash within the call may leave, from before to after."""
        return [model, *self.begun(model), self.after(model)]

    def begun(self, model: Model) -> list[Model]:
        """Returns what else may be there before its end."""
        models = []
        for change in self.halfway:
            changed = copy.deepcopy(model)
            with contextlib.suppress(KeyError, TypeError):  # it cannot be made
                change(changed)
                models.append(changed)
        return models


@dataclass(frozen=True)
class Program:
    """setup: done and synced before the calls, which a crash may interrupt."""

    name: str
    places: Sequence[Place]
    calls: Sequence[Call]
    setup: Sequence[Call] = field(default=())

    def models(self) -> list[list[Model]]:
        """Returns the legal states: [0] before the first call, [2 i + 1] during call i, [2 i + 2]
        after it."""
        model: Model = {place.name: place.read("/nowhere") for place in self.places}
        for call in self.setup:
            model = call.after(model)
        models = [[model]]
        for call in self.calls:
            models.append(call.under_way(model))
            model = call.after(model)
            models.append([model])
        return models


def _set(place: Place, key: Any, value: Value) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model[place.name] = {**model[place.name], key: value}

    return change


def _newest(steps: dict[int, Value], keep: int | None) -> dict[int, Value]:
    return dict(sorted(steps.items())[-(keep or 0):])


# ---- v0 -----------------------------------------------------------------------------------------


def manager_save(place: ManagerRoot, step: int, number: int, who: str = "") -> Call:
    def run(world: World) -> bool:
        manager = world.manager(place, who)
        saved = bool(manager.save(step, args=v0.args.StandardSave(state(number))))
        manager.wait_until_finished()
        return saved

    def change(model: Model) -> None:
        model[place.name] = _newest({**model[place.name], step: number}, place.keep)

    def still_foreign(model: Model) -> None:
        """Orbax's steps go one after the other, behind the commit."""
        kept = _newest({**model[place.name], step: number}, place.keep)
        left = sorted(step for step in place.foreign & model[place.name].keys()
                      if step not in kept)
        model[place.name] = {**{step: model[place.name][step] for step in left}, **kept}

    return Call(f"{place.name}: manager{who}.save({step})", run, change,
                (still_foreign,) if place.foreign else ())


def manager_delete(place: ManagerRoot, step: int, who: str = "") -> Call:
    def change(model: Model) -> None:
        model[place.name] = dict(model[place.name])
        del model[place.name][step]

    return Call(f"{place.name}: manager{who}.delete({step})",
                lambda world: world.manager(place, who).delete(step), change)


def reopen(place: Place) -> Call:
    def run(world: World) -> None:
        for key in [key for key in world.open if key[0] == place.name]:
            world.open.pop(key).close()

    return Call(f"{place.name}: closed", run, lambda model: None)


def flat_save(place: Flat, number: int) -> Call:
    def run(world: World) -> None:
        with v0.StandardCheckpointer() as checkpointer:
            checkpointer.save(world.at(place), state(number), force=True)

    return Call(f"{place.name}: StandardCheckpointer.save(force)", run,
                lambda model: model.update({place.name: number}))


def pytree_save(place: Flat, number: int) -> Call:
    return Call(f"{place.name}: PyTreeCheckpointer.save(force)",
                lambda world: v0.PyTreeCheckpointer().save(world.at(place), state(number),
                                                           force=True),
                lambda model: model.update({place.name: number}))


def orbax_manager_saves(place: ManagerRoot, *steps: int) -> Call:
    """Steps that Orbax itself wrote."""

    def run(world: World) -> None:
        with orbax.CheckpointManager(world.at(place), options=place.options(orbax)) as manager:
            for step in steps:
                manager.save(step, args=orbax.args.StandardSave(state(step)))

    return Call(f"{place.name}: Orbax saves {steps}", run, lambda model: model.update(
        {place.name: {**model[place.name], **{step: step for step in steps}}}))


# ---- v1 -----------------------------------------------------------------------------------------


def checkpointer_save(place: CheckpointerRoot, step: int, number: int, *, overwrite: bool = False,
                      items: Sequence[str] = ()) -> Call:
    def run(world: World) -> bool:
        checkpointer = world.checkpointer(place)
        if items:
            return bool(checkpointer.save_checkpointables(
                step, {item: state(number + i) for i, item in enumerate(items)},
                overwrite=overwrite, force=overwrite))  # which saves old steps, too
        return bool(checkpointer.save(step, state(number), overwrite=overwrite, force=overwrite))

    value = {item: number + i for i, item in enumerate(items)} if items else number
    return Call(f"{place.name}: Checkpointer.save({step}, {list(items)}, {overwrite})", run,
                _set(place, step, value))


def checkpointer_delete(place: CheckpointerRoot, step: int, item: str | None = None) -> Call:
    def change(model: Model) -> None:
        model[place.name] = copy.deepcopy(model[place.name])
        if item is None:
            del model[place.name][step]
        else:
            del model[place.name][step][item]

    def run(world: World) -> None:
        if item is None:
            world.checkpointer(place).delete(step)
        else:
            world.checkpointer(place).delete(step, checkpointable_name=item)

    return Call(f"{place.name}: Checkpointer.delete({step}, {item})", run, change)


def save_in_root(place: CheckpointerRoot, step: int, number: int) -> Call:
    """The step of a root by its path, beside the root's own Checkpointer."""
    return Call(f"ocp.save({place.name}/{step}, overwrite)",
                lambda world: v1.save(os.path.join(world.at(place), str(step)), state(number),
                                      overwrite=True), _set(place, step, number))


def delete_in_root(place: CheckpointerRoot, step: int) -> Call:
    def change(model: Model) -> None:
        model[place.name] = dict(model[place.name])
        del model[place.name][step]

    return Call(f"ocp.delete({place.name}/{step})",
                lambda world: v1.delete(os.path.join(world.at(place), str(step))), change)


def save(place: Single, number: int, *items: str, overwrite: bool = True) -> Call:
    def run(world: World) -> None:
        if items:
            v1.save_checkpointables(world.at(place), {
                item: state(number + i) for i, item in enumerate(items)}, overwrite=overwrite)
        else:
            v1.save(world.at(place), state(number), overwrite=overwrite)

    value = {item: number + i for i, item in enumerate(items)} if items else number
    return Call(f"ocp.save({place.name}, {items}, overwrite={overwrite})", run,
                lambda model: model.update({place.name: value}))


def delete(place: Single, item: str | None = None) -> Call:
    def change(model: Model) -> None:
        if model[place.name] is None:
            raise KeyError(place.name)
        if item is None:
            model[place.name] = None
        else:
            model[place.name] = dict(model[place.name])
            del model[place.name][item]

    return Call(f"ocp.delete({place.name}, {item})",
                lambda world: v1.delete(world.at(place), checkpointable_name=item), change)


def partial(place: Single, number: int) -> list[Call]:
    """Saved in three parts, then finalized."""
    whole = state(number)

    def add(world: World, name: str) -> None:
        v1.partial.save(world.at(place), {name: whole[name]})

    def finalize(world: World) -> None:
        v1.partial.finalize(world.at(place))

    return _in_parts(f"ocp.partial {place.name}", whole, add, finalize,
                     lambda model: model.update({place.name: number}))


def _in_parts(what: str, names: Iterable[str], add: Callable[[World, str], None],
              finalize: Callable[[World], None], change: Callable[[Model], Any]) -> list[Call]:
    """A call for each name, and one for their end, which adds what failed before once more."""
    def added(world: World, name: str) -> None:
        add(world, name)
        world.added.add((what, name))

    def ended(world: World) -> None:
        for name in names:
            if (what, name) not in world.added:
                try:
                    added(world, name)
                except Exception as error:  # it failed, and is there nevertheless
                    if not any(said in str(error) for said in ("already", "previous partial save")):
                        raise
        finalize(world)

    return [*(Call(f"{what}.add({name})", functools.partial(added, name=name), lambda model: None)
              for name in names), Call(f"{what}.finalize", ended, change)]


# ---- others -------------------------------------------------------------------------------------


def flax_save(place: FlaxRoot, step: int, number: int, *, overwrite: bool = False) -> Call:
    def change(model: Model) -> None:
        steps = model[place.name]
        if overwrite:
            steps = {each: value for each, value in steps.items() if each < step}
        model[place.name] = _newest({**steps, step: number}, place.keep)

    return Call(f"{place.name}: flax.save_checkpoint({step}, {overwrite})",
                lambda world: flax_io.save_checkpoint(
                    world.at(place), state(number), step, prefix=place.prefix, keep=place.keep,
                    overwrite=overwrite), change)


def equinox_save(place: Equinox, number: int) -> Call:
    return Call(f"tree_serialise_leaves({place.name})",
                lambda world: equinox_io.tree_serialise_leaves(world.at(place), state(number)),
                lambda model: model.update({place.name: number}))


# ---- stores -------------------------------------------------------------------------------------


def _empty() -> Value:
    return {"steps": {}, "metadata": None, "branches": {}}


def _store_change(place: NativeStore, change: Callable[[Value], Any]) -> Callable[[Model], None]:
    def changed(model: Model) -> None:
        value = copy.deepcopy(model[place.name]) or _empty()
        change(value)
        model[place.name] = value

    return changed


def store_open(place: NativeStore, metadata: Any = None) -> Call:
    """The store is there, then its metadata."""

    def run(world: World) -> None:
        opened = world.open.pop((place.name, ""), None)
        if opened is not None:
            opened.close()
        world.open[(place.name, "")] = stepwell.open(world.at(place), metadata=metadata)

    return Call(f"open({place.name}, metadata={metadata})", run,
                _store_change(place, lambda value: value.update(
                    {} if metadata is None else {"metadata": metadata})),
                (_store_change(place, lambda value: None),))


def store_save(place: NativeStore, step: int, number: int, *, replace: bool = False) -> Call:
    return Call(f"{place.name}: save({step}, replace={replace})",
                lambda world: world.store(place).save(
                    step, state(number), if_exists="replace" if replace else "error").result(),
                _store_change(place, lambda value: value["steps"].update({step: number})),
                (_store_change(place, lambda value: None),))


def store_delete(place: NativeStore, step: int) -> Call:
    return Call(f"{place.name}: delete({step})", lambda world: world.store(place).delete(step),
                _store_change(place, lambda value: value["steps"].pop(step)))


def store_branch(place: NativeStore, name: str, step: int) -> Call:
    def change(value: Value) -> None:
        if step not in value["steps"]:
            raise KeyError(step)
        value["branches"][name] = {each: number for each, number in value["steps"].items()
                                   if each <= step}

    return Call(f"{place.name}: branch({name!r}, {step})",
                lambda world: world.store(place).branch(name, step), _store_change(place, change))


def branch_save(place: NativeStore, name: str, step: int, number: int) -> Call:
    def run(world: World) -> None:
        with stepwell.open(world.at(place), branch=name) as branch:
            branch.save(step, state(number)).result()

    return Call(f"{place.name}: branch {name}: save({step})", run,
                _store_change(place, lambda value: value["branches"][name].update({step: number})))


def store_draft(place: NativeStore, step: int, number: int) -> list[Call]:
    whole = state(number)

    def draft(world: World) -> Any:
        return world.opened(place, f"draft{step}", lambda: world.store(place).draft(step))

    def add(world: World, name: str) -> None:
        draft(world).add({name: whole[name]}).result()

    def finalize(world: World) -> None:
        draft(world).finalize()
        del world.open[place.name, f"draft{step}"]

    return _in_parts(f"{place.name}: draft({step})", whole, add, finalize, _store_change(
        place, lambda value: value["steps"].update({step: number})))


def push(place: Pushed, step: int, number: int, *, replace: bool = False) -> Call:
    """Pushes from a store "pusher", which is no place: it is the engine's."""

    def run(world: World) -> None:
        store = world.store("pusher")
        store.save(step, state(number), if_exists="replace").result()
        store.push(step, world.at(place), if_exists="replace" if replace else "error")

    return Call(f"push({step}, {place.name}, replace={replace})", run,
                lambda model: model.update({place.name: number}))


def pull(place: NativeStore, source: Pushed, step: int) -> Call:
    def change(model: Model) -> None:
        value = copy.deepcopy(model[place.name]) or _empty()
        if model[source.name] is None:
            raise KeyError(source.name)
        value["steps"][step] = model[source.name]
        model[place.name] = value

    return Call(f"{place.name}: pull({source.name}, {step})",
                lambda world: world.store(place).pull(world.at(source), step), change,
                (_store_change(place, lambda value: None),))


# ---- what users do ------------------------------------------------------------------------------


def _sync_tree(path: str) -> None:
    for folder, _, names in os.walk(path, topdown=False):
        for name in [folder, *[os.path.join(folder, name) for name in names]]:
            if not os.path.islink(name):
                file = os.open(name, os.O_RDONLY)
                os.fsync(file)
                os.close(file)
    for parent in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        file = os.open(parent, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def copy_step(source: Place, step: int, place: Copy, how: str = "-r") -> Call:
    """`cp` of a step's directory, which the user syncs."""

    def run(world: World) -> None:
        os.makedirs(os.path.dirname(world.at(place)), exist_ok=True)
        subprocess.run(["cp", how, os.path.join(world.at(source), str(step)), world.at(place)],
                       check=True)
        _sync_tree(world.at(place))

    return Call(f"cp {how} {source.name}/{step} {place.name}", run,
                lambda model: model.update({place.name: model[source.name][step]}),
                (lambda model: model.update({place.name: Maybe(model[source.name][step])}),))


def move(place: Place, target: Place) -> Call:
    """`mv` of a whole directory, and a sync."""

    def run(world: World) -> None:
        os.rename(world.at(place), world.at(target))
        for path in {os.path.dirname(world.at(place)), os.path.dirname(world.at(target))}:
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)

    def change(model: Model) -> None:
        nothing: Value = None if isinstance(place, (Single, NativeStore)) else {}
        model[target.name], model[place.name] = model[place.name], nothing

    return Call(f"mv {place.name} {target.name}", run, change)


def same(wanted: Value, found: Value) -> bool:
    """Returns true if the found state is what a model says."""
    if isinstance(wanted, Maybe):
        return found is None or isinstance(found, str) or same(wanted.value, found)
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(same(wanted[key], found[key])
                                                     for key in wanted)
    return bool(np.all(wanted == found)) and type(wanted) is type(found)
