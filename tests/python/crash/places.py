# SPDX-License-Identifier: Apache-2.0
"""Places that programs of facade calls fill, and what each door says is there.

A value is what a model compares: None where there is nothing, a number for a checkpoint of one
item, {item: number} for one of several, {step: …} for a root. The number says all bytes of a state.
Each door must give the same value; other bytes, and a name that does not load, are Wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orbax.checkpoint as orbax
from orbax.checkpoint import v1 as orbax_v1

import stepwell
from stepwell.compat import equinox as equinox_io
from stepwell.compat import flax as flax_io
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as v1

Value = Any
SHOWN_S = 2.0  # how long a step may not be shown yet; it takes milliseconds
TEMPORARY = (".orbax-checkpoint-tmp", ".stepwell-tmp", ".removed")


class Wrong(Exception):
    """A door shows a state that was never saved, or two doors differ."""


@dataclass(frozen=True)
class Maybe:
    """A copy that the kernel may have half written: this value, nothing, or an error."""

    value: Value


def state(number: int) -> dict[str, Any]:
    """A pytree of which every byte says the number. Sizes differ, so that files do."""
    count = 30 + number % 7 * 130
    return {"w": np.arange(count, dtype=np.float32) + number,
            "b": {"c": np.full(3, number, np.int32)}, "n": np.int64(number)}


def number_of(tree: Any, what: str) -> int:
    try:
        found = [np.asarray(each) for each in (tree["w"], tree["b"]["c"], tree["n"])]
        wanted = state(number := int(found[1][0]))
        same = all(map(np.array_equal, found, (wanted["w"], wanted["b"]["c"], wanted["n"])))
    except Exception as error:  # any shape but that of a state
        raise Wrong(f"{what}: {tree!r:.300}: {error!r}") from error
    if not same:
        raise Wrong(f"{what}: bytes that nobody saved: {tree!r:.300}")
    return number


@contextlib.contextmanager
def door(name: str) -> Iterator[None]:
    """Whatever a door raises while it is asked for what it lists is wrong."""
    try:
        yield
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"{name}: {type(error).__name__}: {error}") from error


def agree(values: dict[str, Value], what: str) -> Value:
    first = next(iter(values.values()))
    if any(value != first for value in values.values()):
        raise Wrong(f"{what}: doors differ: {values}")
    return first


def without_default(items: dict[str, int]) -> Value:
    """A state of one unnamed item is its number."""
    return next(iter(items.values())) if list(items) in (["default"], ["state"],
                                                         ["checkpoint"]) else items


class Place:
    """A directory of a program."""

    def __init__(self, name: str) -> None:
        self.name = name

    def at(self, base: str) -> str:
        return os.path.join(base, self.name)

    def read(self, base: str) -> Value:
        """Reads the state by the doors that change nothing."""
        raise NotImplementedError

    def write(self, base: str) -> Value:
        """The same by those that open it for writing, and by Orbax afterwards."""
        return self.read(base)

    def use(self, base: str, value: Value) -> None:
        """Does what a user does next. Nothing that an earlier process left may remain."""

    def leftovers(self, base: str) -> list[str]:
        """After `write` and `use`: names that should be gone."""
        return []


def _no_temporaries(folder: str) -> list[str]:
    paths = [entry.path for entry in os.scandir(folder)] if os.path.isdir(folder) else []
    return [path for path in paths if any(each in os.path.basename(path) for each in TEMPORARY)]


# ---- stores -------------------------------------------------------------------------------------


def store_steps(store: stepwell.Store) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for step in store.steps():
        with door(f"{store.path}: native load of step {step}"):
            found[step] = without_default({
                item: number_of(store.load(step, (item,) if store[step].items != ["state"]
                                           else None), f"step {step}, item {item}")
                for item in store[step].items})
    return found


def stores_within(root: str) -> list[str]:
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    return [os.path.join(root, name) for name in names if name.startswith(".stepwell")
            and os.path.exists(os.path.join(root, name, "STEPWELL"))]


def native(root: str) -> dict[int, Value]:
    """The steps of all stores within a root, unread by any facade."""
    found: dict[int, Value] = {}
    for path in stores_within(root):
        with door(f"stepwell.open({path}, 'r')"), stepwell.open(path, "r") as store:
            found.update(store_steps(store))
            check_whole(store)
    return found


def check_whole(store: stepwell.Store) -> None:
    problems = store.verify().problems
    if problems:
        raise Wrong(f"{store.path}: verify: {problems[:3]}")


class NativeStore(Place):
    """A store of its own: its steps, branches, drafts and metadata."""

    def __init__(self, name: str, view: str | None = None) -> None:
        super().__init__(name)
        self.view = view

    def _value(self, base: str, mode: Any) -> Value:
        path = self.at(base)
        if mode == "r" and not os.path.exists(os.path.join(path, "STEPWELL")):
            return None
        with door(f"stepwell.open({path}, {mode!r})"), stepwell.open(path, mode) as store:
            value = {"steps": store_steps(store), "metadata": store.metadata, "branches": {}}
            names = store.branches()
            if mode == "a":
                check_whole(store)
            for name in names:
                with stepwell.open(path, mode, branch=name) as branch:
                    value["branches"][name] = store_steps(branch)
            return value

    def read(self, base: str) -> Value:
        return self._value(base, "r")

    def write(self, base: str) -> Value:
        made = self.read(base)
        if made is None:
            return None
        value = self._value(base, "a")
        return agree({"r": self.read(base), "a": value}, self.name)

    def use(self, base: str, value: Value) -> None:
        if value is None:
            return
        with door("the next save, branch and draft"), stepwell.open(self.at(base)) as store:
            store.save(10_000, state(10_000)).result()
            store.branch("next")
            with store.draft(10_001) as draft:
                draft.add(state(10_001))
            if store_steps(store) != {**value["steps"], 10_000: 10_000, 10_001: 10_001}:
                raise Wrong(f"after the next save: {store_steps(store)}")

    def leftovers(self, base: str) -> list[str]:
        path = self.at(base)
        found = [each for folder in (path, f"{path}/branches", f"{path}/drafts", base)
                 for each in _no_temporaries(folder)]
        drafts = os.listdir(f"{path}/drafts") if os.path.isdir(f"{path}/drafts") else []
        return found + [f"drafts/{name}" for name in drafts if name == "10001"]


# ---- roots --------------------------------------------------------------------------------------


class Root(Place):
    """A directory of steps. `alone`: no other place shares it. `foreign`: Orbax wrote them."""
    alone = True
    foreign: frozenset[int] = frozenset()

    def read(self, base: str) -> Value:
        path = self.at(base)
        if not os.path.isdir(path):
            return {}
        with door(f"{self.name}: read-only"):
            value = self.read_only(path)
        mine = native(path) if self.alone else {}
        others = self.others(path)
        for step, each in mine.items():
            if value.get(step) != each and step not in others:
                raise Wrong(f"{self.name}: step {step}: the store has {each}, the facade {value}")
        if self.alone and value.keys() - mine.keys() - others:
            raise Wrong(f"{self.name}: the facade has {value}, the store {mine}")
        return value

    def others(self, path: str) -> set[int]:
        """Steps that a store may lack: Orbax's, and those saved by path before there was one."""
        return {int(name) for name in os.listdir(path) if name.isdigit()
                and not os.path.exists(f"{path}/{name}/stepwell-view")}

    def write(self, base: str) -> Value:
        path = self.at(base)
        if not os.path.isdir(path):
            return {}
        with door(f"{self.name}: for writing"), self.opened(path) as facade:
            value = self.steps(facade)
            theirs = self.shown(path, value)
        with door(f"{self.name}: for writing, again"), self.opened(path) as facade:
            again = self.steps(facade)
        return agree({"facade": value, "orbax": theirs, "again": again}, self.name)

    def shown(self, path: str, wanted: dict[int, Value]) -> dict[int, Value]:
        """Returns what Orbax finds. Steps are shown soon after the root was opened, not at once."""
        end = time.monotonic() + SHOWN_S
        while True:
            try:
                with door(f"{self.name}: Orbax, beside the facade"):
                    found = self.theirs(path)
                if found == wanted or time.monotonic() > end:
                    return found
            except Wrong:
                if time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def read_only(self, path: str) -> dict[int, Value]:
        return native(path)

    def opened(self, path: str) -> Any:
        """The facade, for writing: a context manager."""
        raise NotImplementedError

    def steps(self, facade: Any) -> dict[int, Value]:
        raise NotImplementedError

    def theirs(self, path: str) -> dict[int, Value]:
        raise NotImplementedError

    def leftovers(self, base: str) -> list[str]:
        # An empty one may be Orbax's, which saves there now; the next save of its step takes it.
        paths = _no_temporaries(self.at(base))
        return [path for path in paths if not os.path.isdir(path) or os.listdir(path)]


class ManagerRoot(Root):
    """v0's CheckpointManager."""

    def __init__(self, name: str, *, keep: int | None = None, prefix: str | None = None,
                 alone: bool = True, foreign: Iterable[int] = ()) -> None:
        super().__init__(name)
        self.keep, self.prefix, self.alone = keep, prefix, alone
        self.foreign = frozenset(foreign)

    def options(self, ocp: Any, **more: Any) -> Any:
        return ocp.CheckpointManagerOptions(max_to_keep=self.keep, step_prefix=self.prefix, **more)

    def steps(self, facade: Any, ocp: Any = v0) -> dict[int, Value]:
        for _ in range(2):  # a reader may find what a process committed that died, a little later
            found = {step: number_of(facade.restore(step, args=ocp.args.StandardRestore()),
                                     f"{self.name}: step {step}") for step in facade.all_steps()}
            if facade.latest_step() == max(found, default=None):
                return found
        raise Wrong(f"{self.name}: latest_step {facade.latest_step()} of {sorted(found)}")

    def read_only(self, path: str) -> dict[int, Value]:
        with v0.CheckpointManager(path, options=self.options(v0, read_only=True)) as manager:
            return self.steps(manager)

    def opened(self, path: str) -> Any:
        return v0.CheckpointManager(path, options=self.options(v0))

    def theirs(self, path: str) -> dict[int, Value]:
        with orbax.CheckpointManager(path, options=self.options(orbax, read_only=True)) as manager:
            return self.steps(manager, orbax)

    def use(self, base: str, value: Value) -> None:
        if not os.path.isdir(self.at(base)):
            return
        with door("the next save"), v0.CheckpointManager(
                self.at(base), options=self.options(v0)) as manager:
            manager.save(10_000, args=v0.args.StandardSave(state(10_000)))
            manager.wait_until_finished()
            wanted = sorted([*value, 10_000])[-(self.keep or 0):]
            if sorted(manager.all_steps()) != wanted:
                raise Wrong(f"{self.name}: after the next save {manager.all_steps()}, not {wanted}")


class CheckpointerRoot(Root):
    """v1's training.Checkpointer."""

    def __init__(self, name: str, *, foreign: Iterable[int] = ()) -> None:
        super().__init__(name)
        self.foreign = frozenset(foreign)

    def steps(self, facade: Any) -> dict[int, Value]:
        found = {}
        for each in facade.checkpoints:
            items = facade.load_checkpointables(each.step)
            found[each.step] = without_default({
                item: number_of(tree, f"{self.name}: step {each.step}, {item}")
                for item, tree in items.items() if item != "metrics"})
        return found

    def opened(self, path: str) -> Any:
        return v1.training.Checkpointer(path)

    def read_only(self, path: str) -> dict[int, Value]:
        found = native(path)  # it has no way to open without writing
        for step in self.others(path):
            directory = os.path.join(path, str(step))
            # Another library's wins: in an image, as in each copy, inodes are not those of before.
            for item in ("default", "state"):  # of v0 and v1
                if os.path.exists(os.path.join(directory, item)):
                    found[step] = number_of(v1.load(directory, checkpointable_name=item), directory)
        return found

    def theirs(self, path: str) -> dict[int, Value]:
        with orbax_v1.training.Checkpointer(path) as checkpointer:
            return self.steps(checkpointer)

    def use(self, base: str, value: Value) -> None:
        if not os.path.isdir(self.at(base)):
            return
        with door("the next save"), v1.training.Checkpointer(self.at(base)) as checkpointer:
            checkpointer.save(10_000, state(10_000))
            if [each.step for each in checkpointer.checkpoints] != sorted([*value, 10_000]):
                raise Wrong(f"{self.name}: after the next save {checkpointer.checkpoints}")


class FlaxRoot(Root):
    """A directory of Flax's save_checkpoint."""

    def __init__(self, name: str, *, prefix: str = "checkpoint_", keep: int = 1,
                 alone: bool = True) -> None:
        super().__init__(name)
        self.prefix, self.keep, self.alone = prefix, keep, alone

    def read_only(self, path: str) -> dict[int, Value]:
        return {step: number_of(flax_io.restore_checkpoint(path, None, step, prefix=self.prefix),
                                f"{self.name}: step {step}")
                for step in flax_io.available_steps(path, prefix=self.prefix)}

    def write(self, base: str) -> Value:
        return self.read(base)  # Orbax's directories are checked once a save has opened the root

    def use(self, base: str, value: Value) -> None:
        path = self.at(base)
        if not os.path.isdir(path):
            return
        with door("the next save"):
            flax_io.save_checkpoint(path, state(10_000), 10_000, prefix=self.prefix, keep=self.keep)
        wanted = dict(sorted({**value, 10_000: 10_000}.items())[-self.keep:])
        if self.read_only(path) != wanted:
            raise Wrong(f"{self.name}: after the next save {self.read_only(path)}, not {wanted}")
        theirs = {step: load_v1(orbax_v1, os.path.join(path, f"{self.prefix}{step}"))
                  for step in wanted}
        agree({"facade": wanted, "orbax": theirs}, self.name)


# ---- single checkpoints -------------------------------------------------------------------------


def load_v1(ocp: Any, path: str) -> Value:
    with door(f"{ocp.__name__}.load_checkpointables({path})"):
        return without_default({name: number_of(tree, f"{path}/{name}")
                                for name, tree in ocp.load_checkpointables(path).items()})


class Single(Place):
    """A checkpoint of v1's functions. It is whole for everybody, or not there."""

    def read(self, base: str) -> Value:
        path = self.at(base)
        if not os.path.lexists(path):
            return None
        return agree({"facade": load_v1(v1, path), "orbax": load_v1(orbax_v1, path)}, self.name)

    def use(self, base: str, value: Value) -> None:
        with door("the next save and deletion"):
            v1.save(self.at(base), state(10_000), overwrite=True)
            if load_v1(v1, self.at(base)) != 10_000:
                raise Wrong(f"{self.name}: the next save has no effect")
            v1.delete(self.at(base))

    def leftovers(self, base: str) -> list[str]:
        folder, name = os.path.split(self.at(base))
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return [each for each in names if each.startswith(name)
                and not each.endswith(".partial_save")]  # which is a user's until it is finalized


class Flat(Single):
    """A checkpoint of v0's checkpointers."""

    def read(self, base: str) -> Value:
        path, found = self.at(base), {}
        if not os.path.lexists(path):
            return None
        for name, ocp in (("facade", v0), ("orbax", orbax)):
            with door(f"{name}: StandardCheckpointer.restore({path})"):
                with ocp.StandardCheckpointer() as checkpointer:
                    found[name] = number_of(checkpointer.restore(path), path)
        return agree(found, self.name)

    def use(self, base: str, value: Value) -> None:
        with door("the next save"), v0.StandardCheckpointer() as checkpointer:
            checkpointer.save(self.at(base), state(10_000), force=True)
        if self.read(base) != 10_000:
            raise Wrong(f"{self.name}: the next save has no effect")
        shutil.rmtree(self.at(base))


class Equinox(Single):
    """A file that our versions of Equinox's functions wrote."""

    def at(self, base: str) -> str:
        return os.path.join(base, self.name + ".eqx")

    def read(self, base: str) -> Value:
        path = self.at(base)
        if not os.path.lexists(path):
            return None
        number = load_v1(v1, path)
        with door(f"equinox: {path}"):
            like = equinox_io.tree_deserialise_leaves(path, state(number))
        return agree({"v1": number, "equinox": number_of(like, path),
                      "orbax": load_v1(orbax_v1, path)}, self.name)


class Copy(Single):
    """A copy that a user made with the tools of the system: whole, not there, or an error; never
    other bytes. Once the user has synced it, it is whole."""

    def read(self, base: str) -> Value:
        path = self.at(base)
        if not os.path.lexists(path):
            return None
        try:
            items = v1.load_checkpointables(path)
        except Exception as error:  # the model says whether it may be
            return f"error: {type(error).__name__}: {error}"[:300]
        return without_default({name: number_of(tree, f"{path}/{name}")
                                for name, tree in items.items()})

    def use(self, base: str, value: Value) -> None:
        """It is the user's."""

    def leftovers(self, base: str) -> list[str]:
        return []


class Pushed(Single):
    """The local directory that a step was pushed to."""

    def use(self, base: str, value: Value) -> None:
        with door("the next push"), stepwell.open(os.path.join(base, "pusher")) as store:
            store.save(10_000, state(10_000)).result()
            store.push(10_000, self.at(base), if_exists="replace")
            if self.read(base) != 10_000:
                raise Wrong(f"{self.name}: the next push has no effect")
            store.delete(10_000)
            store.pull(self.at(base), 10_000)
            if number_of(store.load(10_000), "pulled") != 10_000:
                raise Wrong("the next pull")
        shutil.rmtree(self.at(base))

    def leftovers(self, base: str) -> list[str]:
        return super().leftovers(base) + [name for name in os.listdir(base)
                                          if name.startswith("pusher.pu")]
