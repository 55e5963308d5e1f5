# SPDX-License-Identifier: Apache-2.0
"""A single checkpoint: a directory that Orbax loads, with its store of one step inside.

    path/state/…              as Orbax writes it; the data are hard links to those of the store
    path/state/.stepwell      the store, in the first item, as Orbax takes each directory beside the
                              items for an item, too
    path/.stepwell            the store where the directory is the one item itself (v0, "flat")

It is made in a temporary directory (durable.Folder), and takes the path, or the place of what it
replaces, at one instant. It survives `mv`, `cp -r` and `rmtree`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .. import _store
from .._distributed.coordinator import is_store
from .._pytree.chunks import Chunks, set_chunk_shapes
from .._pytree.sharding import to_numpy
from .._pytree.tree import ARRAY, JAX, SHARDS, flatten_items
from .._runtime import durable
from .._runtime.arguments import json_text
from .._runtime.durable import TEMPORARY
from .._runtime.files import local_path, read_json
from .._runtime.gc_pause import paused
from .._stepwell import IfExists, Row, SaveRequest, carry_digests
from ..errors import Error, InvalidArgumentError, StepExistsError
from ._claim import Claim
from ._stores import OWN_METADATA, STORE_NAME
from ._work import Peers, Work

CHECKPOINT_METADATA = "_CHECKPOINT_METADATA"
_DIGESTS = "stepwell-digests"  # an export's, of its files
TREE_FILE = "_METADATA"  # of every item that is a tree
INDICATOR = "orbax.checkpoint"  # an empty file in every checkpoint of Orbax v1
STEP = 0  # of the store of a single checkpoint
_STORE, _EXPORT = "store", "export"  # in the temporary directory

# States up to this size are copied at once, and the store is opened in the background.
_SNAPSHOT_BYTES_MAX = 64 << 20
# Of these, the store is made by one thread and synced with the checkpoint, as one.
_ONE_THREAD_BYTES_MAX = 4 << 20


class Form:
    """The form in which a checkpoint is written.

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


class _Cancellation:
    """Either a checkpoint is published, or its save was cancelled before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True

    def publish(self, work: Callable[[], object]) -> None:
        with self._lock:
            if not self.cancelled:
                work()


def save(path: str | os.PathLike[str], items: Mapping[str, Any], *, overwrite: bool = False,
         metadata: Any = None, metrics: Any = None, chunks: Chunks | None = None,
         form: Form | None = None, timeout: float | None = None,
         check: Callable[[str], object] = lambda target: None,
         finished: Callable[[], object] | None = None) -> Work[None]:
    """Saves items as the checkpoint `path`, in the background. When `save` returns, the caller may
    change or donate the state. An earlier save of `path` comes to its end first. All processes of a
    run save together, and have one result. StepExistsError if `path` exists and `overwrite` is
    False; LockedError if another run saves it.

    check: called with the path on process 0, before anything is made there; raises to refuse it.
    finished: called in the background once the checkpoint is there. timeout: of `result()`.
    """
    form = form or Form()
    target = local_path(path)
    folder = target + TEMPORARY
    peers = Peers(f"saving {target!r}")
    claim = Claim(target, replace=overwrite)  # process 0 acquires it
    cancellation = _Cancellation()

    def begin() -> None:
        check(target)
        if not overwrite:
            _check_absent(target)  # before anything is made there
        durable.make_directories(os.path.dirname(target))
        durable.sweep(os.path.dirname(target))
        claim.acquire()

    def publish() -> None:
        made = claim.folder
        assert made is not None
        with durable.storage_errors(target):
            inner = _finish(made, form)
        cancellation.publish(lambda: made.commit(inner))

    def work(start: Callable[[], _store.Store]) -> None:
        if not claim.take():
            return  # the call was interrupted
        try:
            peers.all(lambda: _export(start, folder, form))
            peers.lead(publish)
        finally:
            claim.release()
        if finished is not None and not cancellation.cancelled:
            finished()

    try:
        peers.lead(begin)
        try:
            start = _snapshot(folder, dict(items), metadata, metrics, chunks, form, peers.count)
        except BaseException as error:
            peers.abort(error)
            raise
        saving = Work(lambda: work(start), timeout=timeout, cancel=cancellation.cancel)
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
    request = SaveRequest(step=STEP, if_exists=IfExists.error,
                          metadata_json=json_text(metadata, "metadata"),
                          metrics_json=json_text(metrics, "metrics"))
    if processes == 1:
        with paused():
            rows = flatten_items(trees)
            set_chunk_shapes(chunks, rows)
            held = _hold([row for item in rows for row in item.rows])
        if held is not None:

            def start() -> _store.Store:
                with contextlib.ExitStack() as closing:
                    store = closing.enter_context(
                        _open(folder, form, unpublished=held <= _ONE_THREAD_BYTES_MAX))
                    core = store._backend.files("a single checkpoint")
                    store._track(core.save(request, rows, lambda view: view)).result()
                    rows.clear()  # the views
                    closing.pop_all()
                return store

            return start
        del rows
    store = _open(folder, form)
    try:
        handle = store._put(STEP, trees, metadata=metadata, metrics=metrics, chunks=chunks)
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


def _hold(rows: list[Row]) -> int | None:
    """Copies the host arrays of rows, and puts views in the place of the others: JAX donates their
    memory to no computation while these live, and deleting an array does not touch them. Returns
    their bytes; None, and nothing changed, where it is much or on devices."""
    held: list[tuple[Row, Any]] = []
    nbytes = 0
    for row in rows:
        if row.tag == SHARDS:
            return None
        if row.tag in (ARRAY, JAX):
            held.append((row, to_numpy(row.data) if row.tag == JAX else row.data))
            nbytes += held[-1][1].nbytes
            if nbytes > _SNAPSHOT_BYTES_MAX:
                return None
    for row, array in held:
        row.data = array if row.tag == JAX else array.copy()
    return nbytes


def _open(folder: str, form: Form, *, unpublished: bool = False) -> _store.Store:
    path = os.path.join(folder, _STORE)
    if not unpublished:
        return _store.open(path, codec=form.codec, staging_bytes=form.staging_bytes)
    return _store.open_unpublished(path, form.codec, form.staging_bytes)


def _export(start: Callable[[], _store.Store], folder: str, form: Form) -> None:
    """Makes of the saved step what Orbax loads, and closes the store."""
    store = start()
    made = os.path.join(folder, _EXPORT)
    flat = form.layout == "flat"
    try:
        store.export(STEP, made, mode="link", layout="v0" if flat else "v1", zarr=form.zarr,
                     leaves="jax", on_unsupported="skip", file_mode=form.file_mode)
    except InvalidArgumentError as error:
        if "no leaf to export" not in str(error):
            raise
        # Nothing that Orbax can hold: a directory for the store alone.
        item = os.path.join(made, str(STEP) if flat else "", "state")
        os.makedirs(item, exist_ok=True)
        with open(os.path.join(item if flat else made, INDICATOR), "w", encoding="utf-8"):
            pass
    finally:
        with contextlib.suppress(Error):
            store.close()


def _finish(folder: durable.Folder, form: Form) -> str:
    """Makes the checkpoint complete, with the store in it; its name in the temporary directory."""
    made = os.path.join(folder.temporary, _EXPORT)
    if form.layout == "flat":
        step = os.path.join(made, str(STEP))
        (home,) = [entry.path for entry in os.scandir(step) if entry.is_dir()]
        described = os.path.join(step, CHECKPOINT_METADATA)
        made = home
    else:
        home = next(entry.path for entry in sorted(os.scandir(made), key=lambda each: each.name)
                    if entry.is_dir() and entry.name != "metrics")
        described = os.path.join(made, CHECKPOINT_METADATA)
    if os.path.exists(described):
        handlers: Any = {name: form.handlers.get(name, handler)
                         for name, handler in read_handlers(described).items()}
        if form.layout == "flat":
            handlers = next(iter(handlers.values()))
        write_handlers(described, os.path.join(made, CHECKPOINT_METADATA), handlers)
    strip(os.path.join(folder.temporary, _STORE))
    folder.rename(_STORE, os.path.relpath(os.path.join(home, STORE_NAME), folder.temporary))
    if form.file_mode is not None:
        for base, folders, _ in os.walk(made):
            for each in folders:
                os.chmod(os.path.join(base, each), _folder_mode(form.file_mode))
        os.chmod(made, _folder_mode(form.file_mode))
    return os.path.relpath(made, folder.temporary)


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
            durable.remove_tree(whole)


def read_handlers(path: str) -> dict[str, str]:
    """Orbax's names of the handlers of items, in a file _CHECKPOINT_METADATA."""
    handlers: dict[str, str] = read_json(path)["item_handlers"]
    return handlers


def write_handlers(source: str, target: str, handlers: dict[str, str] | str,
                   deleted: str = "") -> None:
    """Writes a file _CHECKPOINT_METADATA, in a temporary directory, with other handlers, and the
    export's digests with it. Other checkpoints may have links to the old ones. handlers: of the
    items that the target has; a str where it is the item itself. deleted: one that it has not any
    more."""
    described = read_json(source)
    custom = described.get("custom_metadata")
    # The facades' own, which the store has as well.
    own = custom.pop(OWN_METADATA, None) if isinstance(custom, dict) else None
    if (described["item_handlers"] == handlers and source == target and own is None
            and not deleted):
        return
    is_item = isinstance(handlers, str)
    items = list(described["item_handlers"] if isinstance(handlers, str) else handlers)
    described["item_handlers"] = handlers
    text = json.dumps(described)
    digests = carry_digests(os.path.dirname(source), items, is_item, deleted, text)
    for name, content in ((os.path.basename(target), text), (_DIGESTS, digests)):
        path = os.path.join(os.path.dirname(target), name)
        durable.remove_tree(path)
        if content is not None:
            with open(path, "x", encoding="utf-8") as file:
                file.write(content)


# ---- changing -----------------------------------------------------------------------------------


def delete_item(target: str, name: str) -> None:
    """Makes a checkpoint without the item, of links, and puts it in the place of the old one. All
    processes of a run call it."""
    made = os.path.join(target + TEMPORARY, _EXPORT)
    peers = Peers(f"deleting {name!r} of {target!r}")
    claim = Claim(target, replace=True)  # process 0 acquires it
    handlers: dict[str, str] = {}

    def copy() -> None:
        claim.acquire()  # what is there stays, now
        handlers.update(read_handlers(os.path.join(target, CHECKPOINT_METADATA)))
        handlers.pop(name, None)  # the store may have it alone
        if not handlers:
            raise InvalidArgumentError(f"{name!r} is the only item of {target!r} that Orbax reads: "
                                       "delete the checkpoint")
        durable.link_tree(target, made, skip=lambda path: path == os.path.join(target, name)
                          or os.path.basename(path) == STORE_NAME)
        inside = store_in(target)
        if inside is not None:
            # A writer changes STEPWELL in place, and nothing else that has another name.
            durable.link_tree(inside, os.path.join(made, min(handlers), STORE_NAME),
                              copied=("STEPWELL",))

    def drop() -> None:
        home = store_in(made)
        if home is not None:
            with _store.open(home) as store:
                store.delete(STEP, item=name)

    def put() -> None:
        assert claim.folder is not None
        home = store_in(made)
        if home is not None:
            strip(home)
        described = os.path.join(made, CHECKPOINT_METADATA)
        write_handlers(described, described, handlers, name)
        claim.folder.commit(_EXPORT)

    try:
        peers.lead(copy)
        peers.all(drop)
        peers.lead(put)
    finally:
        claim.release()


# ---- reading ------------------------------------------------------------------------------------


def store_in(path: str) -> str | None:
    """Returns the path of the store of a single checkpoint; None if `path` has none, or is a root
    of steps."""
    if not any(os.path.exists(os.path.join(path, name))
               for name in (CHECKPOINT_METADATA, TREE_FILE, INDICATOR)):
        return None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for folder in [path, *sorted(e.path for e in os.scandir(path) if e.is_dir())]:
            if os.path.isfile(os.path.join(folder, STORE_NAME, "STEPWELL")):
                return os.path.join(folder, STORE_NAME)
    return None


def open_store(path: str) -> _store.Store | None:
    """The store of a single checkpoint, for reading; None if it has none. Nothing is created."""
    found = store_in(path)
    return None if found is None else _store.open(found, mode="r", untrusted=True)
