# SPDX-License-Identifier: Apache-2.0
"""A single checkpoint: a directory that Orbax loads, with its store of one step inside.

    path/state/…              as Orbax writes it; the data are hard links to those of the store
    path/state/.stepwell      the store, in the first item, as Orbax takes each directory beside the
                              items for an item, too
    path/.stepwell            the store where the directory is the one item itself (v0, "flat")

It is made under a temporary name and renamed, or exchanged with what it replaces. It survives `mv`,
`cp -r` and `rmtree`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .. import _store
from .._distributed.coordinator import is_store
from .._pytree.chunks import Chunks, set_chunk_shapes
from .._pytree.sharding import to_numpy
from .._pytree.tree import ARRAY, JAX, SHARDS, flatten_items
from .._runtime.arguments import json_text
from .._runtime.files import local_path, sync_folder
from .._runtime.gc_pause import paused
from .._stepwell import Row
from ..errors import Error, InvalidArgumentError, StepExistsError
from ._claim import Claim
from ._work import Peers, Work

STORE_NAME = ".stepwell"
TEMPORARY = ".orbax-checkpoint-tmp"  # names with this are never read as checkpoints
CHECKPOINT_METADATA = "_CHECKPOINT_METADATA"
_DIGESTS = "stepwell-digests"  # an export's, of its files
INDICATOR = "orbax.checkpoint"  # an empty file in every checkpoint of Orbax v1
STEP = 0  # of the store of a single checkpoint

# States up to this size are copied at once, and the store is opened in the background.
_SNAPSHOT_BYTES_MAX = 64 << 20

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class Form:
    """How a checkpoint is written.

    layout: "v1", or "flat" of one item, as v0's checkpointers write a tree.
    handlers: Orbax's names of the handlers of items, where the export's own are others.
    """

    def __init__(self, *, layout: Literal["v1", "flat"] = "v1", zarr: Literal[2, 3] = 3,
                 codec: Literal["auto", "raw", "blosc"] = "auto", file_mode: int | None = None,
                 staging_bytes: int | None = None, handlers: Mapping[str, str] | None = None
                 ) -> None:
        self.layout = layout
        self.zarr = zarr
        self.codec = codec
        self.file_mode = file_mode
        self.staging_bytes = staging_bytes
        self.handlers = dict(handlers or {})


def save(path: str | os.PathLike[str], items: Mapping[str, Any], *, overwrite: bool = False,
         metadata: Any = None, metrics: Any = None, chunks: Chunks | None = None,
         form: Form | None = None, timeout: float | None = None,
         finished: Callable[[], object] | None = None) -> Work[None]:
    """Saves items as the checkpoint `path`, in the background. When `save` returns, the caller may
    change or donate the state. An earlier save of `path` comes to its end first. All processes of a
    run save together, and have one result. StepExistsError if `path` exists and `overwrite` is
    False; LockedError if another run saves it.

    finished: called in the background once the checkpoint is there. timeout: of `result()`.
    """
    form = form or Form()
    target = local_path(path)
    folder = target + TEMPORARY
    peers = Peers(f"saving {target!r}")

    claim = Claim(folder)  # process 0 acquires it
    cancelled = threading.Event()

    def begin() -> None:
        if not overwrite:
            _check_absent(target)  # before anything is made there
        claim.acquire()
        if not overwrite:
            _check_absent(target)  # an earlier save has come to its end

    def publish() -> None:
        if not cancelled.is_set():
            _publish(folder, target, overwrite, form)

    def work(start: Callable[[], _store.Store]) -> None:
        if not claim.take():
            return  # the call was interrupted
        try:
            peers.all(lambda: _export(start, folder, form))
            peers.lead(publish)
        finally:
            claim.release()
        if finished is not None and not cancelled.is_set():
            finished()

    try:
        peers.lead(begin)
        try:
            start = _snapshot(folder, dict(items), metadata, metrics, chunks, form, peers.count)
        except BaseException as error:
            peers.abort(error)
            raise
        saving = Work(lambda: work(start), timeout=timeout, cancelled=cancelled)
        claim.hand_over()
        return saving
    except BaseException:
        claim.drop()
        raise


def _check_absent(target: str) -> None:
    if os.path.lexists(target):
        raise StepExistsError(f"{target!r} exists; overwrite=True replaces it")


def _snapshot(folder: str, trees: dict[str, Any], metadata: Any, metrics: Any,
              chunks: Chunks | None, form: Form, processes: int) -> Callable[[], _store.Store]:
    """Takes the state, and gives what saves it: opens a store in `folder`, and waits until it has
    the state."""
    texts = json_text(metadata, "metadata"), json_text(metrics, "metrics")
    if processes == 1:
        with paused():
            rows = flatten_items(trees)
            set_chunk_shapes(chunks, rows)
            held = _hold([row for item in rows for row in item.rows])
        if held is not None:

            def start() -> _store.Store:
                with contextlib.ExitStack() as closing:
                    store = closing.enter_context(_open(folder, form))
                    core = store._backend.whole("a single checkpoint")
                    store._track(core.save(STEP, rows, *texts, 0, to_numpy)).result()
                    held.clear()
                    closing.pop_all()
                return store

            return start
        del rows
    store = _open(folder, form)
    try:
        handle = store.save(STEP, items=trees, metadata=metadata, metrics=metrics, chunks=chunks)
    except BaseException:
        store.close()
        raise

    def wait() -> _store.Store:
        try:
            handle.result()
        except BaseException:
            with contextlib.suppress(Error):
                store.close()
            raise
        return store

    return wait


def _hold(rows: list[Row]) -> list[Any] | None:
    """Copies the host arrays of rows, and gives views of the others, whose memory JAX donates to
    no computation while these live. None, and nothing copied, where it is much or on devices."""
    views = []
    hosts = []
    nbytes = 0
    for row in rows:
        if row.tag == SHARDS:
            return None
        if row.tag in (ARRAY, JAX):
            if row.tag == JAX:
                views.append(to_numpy(row.data))
                nbytes += views[-1].nbytes
            else:
                hosts.append(row)
                nbytes += row.data.nbytes
            if nbytes > _SNAPSHOT_BYTES_MAX:
                return None
    for row in hosts:
        row.data = row.data.copy()
    return views


def _open(folder: str, form: Form) -> _store.Store:
    return _store.open(os.path.join(folder, "store"), codec=form.codec,
                       staging_bytes=form.staging_bytes)


def _export(start: Callable[[], _store.Store], folder: str, form: Form) -> None:
    """Makes of the saved step what Orbax loads, and closes the store."""
    store = start()
    made = os.path.join(folder, "export")
    flat = form.layout == "flat"
    try:
        store.export(STEP, made, mode="link", layout="v0" if flat else "v1", zarr=form.zarr,
                     leaves="jax", on_unsupported="skip", file_mode=form.file_mode)
    except InvalidArgumentError as error:
        if "no leaf to export" not in str(error):
            raise
        # Nothing that Orbax can hold: a directory for the store alone.
        os.makedirs(os.path.join(made, str(STEP) if flat else "", "state"), exist_ok=True)
        with open(os.path.join(made, INDICATOR), "w", encoding="utf-8"):
            pass
    finally:
        with contextlib.suppress(Error):
            store.close()


def _publish(folder: str, target: str, overwrite: bool, form: Form) -> None:
    """Puts the checkpoint, with the store in it, where it is to be."""
    made = os.path.join(folder, "export")
    if form.layout == "flat":
        step = os.path.join(made, str(STEP))
        (made,) = [entry.path for entry in [*os.scandir(step)] if entry.is_dir()]
        home = made
        with contextlib.suppress(FileNotFoundError):
            os.replace(os.path.join(step, CHECKPOINT_METADATA),
                       os.path.join(made, CHECKPOINT_METADATA))
    else:
        home = next(entry.path for entry in sorted(os.scandir(made), key=lambda each: each.name)
                    if entry.is_dir() and entry.name != "metrics")
    _name_handlers(made, form)
    inside = os.path.join(folder, "store")
    strip(inside)
    os.rename(inside, os.path.join(home, STORE_NAME))
    if form.file_mode is not None:
        for base, folders, _ in os.walk(made):
            for each in folders:
                os.chmod(os.path.join(base, each), _folder_mode(form.file_mode))
        os.chmod(made, _folder_mode(form.file_mode))
    sync_folder(home)
    sync_folder(made)
    put(made, target, overwrite)


def _folder_mode(file_mode: int) -> int:
    return file_mode | (file_mode & 0o444) >> 2  # those who may read may enter


def strip(store: str) -> None:
    """Removes from a closed store, and from the parts of processes in it, what only writers need.
    """
    for name in os.listdir(store):
        whole = os.path.join(store, name)
        if is_store(whole):
            strip(whole)
        elif name not in ("STEPWELL", "segments"):
            shutil.rmtree(whole) if os.path.isdir(whole) else os.remove(whole)


def _name_handlers(made: str, form: Form) -> None:
    path = os.path.join(made, CHECKPOINT_METADATA)
    if not os.path.exists(path):
        return
    handlers = {name: form.handlers.get(name, handler)
                for name, handler in read_handlers(path).items()}
    write_handlers(path, next(iter(handlers.values())) if form.layout == "flat" else handlers)


def read_handlers(path: str) -> dict[str, str]:
    """Orbax's names of the handlers of items, in a file _CHECKPOINT_METADATA."""
    with open(path, encoding="utf-8") as file:
        handlers: dict[str, str] = json.load(file)["item_handlers"]
    return handlers


def write_handlers(path: str, handlers: dict[str, str] | str) -> None:
    """Replaces the file, which other checkpoints may have a link to. The export's digests, which
    no longer hold, go with it."""
    with open(path, encoding="utf-8") as file:
        described = json.load(file)
    if described["item_handlers"] == handlers:
        return
    described["item_handlers"] = handlers
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(os.path.dirname(path), _DIGESTS))
    os.remove(path)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(described, file)
        file.flush()
        os.fsync(file.fileno())


def put(made: str, target: str, overwrite: bool) -> None:
    """Renames a directory to `target`. With `overwrite` it takes the place of what is there at
    once: a reader sees the one or the other, at any instant."""
    if not overwrite:
        _check_absent(target)
    if os.path.lexists(target):
        _exchange(made, target)
        sync_folder(os.path.dirname(target))
        if os.path.isdir(made) and not os.path.islink(made):
            shutil.rmtree(made)
        else:
            os.remove(made)
    else:
        os.rename(made, target)
        sync_folder(os.path.dirname(target))


def _exchange(one: str, other: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other),
                      ctypes.c_uint(_RENAME_EXCHANGE)):
        # A file system that cannot (NFS): two renames, with an instant between them.
        aside = one + ".replaced"
        os.rename(other, aside)
        os.rename(one, other)
        os.rename(aside, one)


# ---- reading ----


def store_in(path: str) -> str | None:
    """Where the store of a single checkpoint is; None if `path` has none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for folder in [path, *sorted(e.path for e in os.scandir(path) if e.is_dir())]:
            if os.path.isfile(os.path.join(folder, STORE_NAME, "STEPWELL")):
                return os.path.join(folder, STORE_NAME)
    return None


def open_store(path: str) -> _store.Store | None:
    """The store of a single checkpoint, for reading; None if it has none. Nothing is created."""
    while True:
        before = _identity(path)
        found = store_in(path)
        if found is None:
            return None
        try:
            return _store.open(found, mode="r", untrusted=True)
        except Error:
            if _identity(path) == before:
                raise
            # Another checkpoint took the place of this one while its files were being opened.


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
