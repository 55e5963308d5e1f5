# SPDX-License-Identifier: Apache-2.0
"""The root of a manager: a store for each format of names, its view, and others' checkpoints.

    root/.stepwell            the store of the steps that are named <number>
    root/.stepwell-<name>     that of another format, which names step 0 so: .stepwell-ckpt_0
    root/<name of a step>/…   the view of a step, in Orbax's layout: hard links into its store
    root/<name of a step>/…   checkpoints that Orbax wrote, or copies: read, deleted, never changed

What steps there are, the store says; `listed` adds those that are being saved. In one process a
store is open once, however many managers use it. If another process writes it, this one reads it,
and a save raises LockedError.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from .. import Json, _store
from .._pytree.chunks import Chunks
from .._runtime import durable
from .._runtime.durable import TEMPORARY
from .._runtime.files import key_of, local_path, read_json_object
from ..errors import (CheckpointNotFoundError, CorruptionError, Error, LockedError,
                      PermissionDeniedError, StepNotFoundError, StoreNotFoundError)
from ._stores import (METRICS, OWN_METADATA, STORE_NAME, Info, Shared, metrics_of, now,
                      release, shown_at, take)
from ._work import Work

_REPLACES = "replaces"  # there: the directory of another library that the step takes the place of
_UTC = datetime.timezone.utc
_TICK_NS = 50_000_000  # more than a file system's clock takes to go on
NO_TIME = datetime.datetime.min.replace(tzinfo=_UTC)  # of a lightweight look


def naming(name_format: Any) -> tuple[str, int]:
    """Returns the prefix of the names of a format, and their least number of digits. ValueError for
    names that are not a prefix and a number: a store shows its steps under such names only."""
    small, large = name_format.build_name(1), name_format.build_name(12345678901)
    found = re.fullmatch(r"(.*?)(0*1)", small, re.DOTALL)
    if found is not None and large == f"{found[1]}{12345678901:0{len(found[2])}d}" and (
            not found[1][-1:].isdigit()):
        return found[1], len(found[2])
    raise ValueError(f"step_name_format names step 1 {small!r} and step 12345678901 {large!r}; "
                     "Stepwell shows steps as a prefix and a number, with or without leading zeros")


def store_name(name_format: Any) -> str:
    """The name of the store of the steps that a format names."""
    prefix, digits = naming(name_format)
    return STORE_NAME if (prefix, digits) == ("", 1) else f"{STORE_NAME}-{prefix}{0:0{digits}d}"


# ---- checkpoints of others ----------------------------------------------------------------------


def others_info(step: int, path: str, lightweight: bool) -> Info:
    """Returns what policies know of a step that another library wrote, or that is a copy."""
    if lightweight:
        return Info(step, NO_TIME, None)
    metrics = None
    committed = None
    with contextlib.suppress(CorruptionError):
        described = read_json_object(os.path.join(path, "_CHECKPOINT_METADATA"))
        committed = described.get("commit_timestamp_nsecs")
        metrics = read_json_object(os.path.join(path, METRICS, METRICS)) or None
    if not isinstance(committed, int):
        try:
            committed = os.stat(path).st_mtime_ns
        except FileNotFoundError:  # it has just gone
            return Info(step, NO_TIME, None)
    return Info(step, datetime.datetime.fromtimestamp(committed / 1e9, tz=_UTC), metrics)


def _identity(path: str) -> list[int] | None:
    """Identifies a directory as it is now; a library that overwrites a step makes another one."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _place(path: str) -> tuple[str, int, int] | None:
    """Name, inode and time of change of a directory as it is now; None: there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return os.path.basename(path), status.st_ino, status.st_ctime_ns


# ---- the root -----------------------------------------------------------------------------------


class Root:
    """The steps of one format of names below a directory. A context manager that closes.

    name_format: names steps, and finds their directories (`build_name`, `find_all`).
    layout, zarr: how the view shows steps. create: makes the directory. read_only: opens a store
    that is there for reading. cleanup: removes what saves of Orbax that died left there.
    """

    def __init__(self, directory: str | os.PathLike[str], *, name_format: Any,
                 read_only: bool = False, create: bool = True,
                 layout: Literal["v0", "v1"] = "v1", zarr: Literal[2, 3] = 3,
                 cleanup: bool = False) -> None:
        self.path = local_path(directory)
        self.read_only = read_only
        self.name_format = name_format
        self._naming = naming(name_format)
        self._store_path = os.path.join(self.path, store_name(name_format))
        self._layout: Literal["v0", "v1"] = layout
        self._zarr: Literal[2, 3] = zarr
        self._shared: Shared | None = None
        # Caches by name, inode and time of change whether the view made a directory.
        self._made_by_view: dict[tuple[str, int, int], bool] = {}
        self._refused: Error | None = None  # what kept the store from being open for writing
        # The last result of `foreign`, and the state of the directory that it describes.
        self._foreign: tuple[tuple[int, int, int], dict[int, str]] | None = None
        if not read_only and create:
            durable.make_directories(self.path)
        if read_only or create or os.path.isdir(self.path):
            self._open()
        if cleanup and self._shared is not None and self._shared.view is not None:
            found = [entry.path for entry in os.scandir(self.path) if TEMPORARY in entry.name]
            self._remove(path for path in found if not durable.is_claimed(path))

    def _open(self) -> None:
        self._foreign = None
        self._shared = take(self._store_path, self._open_store, self._prepare)

    def _prepare(self, shared: Shared) -> None:
        """Prepares a store that was opened for writing. One process serves the view for all."""
        self._shared = shared
        if not self.leads:
            return
        durable.sweep(self.path)
        prefix, digits = self._naming
        shared.view = shared.store.orbax_view(
            self.path, layout=self._layout, leaves="jax", zarr=self._zarr, beside=True,
            name_prefix=prefix or None, step_digits=digits if digits > 1 else 0,
            on_unsupported="skip")
        self._finish_overwrites(shared.store)

    def _open_store(self) -> _store.Store | None:
        self._refused = None
        if not self.read_only:
            try:
                return _store.open(self._store_path)
            except (LockedError, PermissionDeniedError) as error:  # steps can be read, nevertheless
                self._refused = error
        with contextlib.suppress(StoreNotFoundError):
            return _store.open(self._store_path, mode="r")
        return None

    @property
    def store(self) -> _store.Store:
        """The store. StoreNotFoundError if this root is read only and has none; what refused it if
        it could not be made."""
        if self._shared is None and self._refused is not None:
            raise self._refused
        if self._shared is None:
            raise StoreNotFoundError(f"{self.path!r} has no Stepwell store, and is open for "
                                     "reading only")
        return self._shared.store

    @property
    def leads(self) -> bool:
        """True if this process changes the directory for all."""
        return self._shared is None or self._shared.store._backend.leads

    def planning(self) -> contextlib.AbstractContextManager[object]:
        """A lock. A manager holds it from the choice of what a save retires until `save` has
        returned: two managers choose one after the other. The store is open for writing then, if
        it can be: what another process saved before is chosen from, too."""
        if not self.read_only:
            with contextlib.suppress(Error):  # `save` says it
                self._writable()
        return contextlib.nullcontext() if self._shared is None else self._shared.planning

    def gather(self, what: str) -> None:
        """Waits until all processes of a run are here."""
        self.store._backend.gather(0, what)

    def _writable(self) -> Shared:
        """The store, open for writing, in the directory that the path names. LockedError."""
        if self._shared is None or self._shared.store.read_only and not self.read_only:
            old, self._shared = self._shared, None
            if old is not None:  # another process had it, then
                release(old)
            if not os.path.isdir(self.path):
                durable.make_directories(self.path)
            self._open()
        if self._refused is not None:
            raise self._refused
        store = self.store
        assert self._shared is not None
        if key_of(self._store_path) != self._shared.key:
            raise Error(f"{self.path!r} was moved or removed while it was open here, with its "
                        f"store {store.path!r}; close this manager, and open the directory anew")
        return self._shared

    # ---- steps ----

    def directory_of(self, step: int) -> str:
        """The directory that a step has, or would have."""
        return os.path.join(self.path, self.name_format.build_name(step))

    def _committed(self) -> list[int]:
        return [] if self._shared is None else self._shared.store.steps()

    def foreign(self, *, anew: bool = False) -> dict[int, str]:
        """Steps with data of their own: those that other libraries wrote, and copies. Their paths
        by number. The directory is read where its time has changed, or `anew`."""
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        key = status.st_dev, status.st_ino, status.st_mtime_ns
        if anew or self._foreign is None or self._foreign[0] != key:
            found = self._find_foreign()
            # Changes within one tick of the clock have the same time, so a recent time proves
            # nothing.
            settled = time.time_ns() - status.st_mtime_ns > _TICK_NS
            self._foreign = (key, found) if settled else None
            return found
        return dict(self._foreign[1])

    def _find_foreign(self) -> dict[int, str]:
        found = {}
        known: dict[tuple[str, int, int], bool] = {}
        for step, name in self._named().items():
            path = os.path.join(self.path, name)
            looked = self._look(path)
            if looked is None:  # it has just gone
                continue
            place, made_by_view = looked
            known[place] = made_by_view
            if not made_by_view:
                found[step] = path
        self._made_by_view = known
        return found

    def _look(self, path: str) -> tuple[tuple[str, int, int], bool] | None:
        """Which directory it is, and whether the view made it. A view may remove it meanwhile, or
        show another: a look holds where the directory is the same behind it."""
        place = _place(path)
        while place is not None:
            known = self._made_by_view.get(place)
            if known is not None:
                return place, known
            shown = shown_at(path)
            made_by_view = shown is not None and os.path.samefile(
                shown.store_path, self._store_path)
            before, place = place, _place(path)
            if place == before:
                return place, made_by_view
        return None

    def _named(self) -> dict[int, str]:
        """Directories that are named as steps, by number."""
        try:
            if type(self.name_format).__module__.startswith("orbax.") and not hasattr(
                    self.name_format, "read_name_formats"):
                return self._named_plainly()
            return {each.step: os.path.basename(os.fspath(each.path))
                    for each in self.name_format.find_all(self.path)}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def _named_plainly(self) -> dict[int, str]:
        """Finds steps as a format of Orbax does, without its look into each."""
        prefix, digits = self._naming
        pattern = re.compile(rf"{re.escape(prefix)}(\d{{{digits},}})")
        found = {}
        for entry in os.scandir(self.path):
            match = pattern.fullmatch(entry.name)
            if match is not None and (len(match[1]) == digits or match[1][0] != "0") and (
                    match[1].isascii()) and entry.is_dir():
                found[int(match[1])] = entry.name
        return found

    def own_steps(self) -> list[int]:
        """The committed steps of the store, ascending, but for those whose directory is of another
        library by now: it came later."""
        committed = self._committed()
        foreign = self.foreign() if committed else {}
        return [step for step in committed if step not in foreign]

    def holds(self, step: int) -> bool:
        """Returns true if the store has the step."""
        return step in self.own_steps()

    def steps(self) -> list[int]:
        """All steps, ascending."""
        return sorted({*self._committed(), *self.foreign()})

    def listed(self) -> list[int]:
        """All steps, and those that are being saved."""
        flying = {} if self._shared is None else self._shared.in_flight()
        return sorted({*flying, *self.steps()})

    def latest(self) -> int | None:
        """The highest of all steps, and of those that are being saved, that is not tainted."""
        return max(set(self.listed()) - self.tainted(), default=None)

    def tainted(self) -> set[int]:
        """The store's tainted steps (`Store.taint`), but for those that another one replaces, or
        whose directory is of another library by now."""
        if self._shared is None:
            return set()
        tainted = set(self._shared.store.tainted_steps())
        return tainted - set(self._shared.in_flight()) - set(self.foreign()) if tainted else tainted

    def infos(self, lightweight: bool = False) -> list[Info]:
        """Returns what policies know of all steps, and of those that are being saved, ascending.
        lightweight: no times and metrics of steps that are there already."""
        flying = {} if self._shared is None else self._shared.in_flight()
        foreign = self.foreign()
        infos = {step: others_info(step, path, lightweight) for step, path in foreign.items()}
        infos.update(flying)
        for summary in [] if self._shared is None else self._shared.store._backend.steps():
            if summary.step not in infos:
                infos[summary.step] = (Info(summary.step, NO_TIME, None) if lightweight
                                       else self._info(summary.step, summary.commit))
        return [infos[step] for step in sorted(infos)]

    def _info(self, step: int, commit: int) -> Info:
        assert self._shared is not None
        known = self._shared.infos
        if (step, commit) not in known:
            view = self._shared.store[step]
            known[step, commit] = Info(step, view.time, metrics_of(self._shared.store, step))
        return known[step, commit]

    # ---- changes ----

    def save(self, step: int, items: Mapping[str, Any], *,
             metadata: Mapping[str, Any] | None = None, metrics: Any = None,
             chunks: Chunks | None = None, replace: bool = False, retire: Sequence[int] = (),
             then: Callable[[], object] | None = None, timeout: float | None = None) -> Work[None]:
        """Saves a step in the background. In the very commit that makes it durable the steps of
        `retire` die; those of other libraries, and one that the step takes the place of, go then.

        metrics: JSON. then: called in the background once all of this is done. timeout: of
        `result()`.
        """
        shared = self._writable()
        store = shared.store
        foreign = self.foreign()
        shadowed = foreign.get(step) if replace else None
        described = dict(metadata or {})
        if shadowed is not None:
            described[OWN_METADATA] = {**described.get(OWN_METADATA, {}),
                                       _REPLACES: _identity(shadowed)}
        trees = dict(items)
        if metrics is not None and not isinstance(metrics, Mapping):
            trees[METRICS] = Json(metrics)
        elif metrics is not None:
            trees.pop(METRICS, None)
        gone = [path for number, path in foreign.items() if number in retire or path == shadowed]
        info = Info(step, now(), metrics)
        handle = store._put(
            step, trees, metadata=described or None, metrics=None if METRICS in trees else metrics,
            replace=replace, chunks=chunks, retire=[each for each in retire if each not in foreign])

        def work() -> None:
            handle.result()
            # Its time does not change any more. And several processes read a step together only,
            # whereas one alone may ask what there is.
            for summary in store._backend.steps():
                if summary.step == step:
                    shared.infos[step, summary.commit] = info
            if self.leads:
                self._remove(gone)
            if then is not None:
                then()

        saving = Work(work, timeout=timeout)
        shared.saving[step] = saving, info
        return saving

    def _remove(self, paths: Iterable[str]) -> None:
        """Removes what others have under a name. The view, which may have found it taken, looks
        again."""
        for path in paths:
            with contextlib.suppress(CheckpointNotFoundError):
                durable.remove(path)
                self._look_again()

    def _look_again(self) -> None:
        if self._shared is not None and self._shared.view is not None:
            with contextlib.suppress(TimeoutError, Error):  # or it is closed, and looks no more
                self._shared.view.wait(0)

    def _finish_overwrites(self, store: _store.Store) -> None:
        """Finishes the overwrites of a killed process: a step is durable, and what it takes the
        place of is there."""
        foreign = self.foreign()
        for step in store.steps() if foreign else []:
            if step in foreign:
                own = (store[step].metadata or {}).get(OWN_METADATA)
                if isinstance(own, dict) and own.get(_REPLACES) == _identity(foreign[step]):
                    self._remove([foreign[step]])

    def delete(self, step: int) -> None:
        """Deletes a step, whichever library wrote it. StepNotFoundError."""
        shared = self._writable()
        found = self.foreign().get(step)
        if found is None and step not in shared.store:
            raise StepNotFoundError(f"{self.path!r} has no step {step}; it has {self.steps()}")
        if found is not None and self.leads:
            durable.remove(found)
        if step in shared.store:
            shared.store.delete(step)

    def delete_item(self, step: int, name: str) -> None:
        """Deletes an item of a step of the store."""
        self._writable().store.delete(step, item=name)

    # ---- life ----

    def wait_for_view(self, timeout: float = 60.0) -> None:
        """Waits until every committed step stands in the directory, where this process is the one
        that shows them."""
        if self._shared is not None and self._shared.view is not None:
            self._shared.view.wait(timeout)

    def close(self) -> None:
        """Waits for the saves of the store. The last user of a store closes it; raises the first
        error of a save that was not raised yet. Idempotent."""
        shared, self._shared = self._shared, None
        if shared is not None:
            release(shared)

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
