# SPDX-License-Identifier: Apache-2.0
"""open() and the Store."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, SupportsIndex, cast

from . import _stepwell
from ._handle import SaveHandle
from ._interop import checkpoint_import
from ._interop import orbax_view as _orbax_view
from ._interop.export_options import (ExportReport, ExportRequest, Layout, Leaves, Mode,
                                      OnUnsupported, To)
from ._lifetime import OpenStore
from ._load.like import load_like
from ._load.plain import load_leaves, load_node, load_step
from ._load.source import Source
from ._load.specs import assign
from ._pytree.chunks import Chunks
from ._pytree.records import ROOT, PathLike
from ._pytree.tree import check_called
from ._remote import pull as _pull
from ._remote import push as _push
from ._runtime import service
from ._runtime.arguments import (Disks, IfExists, Progress, check_mapping, check_path,
                                 if_exists_number, json_text, problem_path, step_number,
                                 step_numbers)
from ._runtime.gc_pause import paused
from ._runtime.stats import (LoadStats, ReclaimReport, RepairReport, StoreStats, VerifyProblem,
                             VerifyReport, named)
from ._runtime.text import brief
from ._views import StepView, Tree
from .errors import (CorruptionError, InvalidArgumentError, Mismatch, MismatchError,
                     StepNotFoundError)
from .policy import Policy

_CODECS = {"auto": 0, "raw": 1, "blosc": 2}


class _Missing:
    def __repr__(self) -> str:
        return "<not given>"


_MISSING: Final = _Missing()


def open(path: str | os.PathLike[str], mode: Literal["a", "r"] = "a", keep: Policy | None = None,
         staging_bytes: int | None = None, threads: int | None = None,
         codec: Literal["auto", "raw", "blosc"] = "auto",
         trace: str | os.PathLike[str] | None = None, reclaim_bytes_per_second: int | None = None,
         process_timeout: float = 120.0, disks: Disks = "shared", untrusted: bool = False,
         private: bool = True) -> Store:
    """Opens a store, a directory; mode "a" creates it where there is none, and those above it.

    mode: "a" reads and writes and takes the store's lock (LockedError names the process that has
        it); "r" only reads, never creates, takes no lock, and works beside a live writer.
    keep: which steps to keep, e.g. `policy.LatestN(20) | policy.EveryN(1000)` of
        `stepwell.policy`; None keeps all. Applied with each save.
    staging_bytes: bound of the memory for saves; None: the smaller of 1 GiB and 1/8 of memory.
    threads: how many threads encode and decode; None: at most 4.
    codec: "raw" stores arrays as they are, "blosc" always compresses (bitshuffle and LZ4), "auto"
        decides per array from a sample.
    trace: a file for what the save pipeline did when, written at close (the newest 262,144 spans),
        in Chrome's trace format: open it with ui.perfetto.dev or chrome://tracing. Mode "a" only.
    reclaim_bytes_per_second: moved at most to give the space of dead steps back; None: 128 MiB.
    process_timeout: seconds to wait for other processes; PeerError then names the silent ones.
    disks: "shared", the path is on a file system that all processes see; or "local", each machine
        may have a disk of its own there. Not guessed: a wrong path is not taken for a new disk.
    untrusted: mode "r" of a directory that may do harm: nothing is made in it, pins neither.
    private: a new store, and exports of it, are its owner's alone (0700, 0600); False: as the umask
        has it. A store that is there goes on as its file STEPWELL is (`chmod -R g+rX`).

    Under `jax.distributed` with several processes, mode "a" is collective: every process calls it,
    and `save`, `delete`, `pin`, `unpin` and `close`, in the same order, with the same path. Each
    writes the shards that it owns; a step commits on all processes or on none. Process 0 saves
    metadata, metrics and everything that is not a jax.Array. Mode "r" is not collective. Where a
    process does not see process 0's files, all call `load`, `load_or`, `tree`, `[step]`, `export`
    and slice arrays in the same order, too. The guide "Many processes" has more.

    Raises FormatError for a directory that is not a store or too new a format, StoreNotFoundError
    for mode "r" where there is none, LockedError, PermissionDeniedError, NoSpaceError, PeerError.
    """
    if mode not in ("a", "r"):
        raise InvalidArgumentError(f"mode is 'a' or 'r', not {mode!r}")
    if codec not in _CODECS:
        raise InvalidArgumentError(f"codec is one of {', '.join(_CODECS)}, not {codec!r}")
    if keep is not None and not isinstance(keep, Policy):
        raise InvalidArgumentError(f"keep is a policy of stepwell.policy or None, not {keep!r}")
    if trace is not None and mode == "r":
        raise InvalidArgumentError("a trace is of saves: mode 'r' has none")
    for name, value in (("staging_bytes", staging_bytes), ("threads", threads),
                        ("reclaim_bytes_per_second", reclaim_bytes_per_second)):
        if value is not None and (not isinstance(value, SupportsIndex)
                                  or operator.index(value) < 1):
            raise InvalidArgumentError(f"{name} is an int of at least 1, not {value!r}")
    if not isinstance(process_timeout, (int, float)) or not process_timeout > 0:
        raise InvalidArgumentError(
            f"process_timeout is a number of seconds above 0, not {process_timeout!r}")
    for name, flag in (("untrusted", untrusted), ("private", private)):
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} is True or False, not {flag!r}")
    if untrusted and mode != "r":
        raise InvalidArgumentError("a store that is not trusted can only be read: mode='r'")
    if disks not in ("shared", "local"):
        raise InvalidArgumentError(f"disks is 'shared' or 'local', not {disks!r}")
    root = os.fsdecode(path)
    if "://" not in root:  # else the engine refuses it
        root = os.path.abspath(root)
    read_only = mode == "r"

    def make_core(path: str, read_only: bool, group: tuple[bytes, int] | None) -> _stepwell.Core:
        own = path == root and not read_only  # parts keep what part 0 keeps
        return _stepwell.Core(
            os.fsencode(path).decode("utf-8", "surrogateescape"), read_only,
            keep._for_engine() if own and keep is not None else [], staging_bytes or 0,
            threads or 0, _CODECS[codec], os.fspath(trace) if own and trace is not None else "",
            reclaim_bytes_per_second, group, untrusted, private)

    store = Store(root, read_only, make_core, process_timeout, disks)
    if keep is None and not read_only:
        service.logger.info("%s: keeps every step; open(keep=stepwell.policy.LatestN(n)) deletes "
                            "old ones", root)
    return store


class Store(OpenStore):
    """A checkpoint store; made by `stepwell.open`. Thread-safe. A context manager that closes."""

    # ---- saving ----

    def save(self, step: SupportsIndex, state: Any = _MISSING, *,
             items: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None,
             metrics: Mapping[str, Any] | None = None, if_exists: IfExists = "error",
             chunks: Chunks | None = None) -> SaveHandle:
        """Saves a step; asynchronous. When it returns, the state may be changed or donated.

        step: 0 … 2^63 − 1, in any order.
        state: any pytree; it becomes the item "state". Functions in it, and whatever is not data
            in an Equinox module, are left out.
        items: further items by name; each is a pytree of its own.
        metadata, metrics: JSON, seen as `store[step].metadata` and `.metrics`.
        if_exists: "error", "replace" (the old step stays until the new one is committed) or "skip".
        chunks: a `ChunkShape` for all arrays, or a dict from paths and globs (the first that fits
            counts) to them, for readers of other slices than were saved. None: chunks of
            about 1 MiB that keep the borders of shards.

        A sharded array is saved shard by shard, each distinct one once; nothing is gathered.
        Arrays that JAX shares with NumPy memory (`jax.device_put` of an aligned ndarray on CPU) are
        read in the background: do not change that memory before the handle is done.

        Raises, before any I/O: StepExistsError, UnsupportedLeafError with every leaf that cannot be
        saved, StepPinnedError (replacing a pinned step), InvalidArgumentError. NoSpaceError
        may come from here or from the handle; it fails this save alone.

        OutcomeUnknownError, from the handle: the disk failed (or process 0 did) while the step was
        being committed, so it may be there. Close the store, open it again, which decides, and
        save the step again with if_exists="skip" (it stays if it is there) or "replace". After any
        other error the step is not there, and what it was to replace is.

        Waits while `staging_bytes` are in use or three saves are in flight. Ctrl-C ends that wait:
        KeyboardInterrupt, and this step is not saved; so does whatever a signal's handler raises. A
        handler that runs meanwhile may read the store; while the step is being copied, changing or
        closing it is an Error.
        """
        self._check()
        number = step_number(step)
        self._check_writable()
        existing = if_exists_number(if_exists)
        trees: dict[str, Any] = {} if state is _MISSING else {"state": state}
        check_mapping(items, "items", "from names to pytrees")
        for name, tree in (items or {}).items():
            if not isinstance(name, str) or not name:
                raise InvalidArgumentError(
                    f"an item's name is a str that is not empty, not {brief(name)}")
            if name in trees:
                raise InvalidArgumentError("items has a 'state', and a state is given, too")
            trees[name] = tree
        for name, tree in trees.items():
            check_called(tree, "the state" if name == "state" else f"item {name!r}")
        if not trees:
            raise InvalidArgumentError("save needs a state or items")
        return self._save(number, trees, json_text(metadata, "metadata"),
                          json_text(metrics, "metrics"), existing, chunks)

    import_checkpoint = checkpoint_import.import_checkpoint
    import_checkpoints = checkpoint_import.import_checkpoints
    orbax_view = _orbax_view.orbax_view

    # ---- reading ----

    def __getitem__(self, step: SupportsIndex) -> StepView:
        """Looks into a step without loading it. Raises StepNotFoundError."""
        return StepView(self._source(step))

    def tree(self, step: SupportsIndex | None = None) -> Tree:
        """Paths, shapes and dtypes of a step (None: the newest); printing it gives a table, and its
        `table()` all of a long one."""
        source = self._source(step)
        return Tree(source.tree, source.step)

    def load(self, step: SupportsIndex | None = None, path: PathLike | None = None, *,
             like: Any = _MISSING, mesh: Any = None, specs: Any = None, cast: bool = False) -> Any:
        """Loads a step (None: the newest), or what is at `path` in it.

        A leaf gives the leaf, a node its subtree, a glob a flat dict by path. Only the chunks of
        what is asked for are read, each once.

        Without `like`: NumPy (ml_dtypes) arrays and Python values in dicts, lists and tuples;
        namedtuples, dataclasses and States come as dicts, typed PRNG keys as their uint32 data. But
        a jax array that was saved over a mesh of several devices comes back on that sharding (keys
        as keys) where JAX is imported and has all these devices.
        With `like`, a tree of the same structure with concrete or abstract leaves (for a glob: a
        flat dict by path): that structure, each leaf being what `like` has there: jax arrays with
        its sharding, NumPy arrays, Python scalars (also from a 0-d array of their kind, and the
        other way round). Dtypes are compared after JAX's canonicalisation. Where neither `like`
        nor the step has a leaf, containers may differ: Orbax keeps but None of an optax.EmptyState.
        A leaf that one of them lacks is an error. Shardings over an AbstractMesh, as jax.eval_shape
        gives, are over the mesh that jax.set_mesh has set. A Variable of NNX takes what was saved
        from one, and what Orbax keeps of one, a node with the key `value`.
        With `mesh`, a jax.sharding.Mesh or a dict of axis names to sizes (then over the first
        devices of `jax.devices()`), every array becomes a jax array over it, typed keys become
        keys, and Python values stay what they are. `specs` says how arrays are split:
            {"params/**": P("model", None), "opt_state": P("data")}
                paths or globs in the step (a node means all below it); where several take a leaf
                the first one in the dict counts, so put the special ones first;
            P("data")
                for all;
            {"params": {"kernel": P(None, "model")}, "step": None}
                a tree, of what is loaded, down to where one spec holds for all below.
        None as a spec, and leaves without one, mean replicated. With `like`, too, mesh and specs
        say where the jax arrays of `like` go.

        Each device's part is read into memory of its own, never the whole array, unless it is whole
        on some device; a part that several devices hold is read once.

        cast: dtypes that differ are converted, as NumPy's astype does (never complex to real);
            without `like`, 64-bit types where JAX has none. Default: MismatchError.

        Raises StepNotFoundError, PathNotFoundError (also for specs that take nothing),
        AmbiguousPathError, MismatchError with every leaf that does not fit, InvalidArgumentError,
        CorruptionError.
        """
        check_called(like, "like")
        source = self._source(step)
        check_path(path)
        return source.all_or_none(lambda: self._load(source, path, like, mesh, specs, cast))

    def _load(self, source: Source, path: PathLike | None, like: Any, mesh: Any, specs: Any,
              cast: bool) -> Any:
        if mesh is None and specs is not None:
            raise InvalidArgumentError("specs need a mesh")
        if mesh is not None:
            source.tree  # noqa: B018 - all of the step, which specs speak of
        elif like is _MISSING and (path is None or path in ("", ())):
            return load_step(source)
        with paused():
            source, selection = source.select(path, whole=True)
            tree = source.tree
            leaves = (selection.leaves if selection.number is None
                      else list(tree.leaves(selection.number)))
            shardings: dict[int, Any] = {}
            if mesh is not None:
                top = ROOT if selection.number is None else selection.number
                shardings = assign(tree, source.step, top, leaves, mesh, specs)
        if like is not _MISSING:
            if selection.number is None:
                return self._load_flat(source, leaves, like, cast, shardings)
            (loaded,) = load_like(source, [(like, selection.number)], cast, shardings)
            return loaded
        over = shardings if mesh is not None else None
        if selection.number is not None:
            number = None if selection.number == ROOT else selection.number
            return load_node(source, tree.table, number, over, cast)
        names = tree.by_text(leaves)
        values = load_leaves(source, leaves, over, cast)
        return dict(zip(names, values, strict=True))

    def _load_flat(self, source: Source, leaves: list[int], like: Any, cast: bool,
                   shardings: Mapping[int, Any]) -> dict[str, Any]:
        """A glob with `like`, a flat dict by path."""
        tree = source.tree
        if not isinstance(like, Mapping):
            raise InvalidArgumentError("with a glob, `like` is a flat dict by path")
        stored = tree.by_text(leaves)
        bad = [Mismatch(name, f"stored {tree.describe(stored[name])}, not in `like`")
               for name in stored if name not in like]
        bad += [Mismatch(name, "not among what the pattern takes")
                for name in like if name not in stored]
        if bad:
            raise MismatchError(f"step {source.step}: {len(bad)} paths differ from `like`:", bad)
        loaded = load_like(source, [(like[name], n) for name, n in stored.items()], cast, shardings)
        return dict(zip(stored, loaded, strict=True))

    def load_or(self, init: Any) -> tuple[Any, int]:
        """The newest step as `load(like=init)` gives it and its number + 1; (init, 0) when the
        store has no step. A step that is damaged or does not fit raises: never a silent fallback.
        """
        check_called(init, "init")
        latest = self._latest_of_all()
        if latest is None:
            problems = cast(list[str], self._backend.recovery()["problems"])  # of headers, too
            if problems:
                raise CorruptionError(f"{self.path!r} has no step, and may have lost some: "
                                      f"{problems[0]}; `stepwell repair` says more")
            return init, 0
        try:
            return self.load(latest, like=init), latest + 1
        except StepNotFoundError:
            if self._backend.collective_reads or self._backend.newest() == latest:
                raise
        return self.load_or(init)  # as in _source

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
            raise InvalidArgumentError("item is the name of an item, items are several")
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

    def export(self, step: SupportsIndex | None, dest: str | os.PathLike[str], *,
               to: To = "orbax", mode: Mode = "auto", zarr: Literal[2, 3] = 3,
               path: PathLike | None = None, layout: Layout = "v1", leaves: Leaves | None = None,
               step_prefix: str | None = None, step_digits: int = 0, unnamed_default: bool = False,
               on_unsupported: OnUnsupported = "error", file_mode: int | None = None,
               progress: Progress | None = None) -> ExportReport:
        """Makes a step (None: the newest) a directory that Orbax and TensorStore read as their own,
        or a file of arrays.

        With local disks (`open(disks="local")`) all processes call it alike, and `dest` is on a
        file system that all of them see. The export copies, makes no archive, and calls `progress`
        in each process for its own part. With a shared disk any process may call it. Where several
        call it alike, the first one exports and calls `progress`; all return its report or raise
        its error.

        For Orbax nothing is decoded or loaded: the stored chunks are zarr chunks already. The
        export does not change when the store goes on, and deleting it does the store no harm.
        Ctrl-C stops it, and nothing is left.

        to: "orbax", or "safetensors" or "npz": then `dest` is a file, which must not exist; memory
            is bounded, whatever the step's size. Names in it are paths joined by "/" ("params/w";
            with the item first unless "state" is the only one, and below `path`). Safetensors get
            the step's metadata as strings, "stepwell.step" and "stepwell.metrics"; npz has no
            place for them. Only `path` and `on_unsupported` are for these, too: containers are
            gone, Python's numbers, PRNG keys and element types that the format lacks are
            unsupported but can be widened (to arrays of rank 0, to uint32 data, to the next wider
            type of NumPy's), None and texts can only be skipped.
        dest: with layout "v1" the checkpoint, which must not exist; with "v0" the root of a
            CheckpointManager, made if need be, in which the step gets its directory.
        mode: "link" makes hard links of whole segments: at once, for the same file system; a copy
            of the directory later copies the whole segments. "reflink" shares the step's blocks
            (XFS, btrfs), "copy" copies them. "auto": the first of them that is possible; links only
            for a whole step and where owner and permissions are those of new files.
        zarr: the version of zarr. With 3 readers check every chunk's checksum.
        path: the subtree or leaf that is to be the whole tree.
        leaves: "numpy" for arrays that load on any machine, "jax" for those that were jax.Array to
            be so again, which without a target needs the devices that they were on. None: "jax" if
            JAX is imported and has all these devices, else "numpy". Typed PRNG keys are always
            keys; with "numpy" they load, without a target, onto all devices of the loading process.
        step_prefix, step_digits, unnamed_default: for "v0": `ckpt` and 8 make ckpt_00000007; a
            single item is called "default", as managers without item names expect.
        on_unsupported: what Orbax cannot hold (bytes, complex, integers beyond 64 bits, uint4,
            uint2, float8_e4m3, names that it cannot tell apart) is an "error" that lists all
            of it before anything is written, left out ("skip"), or gets the next wider type
            ("widen"; an error where there is none).
        file_mode: permissions of its files (0o644), for readers under another user; None: the
            umask's. With links, the store's own segments become readable for them.
        progress: called now and then with bytes done and all bytes. What it raises ends the export.

        Raises StepNotFoundError, PathNotFoundError, InvalidArgumentError (on what Orbax cannot
        hold, too), StepExistsError when the destination is there, NoSpaceError, and Error when the
        mode is not possible there.
        """
        self._check()
        target = os.fsencode(os.path.abspath(os.fsdecode(dest))).decode("utf-8", "surrogateescape")
        request = ExportRequest(step, to, target, mode, zarr, path, layout, leaves,
                                step_prefix or "", step_digits, unnamed_default, on_unsupported,
                                file_mode)
        return self._backend.export(request, self._step, self._source, progress)

    push = _push.push
    pull = _pull.pull

    def verify(self, step: SupportsIndex | None = None) -> VerifyReport:
        """Reads every chunk of a step (None: of all) and checks every checksum. Damage, and what
        could not be read, is in the report, not raised. Ctrl-C stops it. Where the parts of several
        processes lie on disks of several machines, each checks its own."""
        self._check()
        report = self._backend.verify(None if step is None else step_number(step))
        return named(VerifyReport, report)._replace(problems=[
            VerifyProblem(problem.step, problem_path(problem.item, problem.path), problem.file,
                          problem.offset_bytes, problem.message, problem.unchecked)
            for problem in report.problems])

    def stats(self) -> StoreStats:
        """Numbers about the store, a dict: see `stepwell.StoreStats` for each."""
        self._check_open()
        return cast(StoreStats, {**self._backend.stats(), "recovery": self._backend.recovery(),
                                 "last_load": {name: getattr(self._last_load, name)
                                               for name in LoadStats.__annotations__}})
