# SPDX-License-Identifier: Apache-2.0
"""The directory that flax.training.checkpoints is given: its checkpoints, of Stepwell and of Flax.

    <dir>/.stepwell           the store of the directory's first prefix
    <dir>/<prefix><step>/…    its steps, as a view shows them
    <dir>/.stepwell-<other>/  the same for another prefix: a store, and its steps by number
    <dir>/<other><step>       links to those
    <dir>/<prefix><step>      a file (msgpack) or a directory (Orbax) that Flax itself wrote

A prefix that a view cannot spell (Orbax puts "_" between name and number) counts as another one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import _store
from .._interop.temporary_import import imported
from ..errors import Error, FormatError, StepNotFoundError, StoreNotFoundError
from ._root import STORE_NAME, Root, is_shown

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")  # as Flax names steps
_PREFIX_KEY = "flax_prefix"  # in a step's metadata
# What Orbax has in the directory of a checkpoint, one of it at least.
_ORBAX_NAMES = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "checkpoint")
# A name that stands in a msgpack file for an array that lies in a directory of its own.
_ARRAY_ELSEWHERE = "//GDAPlaceholder:"


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
        self._is_first = _is_first(path, prefix)
        # Orbax puts the "_" between a prefix and the number itself.
        self.root = (Root(path, read_only=read_only, step_prefix=prefix[:-1] or None)
                     if self._is_first
                     else Root(os.path.join(path, f"{STORE_NAME}-{prefix}"), read_only=read_only))

    @property
    def store(self) -> _store.Store | None:
        with contextlib.suppress(StoreNotFoundError):
            return self.root.store
        return None

    @property
    def metadata(self) -> dict[str, str]:
        """What each step is saved with."""
        return {_PREFIX_KEY: self.prefix}

    def path_of(self, text: object) -> str:
        return os.path.join(self.path, f"{self.prefix}{text}")

    def own(self) -> list[Checkpoint]:
        store = self.store
        return [Checkpoint(step, str(step), self.path_of(step), True)
                for step in ([] if store is None else store.steps())]

    def foreign(self) -> list[Checkpoint]:
        """Those that Flax wrote, also of steps that are in the store by now."""
        found = []
        for name in os.listdir(self.path) if os.path.isdir(self.path) else []:
            text = name.removeprefix(self.prefix)
            path = os.path.join(self.path, name)
            if name.startswith(self.prefix) and _NUMBER.fullmatch(text) and not is_own(path):
                found.append(Checkpoint(float(text), text, path, False))
        return found

    def checkpoints(self) -> list[Checkpoint]:
        """All, by number, the lowest first."""
        own = self.own()
        texts = {each.text for each in own}
        return sorted(own + [each for each in self.foreign() if each.text not in texts])

    def delete(self, checkpoints: list[Checkpoint]) -> None:
        """Deletes checkpoints, also those that Flax wrote."""
        steps = [int(each.number) for each in checkpoints if each.is_own]
        while steps:
            try:
                self.root.store.delete(steps)
                break
            except StepNotFoundError:  # another thread's save had deleted some of them
                steps = [step for step in steps if step in self.root.store]
        if self.root.store._backend.leads:
            for each in checkpoints:
                if not each.is_own:
                    _remove(each.path)

    @contextlib.contextmanager
    def opened(self, checkpoint: Checkpoint) -> Iterator[tuple[_store.Store, int]]:
        """A store that has the checkpoint, and its step there, as long as the block runs."""
        if checkpoint.is_own:
            yield self.root.store, int(checkpoint.number)
        else:
            with opened_foreign(checkpoint.path) as store:
                yield store, 0

    def show(self) -> None:
        """Waits until the directory shows what the store has, on all processes of a run."""
        self.root.wait_for_view()
        if not self._is_first:
            self._link()
        self.root.store._backend.gather(0, f"showing {self.path}")

    def _link(self) -> None:
        folder = os.path.basename(self.root.path)
        steps = {f"{self.prefix}{step}": step for step in self.root.store.steps()}
        for name in os.listdir(self.path):
            link = os.path.join(self.path, name)
            if (name not in steps and os.path.islink(link)
                    and os.path.dirname(os.readlink(link)) == folder):
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    os.unlink(link)
        for name, step in steps.items():
            with contextlib.suppress(FileExistsError):
                os.symlink(os.path.join(folder, str(step)), os.path.join(self.path, name))

    def close(self) -> None:
        self.root.close()

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_first(path: str, prefix: str) -> bool:
    """Whether the steps of `prefix` are in the directory's own store: it is that of the first
    prefix that was saved."""
    if prefix and not (len(prefix) > 1 and prefix.endswith("_")):
        return False
    with Root(path, read_only=True) as root, contextlib.suppress(StoreNotFoundError):
        if root.store.latest is not None:
            # Other programs that save here give no prefix, and their view shows bare numbers.
            metadata = root.store[root.store.latest].metadata or {}
            return bool(metadata.get(_PREFIX_KEY, "") == prefix)
    return not os.path.isdir(os.path.join(path, f"{STORE_NAME}-{prefix}"))


def is_own(path: str) -> bool:
    """Whether a view made what is there, or a link that leads into one."""
    if is_shown(path):
        return True
    return os.path.islink(path) and os.readlink(path).startswith(f"{STORE_NAME}-")


def is_orbax(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in _ORBAX_NAMES)


def _remove(path: str) -> None:
    """Removes a checkpoint that Flax wrote. The view may give the name to a step right away, so
    nothing is removed but what was there before."""
    for each in (path, f"{path}_gda"):  # the second has arrays of many processes
        if os.path.isdir(each):
            shutil.rmtree(each)
        elif os.path.lexists(each):
            os.unlink(each)


@contextlib.contextmanager
def opened_tree(tree: Any) -> Iterator[_store.Store]:
    """A store that has `tree` as step 0, as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="stepwell-flax-") as folder:
        with _store.Store._open_alone(os.path.join(folder, "store")) as store:
            store.save(0, tree).result()
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
def opened_path(path: str) -> Iterator[tuple[_store.Store, int]]:
    """A store that has the checkpoint at `path`, and its step there."""
    if not is_own(path):
        with opened_foreign(path) as store:
            yield store, 0
        return
    real = os.path.realpath(path)
    number = re.search(r"\d+$", os.path.basename(real))
    assert number is not None  # views name them so
    with Root(os.path.dirname(real), read_only=True) as root:
        step = int(number[0])
        if step not in root.store:
            raise StepNotFoundError(f"{path!r} is not in its store any more; it has "
                                    f"{root.store.steps()}")
        yield root.store, step
