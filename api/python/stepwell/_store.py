# SPDX-License-Identifier: Apache-2.0
"""open() and the Store."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, SupportsIndex, cast

from . import (_branch, _changed, _digest, _draft, _follow, _history, _overview, _stepwell,
               _tainting, _update)
from ._display import Numbers
from ._handle import SaveHandle
from ._interop import checkpoint_import
from ._interop import export as _export
from ._interop import orbax_view as _orbax_view
from ._interop import patch as _patch
from ._interop import safetensors_view as _safetensors_view
from ._lifetime import How, core_at
from ._loading import Loading
from ._pytree.chunks import Chunks
from ._pytree.has_leaf import check_has_leaf
from ._pytree.records import PathLike
from ._pytree.tree import check_called
from ._remote import pull as _pull
from ._remote import push as _push
from ._remote import push_following as _push_following
from ._remote.run_open import RunReads, is_run_place, open_run
from ._remote.transfer import without_secrets
from ._retention import RetentionReport
from ._root_metadata import metadata_bytes
from ._runtime import service
from ._runtime.arguments import (NEWEST, Disks, IfExists, NotGiven, Progress, check_mapping,
                                 if_exists_of, json_text, step_number, step_numbers,
                                 step_or_newest)
from ._runtime.files import local_path
from ._runtime.progress import progress_of
from ._runtime.prometheus import prometheus_text
from ._runtime.stats import (LoadStats, ReclaimReport, RecoveryStats, RepairReport, StoreStats,
                             dict_of, named)
from ._stepwell import SaveRequest
from ._text import brief
from ._views import StepView, Tree
from .errors import InvalidArgumentError, StoreNotFoundError
from .policy import Policy, SavePolicy

_NOT_GIVEN: Final = NotGiven("<not given>")  # a state of None is an error


def open(path: str | os.PathLike[str], mode: Literal["a", "r"] = "a", keep: Policy | None = None,
         staging_bytes: int | None = None, threads: int | None = None,
         codec: Literal["auto", "raw", "blosc"] = "auto",
         trace: str | os.PathLike[str] | None = None, reclaim_bytes_per_second: int | None = None,
         process_timeout: float = 120.0, disks: Disks = "shared", untrusted: bool = False,
         private: bool = True, branch: str | None = None, save: SavePolicy | None = None,
         metadata: Mapping[str, Any] | None = None, create: bool = True,
         delta: bool = False, statistics: bool = False, warm: bool = False,
         on_nonfinite: Literal["ignore", "warn", "error"] = "ignore",
         storage_options: Mapping[str, Any] | None = None,
         device_window_bytes: int | None = None) -> Store:
    """Opens the store in the directory `path`. Mode "a" creates the directory and its parents if
    they do not exist, unless `create` is False.

    path: with mode "r" also a run that was pushed, by `Store.push(layout="stepwell")` or
        `Store.push_following`: its URL ("s3://bucket/run1") or directory. It is read where it is: a
        load fetches the ranges of objects that it needs, and `Store.follow` and `Store.update` work
        as on a store of this machine. Nothing is kept but 32 MiB of what was read last.
        Checkpoints of it, and pushes of its steps, are made of what `Store.pull` has copied.
    mode: "a" reads and writes, and takes the store's lock; LockedError names the process that holds
        it. "r" only reads: it creates nothing, takes no lock, and works while a writer is active.
    keep: the retention policy, e.g. `policy.LatestN(20) | policy.EveryN(1000)` of
        `stepwell.policy`. Each save applies it. None keeps every step. Where the first save is to
        delete more than the place it takes, `open` warns (logger "stepwell"). With mode "r" nothing
        is deleted, and `Store.retention` says what the policy would do.
    staging_bytes: the most memory that saves use; None: 1 GiB or 1/8 of the machine's memory,
        whichever is smaller.
    threads: the number of threads that encode and decode; None: at most 4.
    codec: "raw" stores arrays uncompressed, "blosc" compresses every array (bitshuffle and LZ4),
        "auto" decides per array from a sample.
    trace: a file for a timeline of the save pipeline; `close` writes it. It has the newest 262,144
        spans, in Chrome's trace format: open it with ui.perfetto.dev or chrome://tracing. Mode "a"
        only.
    reclaim_bytes_per_second: how fast reclaim may move live data out of the way to free the space
        of deleted steps; None: 128 MiB.
    process_timeout: seconds to wait for other processes before PeerError, which names those that
        did not answer.
    disks: "shared": all processes see `path` on one file system. "local": each machine may have its
        own disk there. Stepwell does not guess, so a mistyped path is never taken for a new disk.
    untrusted: True reads a directory that may be malicious. Needs mode "r". Nothing is created in
        the directory, not even a reader's pin.
    private: True gives only the owner access to a new store and its exports (modes 0700, 0600);
        False leaves that to the umask. An existing store keeps the permissions of its file
        STEPWELL; `chmod -R g+rX` lets a group read it.
    branch: the name of a branch that `Store.branch` made; a store of its own.
    save: which steps `Store.should_save` wants saved, e.g. `policy.SaveEvery(100) |
        policy.SaveOnPreemption()`. None: every step. `Store.save` saves what it is given. Mode "a"
        only.
    metadata: JSON about the whole store, at most 1 MiB; read it as `Store.metadata`. It replaces
        what an earlier session gave; None leaves that. Durable when `open` returns. Mode "a" only.
    delta: True stores a chunk that changed as the lossless difference to the same chunk of the
        commit before, where that is smaller: weights of which few elements change between two
        steps take a fraction of their bytes. A step then consists of at most 1.5 times its bytes.
        A load reads all of these, and an export writes the step as a whole. With codec "blosc",
        larger differences pay, too, such as those of Adam's state. A save finds the step before
        in memory where `staging_bytes` has room for it; else, and in the first save of a session,
        it reads it. Any session reads steps with and without differences. Mode "a" only.
    statistics: True stores with each array its range, sum and norm, and how many of its elements
        are not finite or have changed (`LeafStatistics`), taken in the background while the array
        is encoded. `tree` and `history(statistics=True)` give them without reading an array. Mode
        "a" only.
    on_nonfinite: what happens to a step with elements that are NaN or infinite, of any array of any
        item: "warn" names leaves and counts (logger "stepwell"), "error" makes its handle raise
        InvalidArgumentError, which names them, and saves nothing of it, on no process. Both imply
        `statistics`. Steps that are imported or pulled are saved in any case. Mode "a" only.
    warm: True takes all of `staging_bytes` from the system now, in the background. Otherwise the
        first saves wait for it, longest on a virtual machine whose host has taken free memory
        back. Mode "a" only.
    storage_options: keywords for the library that opens a URL, as in `Store.push`.
    device_window_bytes: the most host memory that the copies which a save makes of arrays on
        accelerators take beside `staging_bytes`; None: 256 MiB. A larger shard is copied alone.
    create: False creates no store: a path where there is none, such as a mistyped one, is a
        StoreNotFoundError, and nothing is made there.

    Under `jax.distributed` with several processes, mode "a" is collective: every process calls
    `open`, `save`, `delete`, `pin`, `unpin`, `taint`, `untaint`, `rollback` and `close` in the same
    order, with the same path. Each process writes the shards that it owns; a step commits on all
    processes or on none. Process 0 saves metrics, and metadata and everything that is not an array
    over several processes; these must be the same on all (PeerError). Mode "r" is not collective.
    If some process cannot see process 0's files, then `load`, `load_or`, `tree`, `[step]`,
    `export`, `changed`, `history` and the slicing of arrays are collective, too. See the guide
    "Many processes".

    Raises FormatError if the directory is not a store or its format is too new. With mode "r",
    or create=False, raises StoreNotFoundError if there is no store. LockedError,
    PermissionDeniedError, NoSpaceError, StorageError (as where files cannot be locked) and
    PeerError say what keeps the store from being opened.
    """
    if mode not in ("a", "r"):
        raise InvalidArgumentError(f"mode must be 'a' or 'r', not {mode!r}")
    if codec not in _stepwell.CodecPolicy.__members__:
        names = ", ".join(_stepwell.CodecPolicy.__members__)
        raise InvalidArgumentError(f"codec must be one of {names}, not {codec!r}")
    if keep is not None and not isinstance(keep, Policy):
        raise InvalidArgumentError(
            f"keep must be a policy of stepwell.policy or None, not {keep!r}")
    if save is not None and not isinstance(save, SavePolicy):
        raise InvalidArgumentError(
            f"save must be a save policy of stepwell.policy or None, not {save!r}")
    if save is not None and mode == "r":
        raise InvalidArgumentError("save says which steps to save: it needs mode='a'")
    if metadata is not None and mode == "r":
        raise InvalidArgumentError("metadata is written: it needs mode='a'")
    data = None if metadata is None else metadata_bytes(metadata)
    if trace is not None and mode == "r":
        raise InvalidArgumentError("trace records saves: it needs mode='a'")
    for name, value in (("staging_bytes", staging_bytes), ("threads", threads),
                        ("device_window_bytes", device_window_bytes),
                        ("reclaim_bytes_per_second", reclaim_bytes_per_second)):
        if value is not None and (not isinstance(value, SupportsIndex)
                                  or operator.index(value) < 1):
            raise InvalidArgumentError(f"{name} must be an int of at least 1, not {value!r}")
    if not isinstance(process_timeout, (int, float)) or not process_timeout > 0:
        raise InvalidArgumentError(
            f"process_timeout must be a number of seconds above 0, not {process_timeout!r}")
    for name, flag in (("untrusted", untrusted), ("private", private), ("create", create),
                       ("delta", delta), ("statistics", statistics), ("warm", warm)):
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} must be True or False, not {flag!r}")
    if untrusted and mode != "r":
        raise InvalidArgumentError("a store that is not trusted can only be read: use mode='r'")
    if delta and mode == "r":
        raise InvalidArgumentError("delta says how steps are saved: it needs mode='a'")
    if on_nonfinite not in _stepwell.OnNonfinite.__members__:
        names = ", ".join(_stepwell.OnNonfinite.__members__)
        raise InvalidArgumentError(f"on_nonfinite must be one of {names}, not {on_nonfinite!r}")
    if warm and mode == "r":
        raise InvalidArgumentError("warm takes the memory of saves: it needs mode='a'")
    if mode == "r" and (statistics or on_nonfinite != "ignore"):
        raise InvalidArgumentError(
            "statistics and on_nonfinite say how steps are saved: they need mode='a'")
    if disks not in ("shared", "local"):
        raise InvalidArgumentError(f"disks must be 'shared' or 'local', not {disks!r}")
    if disks == "local" and keep is not None and any(
            rule.kind is _stepwell.KeepKind.LAST_VERIFIED for rule in keep._rules):
        raise InvalidArgumentError(
            "policy.LastVerified needs disks='shared': with disks='local' no process reads all of "
            "a step, so none can verify it")
    if mode == "r" and is_run_place(path):
        if keep is not None or branch is not None:
            raise InvalidArgumentError("keep and branch are for stores of this machine; "
                                       f"{without_secrets(os.fsdecode(path))} is a pushed run")
        run_options = _stepwell.OpenOptions()
        run_options.read_only, run_options.threads = True, threads or 0
        place, run = open_run(path, storage_options, run_options)
        return Store(How(place, True, lambda *_: run, process_timeout, None, RunReads))
    if storage_options is not None:
        raise InvalidArgumentError("storage_options are for a pushed run, which is read: "
                                   "mode='r' and its URL")
    try:
        root = local_path(path)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{without_secrets(str(error))}; a pushed run there is opened "
                                   "with mode=\"r\"") from None
    if branch is not None:
        root = _branch.path_of(root, branch)
        if not os.path.isdir(root):
            raise StoreNotFoundError(f"branch {branch!r} does not exist: {root!r}; "
                                     "store.branch(name) makes one")
    read_only = mode == "r"

    def make_core(path: str, read_only: bool, group: _stepwell.StoreGroup | None
                  ) -> _stepwell.Core:
        options = _stepwell.OpenOptions()
        options.read_only = read_only
        options.create = create or path != root
        options.untrusted, options.private_files = untrusted, private
        if path == root and keep is not None:  # parts keep what part 0 keeps
            options.keep = keep._for_engine()
        options.codec, options.delta = _stepwell.CodecPolicy[codec], delta
        options.statistics = statistics
        options.on_nonfinite = _stepwell.OnNonfinite[on_nonfinite]
        options.staging_bytes, options.threads = staging_bytes or 0, threads or 0
        options.warm = warm
        if device_window_bytes is not None:
            options.far_window_bytes = device_window_bytes
        if reclaim_bytes_per_second is not None:
            options.reclaim_bytes_per_second = reclaim_bytes_per_second
        if path == root and not read_only and trace is not None:
            options.trace_path = os.fspath(trace)
        options.group = group
        return core_at(path, options)

    store = Store(How(root, read_only, make_core, process_timeout, disks))
    if save is not None or data is not None:
        store._begin(save, data)
    if keep is None and not read_only:
        service.logger.info("%s: keeps every step; open(keep=stepwell.policy.LatestN(n)) deletes "
                            "old ones", root)
    return store


def open_unpublished(path: str, codec: str, staging_bytes: int | None) -> Store:
    """Makes a small store in the temporary directory of a durable.Folder, whose `commit` syncs it.
    The calling thread does all its work. Close it before."""

    def make_core(path: str, read_only: bool, group: _stepwell.StoreGroup | None
                  ) -> _stepwell.Core:
        options = _stepwell.OpenOptions()
        options.unpublished = True
        options.codec, options.staging_bytes = _stepwell.CodecPolicy[codec], staging_bytes or 0
        return core_at(path, options)

    return Store(How(path, False, make_core, 1.0, None))


class Store(Loading):
    """A checkpoint store; made by `stepwell.open`. Thread-safe. A context manager that closes."""

    _repr_html_ = _overview.repr_html

    def _settle(self) -> None:
        super()._settle()
        _draft.settle(self)

    # ---- saving ----

    def save(self, step: SupportsIndex, state: Any = _NOT_GIVEN, *,
             items: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None,
             metrics: Mapping[str, Any] | None = None, if_exists: IfExists = "error",
             chunks: Chunks | None = None, hold: bool = False) -> SaveHandle:
        """Saves a step asynchronously. When `save` returns, you may change or donate the state.

        step: 0 … 2^63 − 1, in any order.
        state: any pytree; it becomes the item "state". Functions, and the parts of an Equinox
            module that are not data, are not saved. Dataclasses are saved by field, objects with
            get_state() and set_state() as what get_state() returns, NumPy's random generators as
            their state.
        items: more items, a dict from names to pytrees.
        metadata, metrics: JSON; read them as `store[step].metadata` and `.metrics`.
        if_exists: "error", "replace" (the old step stays until the new one is committed) or "skip".
        chunks: a `ChunkShape` for all arrays, or a dict from paths and globs to `ChunkShape`s, of
            which the first match applies. Set it if readers will load slices that differ from the
            saved shards. None: chunks of about 1 MiB that do not cross the borders of shards.
        hold: for arrays on accelerators. False: `save` waits until the store has copies of them,
            except of those that it knows for unchanged, so they may be donated. True: it returns
            before, and they are copied in the background. Then donate or delete none of them before
            the handle is done: if you do, the handle raises Error, and the step is not saved.
            Arrays on the CPU are never waited for, except NumPy arrays, which are copied.

        A sharded array is saved shard by shard, without gathering it; replicas are saved once.
        Arrays that share memory with NumPy (`jax.device_put` of an aligned ndarray on CPU) are read
        in the background: do not change that memory.

        Chunks that the newest step has already, with the same content, are not written again, and a
        `jax.Array` that was saved at the same place before is not read again.

        Raises, before any I/O: StepExistsError, UnsupportedLeafError with every leaf that cannot be
        saved, StepPinnedError (replacing a pinned step), InvalidArgumentError (also for a state
        without a leaf, such as None). `save` or the handle may raise NoSpaceError; only this save
        fails then.

        The handle raises OutcomeUnknownError if the disk or process 0 failed during the commit: the
        step may or may not have been saved. To find out, close the store and open it again. Then
        save the step again with if_exists="skip" (keeps it if it was saved) or "replace". After any
        other error the step was not saved, and the step that it was to replace is unchanged.

        `save` blocks while `staging_bytes` are in use or three saves are in flight. Ctrl-C ends the
        wait with KeyboardInterrupt, and an exception from a signal handler ends it with that
        exception; in both cases this step is not saved. A signal handler that runs during the wait
        may read the store. While the step is being copied, a handler that changes or closes the
        store gets an Error.
        """
        self._check()
        number = step_number(step)
        self._check_writable()
        existing = if_exists_of(if_exists)
        trees: dict[str, Any] = {} if state is _NOT_GIVEN else {"state": state}
        check_mapping(items, "items", "from names to pytrees")
        for name, tree in (items or {}).items():
            if not isinstance(name, str) or not name:
                raise InvalidArgumentError(
                    f"an item's name must be a non-empty str, not {brief(name)}")
            if name in trees:
                raise InvalidArgumentError("items has a 'state', but a state is given as well")
            trees[name] = tree
        for name, tree in trees.items():
            check_called(tree, "the state" if name == "state" else f"item {name!r}")
        if not trees:
            raise InvalidArgumentError("save needs a state or items")
        check_has_leaf(trees)
        # A thread that makes copies does not get into an interpreter that has ended.
        far_behind = bool(hold) and not service.is_ending()
        return self._save(SaveRequest(
            step=number, if_exists=existing, metadata_json=json_text(metadata, "metadata"),
            metrics_json=json_text(metrics, "metrics"), far_behind=far_behind), trees, chunks)

    def _put(self, step: int, items: Mapping[str, Any], *, metadata: Any = None,
             metrics: Any = None, replace: bool = False, chunks: Chunks | None = None,
             retire: Sequence[int] = ()) -> SaveHandle:
        """Saves items of a facade, which may have no leaf. `retire`: as Backend.save's."""
        self._check()
        self._check_writable()
        return self._save(SaveRequest(
            step=step, if_exists=if_exists_of("replace" if replace else "error"),
            metadata_json=json_text(metadata, "metadata"),
            metrics_json=json_text(metrics, "metrics"), retire=retire), dict(items), chunks)

    import_checkpoint = checkpoint_import.import_checkpoint
    import_checkpoints = checkpoint_import.import_checkpoints
    orbax_view = _orbax_view.orbax_view

    # ---- reading ----

    def __getitem__(self, step: SupportsIndex) -> StepView:
        """Looks into a step without loading it. `store[-1]` is the newest step, `store[-2]` the
        one before it, tainted ones not counted. Raises StepNotFoundError."""
        return StepView(self._source_at(step))

    def tree(self, step: SupportsIndex | None = NEWEST) -> Tree:
        """Paths, shapes and dtypes of a step, by default of the newest; printing it gives a table,
        and its `table()` all of a long one."""
        source = self._source(step_or_newest(step))
        return Tree(source.tree, source.step)

    changed = _changed.changed
    digest = _digest.digest
    verify = _digest.verify
    history = _history.history
    follow = _follow.follow
    update = _update.update

    # ---- upkeep ----

    def delete(self, steps: SupportsIndex | Iterable[SupportsIndex], *, item: str | None = None,
               items: Iterable[str] | None = None) -> None:
        """Deletes one step or several, or only items of them; durable when it returns.

        item, items: names of items, e.g. `delete([1, 2], item="opt_state")`; the steps stay
            with what else they have. An item that a step does not have is PathNotFoundError, and
            one item at least must be left (InvalidArgumentError).

        Raises StepNotFoundError when a step is not there, StepPinnedError when a whole step is
        pinned; nothing was deleted then. Items of pinned steps may be deleted. Each step's items go
        at once; an error of the disk may leave some steps done and others not. OutcomeUnknownError
        as from `save`.
        """
        self._check()
        numbers = step_numbers(steps)
        names = list(dict.fromkeys([*([] if item is None else [item]), *(items or [])]))
        self._check_writable()
        if item is None and items is None:
            if numbers:
                self._backend.change("delete", numbers, [])
            return
        if isinstance(items, str) or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError("item must be one name, items a list of names")
        if numbers and names:
            self._backend.change("delete", numbers, names)

    def pin(self, *steps: SupportsIndex | Iterable[SupportsIndex]) -> None:
        """Keeps steps whatever the policy says, until `unpin`: `pin(100)`, `pin(1, 2)`,
        `pin(range(10))`. Durable when it returns. Pinned steps are neither deleted nor replaced
        (StepPinnedError). Pinning twice is one pin. StepNotFoundError, with nothing pinned, when
        one of them is not there."""
        self._set_pinned(steps, True)

    def unpin(self, *steps: SupportsIndex | Iterable[SupportsIndex]) -> None:
        """Undoes `pin`; durable when it returns. The policy decides with the next save."""
        self._set_pinned(steps, False)

    def _set_pinned(self, steps: tuple[SupportsIndex | Iterable[SupportsIndex], ...],
                    pinned: bool) -> None:
        self._check()
        numbers = [number for each in steps for number in step_numbers(each)]
        self._check_writable()
        if numbers:
            self._backend.change("pin" if pinned else "unpin", numbers, [])

    taint = _tainting.taint
    untaint = _tainting.untaint
    rollback = _tainting.rollback

    def pinned_steps(self) -> list[int]:
        """Numbers of the pinned steps, ascending."""
        self._check()
        return [summary.step for summary in self._backend.steps() if summary.pinned]

    def reclaim(self) -> ReclaimReport:
        """Gives back all the space of dead steps that can be given back now, and waits for it. The
        store does so by itself in the background; call this to have it done. Ctrl-C ends the wait,
        not the work."""
        self._check()
        self._check_writable()
        return named(ReclaimReport, self._backend.writer.reclaim())

    def repair(self, *, accept: bool = False) -> RepairReport:
        """Writes damaged records of steps anew, from their second copies or the index.

        Where a record of the log is lost for good, what it did is not known: a step from before
        may have been replaced, deleted or pinned by it. Such a step is not loaded, nothing is
        deleted by rules, and no space is given back, until `accept=True` takes what is there as it
        is.
        """
        self._check()
        self._check_writable()
        return named(RepairReport, self._backend.writer.repair(accept))

    export = _export.export
    export_patch = _patch.export_patch
    safetensors_view = _safetensors_view.safetensors_view
    push = _push.push
    push_following = _push_following.push_following
    pull = _pull.pull
    branch = _branch.branch
    branches = _branch.branches
    draft = _draft.draft

    def stats(self) -> StoreStats:
        """Numbers about the store, a dict: see `stepwell.StoreStats` for each. A notebook shows a
        table of them."""
        self._check_open()
        stats = self._backend.stats()
        return cast(StoreStats, Numbers(dict_of(
            StoreStats, stats, last_load=dict_of(LoadStats, self._last_load),
            index=stats.index_state, recovery=dict_of(RecoveryStats, self._backend.recovery()),
            verification=self._verification())))

    def retention(self) -> RetentionReport:
        """Which part of the policy keeps each step, and what goes with the next save.

        In a store open for reading: by `keep`, to see what a policy would do, else by the policy
        of the last program that saved here, also while that runs. With `disks="local"` all
        processes call this together.
        """
        self._check_open()
        return RetentionReport.of(self._backend.retention())

    def frees_bytes(self, *steps: SupportsIndex | Iterable[SupportsIndex]
                    ) -> dict[int, int | None]:
        """Returns the bytes that deleting each of these steps alone would free, or of all steps if
        none is given: those of the chunks that no other step has. So each of two equal steps frees
        0.

        None for a step whose records, or those of one that has chunks in the same files, cannot be
        read. StepNotFoundError when one is not there. It reads the records of these steps, for all
        steps those of all, and no arrays. Of steps of several processes: process 0's part, and
        with `disks="local"` this process's.
        """
        self._check_open()
        numbers = [number for each in steps for number in step_numbers(each)]
        return self._backend.frees_bytes(numbers) if numbers or not steps else {}

    def prometheus(self) -> str:
        """The numbers of `stats` in Prometheus' text format, with the label `store` for the path.
        Serve it over HTTP, or write it to a file for node_exporter's textfile collector."""
        return prometheus_text(self.stats(), self.path, self.latest)
