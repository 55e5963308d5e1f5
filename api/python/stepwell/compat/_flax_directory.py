# SPDX-License-Identifier: Apache-2.0
"""The directory that flax.training.checkpoints is given: its checkpoints of one prefix.

    <dir>/.stepwell-<prefix>0   the store of the prefix
    <dir>/<prefix><step>/…      its steps, as a view shows them
    <dir>/<prefix><step>        a file (msgpack) or a directory (Orbax) that Flax itself wrote

Other prefixes, and managers of Orbax, have stores and names of their own: none sees the others'.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import _store
from .._interop.file_bounds import check_fits, check_regular
from .._interop.temporary_import import imported
from .._pytree.has_leaf import has_leaf
from .._runtime import durable
from ..errors import (CheckpointNotFoundError, Error, FormatError, InvalidArgumentError,
                      StoreNotFoundError)
from . import _resolve
from ._root import Root
from ._stores import shown_at
from ._work import Work

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")  # as Flax names steps
# Names of which Orbax puts at least one into the directory of a checkpoint.
_ORBAX_NAMES = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "checkpoint")
# A name that stands in a msgpack file for an array that lies in a directory of its own.
_ARRAY_ELSEWHERE = "//GDAPlaceholder:"


class _Named(NamedTuple):
    """A step's directory, as formats of names give it."""

    step: int
    path: str


class Names:
    """The names of a prefix's steps, as a format of Orbax: the number follows the prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def build_name(self, step: int) -> str:
        return f"{self.prefix}{step}"

    def find_all(self, base_path: Any) -> Iterator[_Named]:
        for name in os.listdir(base_path):
            text = name.removeprefix(self.prefix)
            if name.startswith(self.prefix) and text.isdecimal() and text == str(int(text)):
                yield _Named(int(text), os.path.join(base_path, name))


class Checkpoint(NamedTuple):
    """One of a directory: `text` is its number as its name has it, `path` where it lies. `is_own`:
    its data are in the store."""

    number: float
    text: str
    path: str
    is_own: bool


class Directory:
    """The checkpoints of one prefix. A context manager that closes."""

    def __init__(self, path: str, prefix: str, *, read_only: bool) -> None:
        self.path = path
        self.prefix = prefix
        if prefix[-1:].isdigit():
            raise InvalidArgumentError(f"prefix {prefix!r} ends in a digit, which would be part of "
                                       "the steps' numbers: put another character behind it")
        self.root = Root(path, name_format=Names(prefix), read_only=read_only)

    def path_of(self, text: object) -> str:
        return os.path.join(self.path, f"{self.prefix}{text}")

    def checkpoints(self, in_flight: bool = False) -> list[Checkpoint]:
        """All, by number, the lowest first. in_flight: those that are being saved, too."""
        steps = (set(self.root.listed()) - set(self.root.foreign()) if in_flight
                 else set(self.root.own_steps()))
        found = [Checkpoint(step, str(step), self.path_of(step), True) for step in steps]
        for name in os.listdir(self.path) if os.path.isdir(self.path) else []:
            text = name.removeprefix(self.prefix)
            if name.startswith(self.prefix) and _NUMBER.fullmatch(text):
                own = text.isdecimal() and int(text) in steps and text == str(int(text))
                path = os.path.join(self.path, name)
                # A directory that a view made for a step that the store lacks will be removed, or
                # is gone.
                if not own and shown_at(path) is None and os.path.exists(path):
                    found.append(Checkpoint(float(text), text, path, False))
        return sorted(found)

    def untainted(self, in_flight: bool = False) -> list[Checkpoint]:
        """Those that a run may be resumed from."""
        tainted = self.root.tainted()
        return [each for each in self.checkpoints(in_flight)
                if not (each.is_own and each.number in tainted)]

    def save(self, step: int, target: Any, gone: list[Checkpoint]) -> Work[None]:
        """Saves a step in the background; `gone` is gone when it is done: what the store has of it
        in the same commit."""
        if not has_leaf(target):
            gone = [each for each in gone if each.number == step]
        # The root removes what has the name of a step, before it shows the new one there.
        steps = {each.path for each in gone if each.text == str(int(each.number))}
        paths = [f"{each.path}_gda" for each in gone if not each.is_own]  # arrays of many processes
        paths += [each.path for each in gone if each.path not in steps]
        retire = [int(each.number) for each in gone if each.path in steps and each.number != step]
        return self.root.save(step, {"state": target}, replace=True, retire=retire,
                              then=lambda: self._finish(paths))

    def _finish(self, paths: list[str]) -> None:
        if self.root.leads:
            for path in paths:
                with contextlib.suppress(CheckpointNotFoundError):
                    durable.remove(path)
        self.root.wait_for_view()

    @contextlib.contextmanager
    def opened(self, checkpoint: Checkpoint) -> Iterator[tuple[_store.Store, int]]:
        """A store that has the checkpoint, and its step there, as long as the block runs."""
        if checkpoint.is_own:
            yield self.root.store, int(checkpoint.number)
        else:
            with opened_foreign(checkpoint.path) as store:
                yield store, 0

    def close(self) -> None:
        self.root.close()

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_checkpoint(path: str) -> bool:
    """Returns true if a path is a checkpoint, and not a directory of several."""
    return (os.path.isfile(path) or _resolve.shown(path) is not None
            or any(os.path.exists(os.path.join(path, name)) for name in _ORBAX_NAMES))


@contextlib.contextmanager
def opened_tree(tree: Any) -> Iterator[_store.Store]:
    """A store that has `tree` as step 0, as long as the block runs."""
    with durable.scratch("stepwell-flax-") as folder:
        with _store.Store._open_alone(os.path.join(folder, "store")) as store:
            store._put(0, {"state": tree}).result()
            yield store


@contextlib.contextmanager
def opened_foreign(path: str) -> Iterator[_store.Store]:
    """A store that has a checkpoint of Flax as step 0, as long as the block runs."""
    if not os.path.isdir(path):
        with opened_tree(_read_msgpack(path)) as store:
            yield store
        return
    with imported(_store.Store._open_alone, path) as store:
        yield store


def _read_msgpack(path: str) -> Any:
    from flax import serialization

    check_regular(path)
    check_fits(path, 2 * os.path.getsize(path))
    with open(path, "rb") as file:
        data = file.read()
    try:
        tree = serialization.msgpack_restore(data)
    except Exception as error:
        raise FormatError(f"{path!r} is not a checkpoint of Flax: {error}") from error
    if _has_arrays_elsewhere(tree):
        raise Error(f"{path!r} was saved with gda_manager: arrays of it lie in '{path}_gda'. "
                    "Restore it with flax.training.checkpoints, and save it here")
    return tree


def _has_arrays_elsewhere(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_has_arrays_elsewhere, tree.values()))
    return isinstance(tree, str) and tree.startswith(_ARRAY_ELSEWHERE)


@contextlib.contextmanager
def opened_path(path: str) -> Iterator[tuple[_store.Store, int] | None]:
    """A store that has the checkpoint at `path`, and its step there; None: there is none."""
    shown = _resolve.shown(path)
    if shown is not None:
        with _resolve.opened(path) as found:
            assert isinstance(found, _resolve.StoredStep)
            yield found.store, found.step
        return
    if os.path.exists(path):
        with opened_foreign(path) as store:
            yield store, 0
        return
    # A step that Orbax can show nothing of, such as one without leaves, has no directory.
    folder, name = os.path.split(path)
    number = re.search(r"\d+$", name)
    if number is None or not os.path.isdir(folder or "."):
        yield None
        return
    with Directory(folder, name[:number.start()], read_only=True) as directory:
        try:
            has = int(number[0]) in directory.root.store
        except StoreNotFoundError:
            has = False
        yield (directory.root.store, int(number[0])) if has else None
