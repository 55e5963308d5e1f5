# SPDX-License-Identifier: Apache-2.0
"""Loads: the methods of Store that read arrays."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self, SupportsIndex
from typing import cast as cast_  # `cast` is an argument of load

from . import _stepwell
from ._interop.temporary_import import imported
from ._lifetime import OpenStore
from ._load.casts import Casting
from ._load.handle import LoadHandle
from ._load.plain import As
from ._load.request import LoadRequest, Missing, OnCorrupt, Unexpected
from ._load.source import Source
from ._pytree.records import PathLike
from ._pytree.tree import check_called
from ._renaming import Rename
from ._runtime import monitoring, service
from ._runtime.arguments import NEWEST, Progress, step_number, step_or_newest
from ._runtime.files import local_path
from ._runtime.progress import progress_of
from ._text import brief
from .errors import CorruptionError, InvalidArgumentError, StepNotFoundError

_INSIDE = ".stepwell"  # a store in a directory of Orbax's


class _StateAndStep(NamedTuple):
    state: Any
    next_step: int


class Resumed(_StateAndStep):
    """What a run goes on with; a tuple of two: `state, next_step = store.load_or(init)`.

    state: the loaded state, or `init`.
    next_step: the number of the loaded step + 1; 0 without one.
    skipped: the steps above the loaded one, by number, ascending, and why each was passed over: the
        reason of its taint, or what is damaged.
    """

    skipped: dict[int, str]

    def __new__(cls, state: Any, next_step: int, skipped: Mapping[int, str] = MappingProxyType({})
                ) -> Self:
        made = super().__new__(cls, state, next_step)
        made.skipped = dict(sorted(skipped.items()))
        return made

    def _replace(self, **fields: Any) -> Self:
        made = super()._replace(**fields)  # past __new__
        made.skipped = dict(self.skipped)
        return made

    __replace__ = _replace  # copy.replace, from Python 3.13 on

    def __repr__(self) -> str:
        skipped = f", skipped={self.skipped!r}" if self.skipped else ""
        return f"Resumed(state={self.state!r}, next_step={self.next_step}{skipped})"


class _Loaded(NamedTuple):
    tree: Any
    step: int
    damaged: dict[int, str]  # steps above it


class Loading(OpenStore):
    """A store whose steps can be loaded."""

    def load(self, step: SupportsIndex | None = NEWEST, path: PathLike | None = None, *,
             like: Any = None, mesh: Any = None, specs: Any = None,
             items: Iterable[str] | None = None, as_: As = "numpy", cast: Casting = False,
             missing: Missing = "error", unexpected: Unexpected = "error",
             rename: Rename | None = None, on_corrupt: OnCorrupt = "raise",
             progress: Progress | bool | None = None) -> Any:
        """Loads a step, by default the newest that is not tainted, or the part of it at `path`.

        The path of a leaf returns the leaf, the path of a node its subtree, and a glob a flat dict
        by path. Only the chunks that this needs are read, each once.

        Without `like`, `load` returns arrays and Python values in dicts, lists and tuples.
        Namedtuples, dataclasses and States come back as dicts. `as_` says what arrays are:
            "numpy": NumPy (ml_dtypes) arrays, on every machine;
            "jax": an array that was saved from a jax.Array is one again: with its sharding if
                all of its devices are here, else on the default device.
        Typed PRNG keys come back as keys if JAX is imported, else as their uint32 data.

        With `like`, a tree with concrete or abstract leaves (for a glob: a flat dict by path),
        `load` returns the structure of `like`. Each leaf takes the type that it has in `like`: a
        jax array with the same sharding, a NumPy array, or a Python scalar. A Python scalar also
        loads from a 0-d array of its kind, and the other way round. Dtypes are compared after JAX's
        canonicalization; a 64-bit integer that then does not fit is a MismatchError. Where `like`
        has `...`, nothing is loaded and `...` stays. A leaf that only `like` or only the step has
        is an error, unless:

        missing: "target": a leaf, or an item, that the step lacks, or has None for, is taken from
            `like`, which must have a value for it.
        unexpected: "ignore": what only the step has, or `like` has None for, is left out, and not
            read.
        rename: a dict from stored paths to paths in `like`, e.g. {"encoder": "model/encoder",
            "layer_*/w": "layer_*/kernel"}; both are relative to what is loaded. A node moves with
            all below it; wildcards stand for the same text on both sides. Or a function, or rules
            that also transpose arrays, take them apart and join them: see `stepwell.rename`.

        Containers without leaves may always differ, because Orbax stores an optax.EmptyState as
        None. A sharding over an AbstractMesh, as from jax.eval_shape, uses the mesh set by
        jax.set_mesh. An NNX Variable loads from a saved Variable, or from a node with the key
        `value`, as Orbax stores one. An object with get_state and set_state, or a NumPy random
        generator, gets the stored state.

        items: names of items; `load` returns a dict by item name, and `like` must be one.

        With `mesh`, a jax.sharding.Mesh or a dict from axis names to sizes (it takes the first
        devices of `jax.devices()`), every array becomes a jax array over that mesh and every typed
        key a key; Python values do not change. `specs` says how to split the arrays:
            {"params/**": P("model", None), "opt_state": P("data")}
                paths or globs in the step; a node stands for everything below it. The first match
                in the dict applies, so put the more specific paths first;
            P("data")
                for every array;
            {"params": {"kernel": P(None, "model")}, "step": None}
                a tree that is a prefix of the loaded tree; a spec applies to everything below it.
        A leaf without a spec, or with the spec None, is replicated. With both `like` and `mesh`,
        mesh and specs place the jax arrays of `like`.

        Each device's part of an array is read directly into that device's buffer; the whole array
        is never assembled, unless some device holds all of it. A part that several devices hold is
        read once.

        cast: True converts dtypes that differ (never complex to real); without `like`, 64-bit types
            that JAX has disabled. Numbers are rounded; one that the dtype does not hold is a
            MismatchError that names the leaf, the index and the value. "wrap": as NumPy's astype
            does, whatever becomes of such values. False: dtypes that differ are a MismatchError.
        on_corrupt: "previous": if the newest step is damaged, loads the newest one before it that
            is whole, and logs a warning that names the damage and the step; only without a step.
            Of several processes that have the store open together, all call this, and load one
            step.
        progress: called after each 32 MiB or so with the bytes loaded and the total. True: a bar
            of tqdm or rich.

        Raises StepNotFoundError, PathNotFoundError (also for specs and renames that match nothing),
        AmbiguousPathError, MismatchError with every leaf that does not fit, InvalidArgumentError,
        CorruptionError.
        """
        number = step_or_newest(step)
        request = LoadRequest.checked(path, like, mesh, specs, items, as_, cast, missing,
                                      unexpected, rename, progress_of(progress, "load"))
        return self._load(number, request, on_corrupt).tree

    def load_async(self, step: SupportsIndex | None = NEWEST, path: PathLike | None = None, *,
                   like: Any = None, mesh: Any = None, specs: Any = None,
                   items: Iterable[str] | None = None, as_: As = "numpy", cast: Casting = False,
                   missing: Missing = "error", unexpected: Unexpected = "error",
                   rename: Rename | None = None, on_corrupt: OnCorrupt = "raise",
                   progress: Progress | bool | None = None) -> LoadHandle:
        """`load` on a thread of its own; returns a handle at once. The step is chosen, and kept
        from deletion, when this returns; `like` is looked at on that thread: do not change it
        before the result is there. The handle raises what `load` raises. With local disks loads
        are collective and have an order: InvalidArgumentError."""
        request = LoadRequest.checked(path, like, mesh, specs, items, as_, cast, missing,
                                      unexpected, rename, progress_of(progress, "load"))
        number = step_or_newest(step)
        self._check()
        if self._backend.collective_reads:
            raise InvalidArgumentError("with local disks every process loads together: call load")
        if on_corrupt == "previous" and self._backend.process_count > 1:
            raise InvalidArgumentError('on_corrupt="previous": with several processes all load '
                                       "together: call load")
        source = self._source(number)
        handle = LoadHandle(
            source.step, lambda: self._load(number, request, on_corrupt, source).tree)
        self._loads.add(handle)
        return handle

    def _load(self, step: SupportsIndex | None, request: LoadRequest, on_corrupt: OnCorrupt,
              source: Source | None = None, min_step: int = 0) -> _Loaded:
        """Loads a step, the newest for None, and none below `min_step`."""
        if on_corrupt not in ("raise", "previous"):
            raise InvalidArgumentError(
                f"on_corrupt must be 'raise' or 'previous', not {brief(on_corrupt)}")
        if on_corrupt == "previous" and step is not None:
            raise InvalidArgumentError('on_corrupt="previous" is for the newest step: give no step')
        if on_corrupt == "previous" and self._backend.collective_reads:
            raise InvalidArgumentError(
                'on_corrupt="previous" needs a disk that all processes see: one of them may not '
                "meet the damage")
        begun = time.monotonic()
        found = source or self._source(step)
        damaged: dict[int, str] = {}
        while True:
            error: CorruptionError | None = None
            try:
                loaded = found.all_or_none(functools.partial(request.run, found))
            except CorruptionError as damage:
                error = damage
            if on_corrupt == "previous" and self._backend.process_count > 1:
                error = self._damage_of_all(found.step, error)
            if error is not None:
                before = [other for other in self._backend.step_numbers(tainted=False)
                          if other < found.step]
                if on_corrupt == "raise" or not before:
                    raise error
                damaged[found.step] = str(error)
                if before[-1] < min_step:
                    raise self._below(min_step, f"step {found.step} is damaged, and the one before "
                                      f"it is step {before[-1]}") from error
                service.logger.warning("%s: step %d is damaged: %s; trying step %d", self.path,
                                       found.step, error, before[-1])
                found = self._source(before[-1])
                continue
            if damaged:
                service.logger.warning("%s: loaded step %d in place of a damaged one", self.path,
                                       found.step)
            monitoring.record(monitoring.LOAD, time.monotonic() - begun)
            return _Loaded(loaded, found.step, damaged)

    def _damage_of_all(self, step: int, error: CorruptionError | None) -> CorruptionError | None:
        """What is wrong with a step that each process has read its part of: with one that another
        process could not read, too."""
        met = self._backend.gather(int(error is not None), "whether a step is damaged")
        if error is None and any(met):
            processes = ", ".join(str(process) for process, each in enumerate(met) if each)
            return CorruptionError(f"{self.path!r}: step {step} is damaged where process "
                                   f"{processes} reads it")
        return error

    def load_or(self, init: Any, *, source: OpenStore | str | os.PathLike[str] | None = None,
                items: Iterable[str] | None = None, cast: Casting = False,
                missing: Missing = "error", unexpected: Unexpected = "error",
                rename: Rename | None = None, on_corrupt: OnCorrupt = "raise",
                min_step: SupportsIndex | None = None) -> Resumed:
        """The newest step as `load(like=init)` gives it and its number + 1; (init, 0) when the
        store has no step that is not tainted. A step that is damaged or does not fit raises: never
        a silent fallback.

        source: where a run begins whose store has no step yet: another Store, the directory of
            one, or an Orbax checkpoint. Its newest step is loaded like `init`, and the result is
            (that state, 0). `missing`, `unexpected`, `rename` and `cast` then apply to this load
            alone, because the run's own steps fit.
        items, missing, unexpected, rename, cast, on_corrupt: as in `load`. After
            on_corrupt="previous" the number is that of the loaded step + 1, so the damaged step is
            still there: save with if_exists="replace".
        min_step: a step that the run is known to have reached. StepNotFoundError when the newest
            step that can be resumed from is below it, or there is none: never a silent step back,
            as to the beginning where a path is mistyped.

        The result has the steps above the loaded one that were passed over, tainted or damaged, as
        `skipped`, and why: `resumed = store.load_or(init); resumed.skipped`.
        """
        check_called(init, "init")
        least = 0 if min_step is None else step_number(min_step)
        changed = LoadRequest.checked(None, init, None, None, items, "numpy", cast, missing,
                                      unexpected, rename, None)
        latest = self._latest_of_all()
        if min_step is not None and (latest is None or latest < least):
            raise self._below(least, str(self._no_step()) if latest is None else
                              f"the newest that can be resumed from is step {latest}")
        if latest is None:
            # Damaged headers are among the problems, too.
            problems = self._backend.recovery().problems
            if problems:
                raise CorruptionError(f"{self.path!r} has no step, and may have lost some: "
                                      f"{problems[0]}; `stepwell repair` says more")
            if self.tainted_steps():
                service.logger.warning("%s", self._no_step())
            if source is None:
                return Resumed(init, 0, self.tainted_steps())
            with self._opened(source) as store:
                loaded = store._load(None, changed, on_corrupt)
                return Resumed(loaded.tree, 0, {**self.tainted_steps(), **store._skipped(loaded)})
        request = changed if source is None else LoadRequest.checked(
            None, init, None, None, items, "numpy", False, "error", "error", None, None)
        try:
            loaded = self._load(None if on_corrupt == "previous" else latest, request, on_corrupt,
                                min_step=least)
            return Resumed(loaded.tree, loaded.step + 1, self._skipped(loaded))
        except StepNotFoundError:
            if self._backend.collective_reads or self._backend.newest() == latest:
                raise
        return self.load_or(init, source=source, items=items, cast=cast, missing=missing,
                            unexpected=unexpected, rename=rename, on_corrupt=on_corrupt,
                            min_step=min_step)

    def _skipped(self, loaded: _Loaded) -> dict[int, str]:
        """Steps above the loaded one, and why they were passed over."""
        highest = self._backend.step_numbers(1)
        if not highest or highest[0] <= loaded.step:  # as nearly always, and without a look at all
            return loaded.damaged
        tainted = {step: why for step, why in self.tainted_steps().items() if step > loaded.step}
        return {**tainted, **loaded.damaged}

    def _below(self, min_step: int, why: str) -> StepNotFoundError:
        return StepNotFoundError(f"{self.path!r}: no step from {min_step} on can be resumed from, "
                                 f"as load_or(min_step={min_step}) asks: {why}")

    @contextlib.contextmanager
    def _opened(self, source: OpenStore | str | os.PathLike[str]) -> Iterator[Loading]:
        """A store that has the newest step of `source`: a store, or a directory."""
        if isinstance(source, Loading):
            yield source
            return
        path = local_path(cast_("str | os.PathLike[str]", source))
        within = _store_within(path)
        if within is not None:
            with self._open_alone(within, read_only=True) as store:
                yield store
            return
        steps = _stepwell.orbax_steps(path) if os.path.isdir(path) else {}
        with imported(self._open_alone, path, max(steps) if steps else 0) as store:
            yield store


def _store_within(path: str) -> str | None:
    """The store at `path`, of a view there, or in the checkpoint that a facade saved there."""
    places = [path, os.path.join(path, _INSIDE)]
    if os.path.exists(os.path.join(path, "_CHECKPOINT_METADATA")):
        places += sorted(glob.glob(os.path.join(glob.escape(path), "*", _INSIDE)))
    return next((place for place in places if os.path.exists(os.path.join(place, "STEPWELL"))),
                None)
