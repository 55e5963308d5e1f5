# SPDX-License-Identifier: Apache-2.0
"""training.Checkpointer: a sequence of checkpoints in a training loop."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ..._backend import Backend
from ..._runtime.files import local_path
from ..._runtime.preemption import jax_says_so
from ...errors import Error
from .. import _single
from .._orbax_root import read_root_metadata, write_root_metadata
from .._root import Root
from .._work import Work, start
from . import preservation_policies, save_decision_policies
from . import step as step_lib
from .context import Context, get_context
from .deletion import check_arguments, check_item, check_options, remove, remove_item
from .free import AsyncResponse, described, load_all, unwrapped
from .items import STATE, check_names, item_metadata, names_of, orbax_errors, to_items, tree_name
from .metadata import RootMetadata, StepMetadata
from .places import OrbaxPlace, Place, StorePlace
from .sequence import Info, now, read_infos
from .training_errors import StepAlreadyExistsError, StepNotFoundError
from .trees import check_target

class Checkpointer:
    """Saves steps below `directory`, when a policy says so, and keeps those that another one wants.

    Steps that Orbax saved there are listed and loaded, too. New steps go to a store in
    `<directory>/.stepwell`, and `<directory>/<step>` shows each as a checkpoint of Orbax.

    save_decision_policy: None saves whenever no save is under way.
    preservation_policy: None keeps every step.
    step_name_format: see ocp.path.step.
    custom_metadata: of the whole sequence; that of the first Checkpointer of a directory stays.
    cleanup_tmp_directories: removes what an interrupted save of Orbax left behind.
    lightweight_initialize: does not read times and metrics of the steps that are there.
    logger: its `log_entry` gets a dict about each save and load.
    """

    def __init__(self, directory: Any, *, context: Context | None = None,
                 save_decision_policy: save_decision_policies.SaveDecisionPolicy | None = None,
                 preservation_policy: preservation_policies.PreservationPolicy | None = None,
                 step_name_format: step_lib.NameFormat | None = None, custom_metadata: Any = None,
                 cleanup_tmp_directories: bool = False, lightweight_initialize: bool = False,
                 logger: Any = None) -> None:
        self._context = Context(context or get_context())
        self._save_policy = save_decision_policy or save_decision_policies.AnySavePolicy([
            save_decision_policies.InitialSavePolicy(),
            save_decision_policies.ContinuousCheckpointingPolicy(),
            save_decision_policies.PreemptionCheckpointingPolicy()])
        self._keep_policy = preservation_policy or preservation_policies.PreserveAll()
        self._format = step_name_format or step_lib.standard_name_format()
        self._lightweight = lightweight_initialize
        self._logger = logger
        self._path = local_path(directory)
        self._saves: list[tuple[int, Work[bool]]] = []
        self._failure: BaseException | None = None  # of a save, not raised yet
        self._late: list[int] = []  # steps to be deleted in the next call
        self._pending_delete: AsyncResponse[bool] | None = None
        prefix, digits = step_lib.prefix_and_digits(self._format)
        saving = self._context.array.saving
        self._root = Root(self._path, layout="v1", zarr=3 if saving.use_zarr3 else 2,
                          step_prefix=prefix, step_digits=digits, find_steps=self._find_steps)
        if cleanup_tmp_directories and self._backend.leads:
            for name in os.listdir(self._path):
                if _single.TEMPORARY in name:
                    shutil.rmtree(os.path.join(self._path, name), ignore_errors=True)
        if custom_metadata is not None and self._backend.leads:
            write_root_metadata(self._path, dict(custom_metadata))
        self._infos = read_infos(self._root, self._lightweight)
        self._found = {info.step for info in self._infos}  # before this Checkpointer

    # ---- steps ----

    @property
    def _backend(self) -> Backend:
        return self._root.store._backend

    def _find_steps(self, directory: str) -> dict[int, str]:
        return {found.step: os.path.basename(os.fspath(found.path))
                for found in self._format.find_all(directory)}

    @property
    def directory(self) -> Any:
        """The root of the steps."""
        return self._context.file.path_class(self._path)

    @property
    def latest(self) -> StepMetadata[None] | None:
        """The step with the highest number; None without any."""
        return max(self.checkpoints, key=lambda each: each.step, default=None)

    @property
    def checkpoints(self) -> Sequence[StepMetadata[None]]:
        """The steps, ascending, as this Checkpointer knows them; `reload` looks at the disk."""
        self._settle()
        return [StepMetadata(info.step, self._path_of(info.step), metadata=None,
                             metrics=info.metrics,
                             commit_timestamp_nsecs=_nsecs(info.time))
                for info in sorted(self._infos, key=lambda info: info.step)]

    def _path_of(self, step: int) -> Any:
        return self.directory / self._format.build_name(step)

    def _existing(self, step: int | StepMetadata[Any] | None) -> StepMetadata[None]:
        if step is None:
            if self.latest is None:
                raise StepNotFoundError("Specified `step=None`, but no checkpoints were found.")
            return self.latest
        number = _number(step)
        for each in self.checkpoints:
            if each.step == number:
                return each
        raise StepNotFoundError(f"No checkpoint found at step {number}; there are "
                                f"{[each.step for each in self.checkpoints]}.")

    def reload(self) -> None:
        """Looks at the directory again, for steps that came or went otherwise."""
        self._wait_for_deletion()
        self._infos = read_infos(self._root, self._lightweight)

    # ---- saving ----

    def should_save(self, step: int | StepMetadata[Any]) -> bool:
        """Whether the policy wants this step. Never one up to the latest."""
        return self._wants(_number(step), self._settled())

    def _wants(self, step: int, infos: list[Info]) -> bool:
        if any(info.step >= step for info in infos):
            return False
        context = save_decision_policies.DecisionContext(
            is_saving_in_progress=self.is_saving_in_progress(),
            reached_preemption=jax_says_so(step),
            multiprocessing_options=self._context.multiprocessing)
        with get_context(self._context):
            return self._backend.from_leader(
                lambda: bool(self._save_policy.should_save(Info(step, now(), None), infos,
                                                           context=context)), "should_save")

    def save(self, step: int, state: Any, *, checkpointable_name: str = STATE,
             force: bool = False, overwrite: bool = False, metrics: Any = None,
             custom_metadata: Any = None) -> bool:
        """Saves a tree as a step, if the policy wants it or `force` is True, and says whether.

        overwrite: replaces the step if it is there, at one instant. Else StepAlreadyExistsError, or
        False if the step was there before this Checkpointer: a loop that resumes meets it again.
        metrics, custom_metadata: JSON, kept with the step.
        """
        return self.save_checkpointables(
            step, {checkpointable_name: state}, force=force, overwrite=overwrite, metrics=metrics,
            custom_metadata=custom_metadata)

    def save_async(self, step: int, state: Any, *, checkpointable_name: str = STATE,
                   force: bool = False, overwrite: bool = False, metrics: Any = None,
                   custom_metadata: Any = None) -> AsyncResponse[bool] | None:
        """As `save`, in the background. None if the policy does not want the step."""
        return self.save_checkpointables_async(
            step, {checkpointable_name: state}, force=force, overwrite=overwrite, metrics=metrics,
            custom_metadata=custom_metadata)

    def save_checkpointables(self, step: int, checkpointables: dict[str, Any], *,
                             force: bool = False, overwrite: bool = False, metrics: Any = None,
                             custom_metadata: Any = None) -> bool:
        """As `save`, several checkpointables by name."""
        response = self.save_checkpointables_async(
            step, checkpointables, force=force, overwrite=overwrite, metrics=metrics,
            custom_metadata=custom_metadata)
        if response is None:
            return False
        return response.result()

    def save_checkpointables_async(self, step: int, checkpointables: dict[str, Any], *,
                                   force: bool = False, overwrite: bool = False,
                                   metrics: Any = None, custom_metadata: Any = None
                                   ) -> AsyncResponse[bool] | None:
        self._wait_for_deletion()
        self._raise_failure()
        started = time.time()
        check_names(checkpointables)
        infos = self._settled()
        there = any(info.step == step for info in infos)
        if there and not overwrite:
            if step in self._found and not force:
                return None
            raise StepAlreadyExistsError(f"Step {step} already exists.")
        infos = [info for info in infos if info.step != step]
        if not force and not self._wants(step, infos):
            return None
        context = get_context(self._context)
        items = to_items(checkpointables, context)
        is_foreign = there and not self._root.holds(step)
        with orbax_errors():
            handle = self._root.store.save(
                step, items=items.trees, metrics=metrics,
                metadata=items.metadata(custom_metadata), chunks=items.chunks or None,
                if_exists="replace" if there else "error")
        infos.append(Info(step, now(), metrics))
        keep = preservation_policies.PreservationContext()
        flags = self._backend.from_leader(lambda: list(map(
            bool, self._keep_policy.should_preserve(infos, context=keep))), "should_preserve")
        kept = [info for info, keep in zip(infos, flags, strict=True) if keep]
        gone = [info.step for info in infos if info not in kept]
        self._infos = kept
        self._found.discard(step)

        def work() -> bool:
            handle.result()
            if is_foreign:
                self._root.delete_foreign(step)
            if not self._backend.collective:
                self._remove(gone)
            self._root.wait_for_view()
            if context.asynchronous.post_finalization_callback is not None:
                context.asynchronous.post_finalization_callback()
            return True

        if self._backend.collective:  # processes delete in one order: in their next calls
            self._late += gone
        response = Work(work, timeout=context.asynchronous.timeout_secs)
        self._saves.append((step, response))
        self._log("save", step, started)
        return response

    def _remove(self, steps: list[int]) -> None:
        for each in steps:
            with contextlib.suppress(FileNotFoundError):
                self._root.delete(each)

    def _remove_late(self) -> None:
        """Of several processes: deletes what the policy gave up, once the saves are done."""
        if self._late:
            for _, work in list(self._saves):
                work.wait()
            late, self._late = self._late, []
            self._remove(late)

    def _raise_failure(self) -> None:
        self._settle()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _settled(self) -> list[Info]:
        self._settle()
        return list(self._infos)

    def _settle(self) -> None:
        """Forgets saves that are done, and steps whose save failed."""
        for step, work in list(self._saves):
            if work.done():
                self._saves.remove((step, work))
                if work.error is not None:
                    self._infos = [info for info in self._infos if info.step != step]
                    if not work.reported and self._failure is None:
                        work.reported, self._failure = True, work.error

    def is_saving_in_progress(self) -> bool:
        """Whether a save is under way."""
        return any(not work.done() for _, work in list(self._saves))

    def cancel(self, step: int | StepMetadata[Any] | None = None) -> None:
        """Undoes the saves under way, and `step`: they are not there when it returns."""
        self._wait_for_deletion()
        wanted = {number for number, work in self._saves if not work.done()}
        if step is not None:
            wanted.add(_number(step))
        for _, work in self._saves:
            work.wait()
        self._settle()
        for number in wanted:
            with contextlib.suppress(FileNotFoundError):
                self._root.delete(number)
        self._infos = [info for info in self._infos if info.step not in wanted]
        self._root.wait_for_view()

    # ---- loading ----

    def _place(self, step: int) -> Place:
        for number, work in list(self._saves):
            if number == step:
                work.wait()
        path = os.path.join(self._path, self._format.build_name(step))
        if self._root.holds(step):
            return StorePlace(path, self._root.store, step, own=False)
        found = self._root.foreign().get(step)
        if found is None:
            raise StepNotFoundError(f"No checkpoint found at step {step}.")
        return OrbaxPlace(found)

    def load(self, step: int | StepMetadata[Any] | None = None, abstract_state: Any = None, *,
             checkpointable_name: str = STATE) -> Any:
        """Loads a tree of a step (None: the latest); see `ocp.load`."""
        abstract_state = unwrapped(abstract_state)
        check_target(abstract_state)
        return self.load_checkpointables(
            step, {checkpointable_name: abstract_state})[checkpointable_name]

    def load_checkpointables(self, step: int | StepMetadata[Any] | None = None,
                             abstract_checkpointables: dict[str, Any] | None = None
                             ) -> dict[str, Any]:
        """Loads checkpointables of a step by name: those that are asked for, or all."""
        started = time.time()
        number = self._existing(step).step
        with self._place(number) as place:
            loaded = load_all(place, abstract_checkpointables, get_context(self._context))
        self._log("load", number, started)
        return loaded

    def load_async(self, step: int | StepMetadata[Any] | None = None, abstract_state: Any = None,
                   *, checkpointable_name: str = STATE) -> AsyncResponse[Any]:
        """As `load`, in the background. Orbax does not have it."""
        return Work(lambda: self.load(step, abstract_state,
                                      checkpointable_name=checkpointable_name))

    def load_checkpointables_async(self, step: int | StepMetadata[Any] | None = None,
                                   abstract_checkpointables: dict[str, Any] | None = None
                                   ) -> AsyncResponse[dict[str, Any]]:
        """As `load_checkpointables`, in the background. Orbax does not have it."""
        return Work(lambda: self.load_checkpointables(step, abstract_checkpointables))

    # ---- metadata ----

    def metadata(self, step: int | StepMetadata[Any] | None = None) -> StepMetadata[Any]:
        """Describes the tree of a step."""
        return self._described(step, whole=False)

    def checkpointables_metadata(self, step: int | StepMetadata[Any] | None = None
                                 ) -> StepMetadata[dict[str, Any]]:
        """Describes each checkpointable of a step, by name."""
        return self._described(step, whole=True)

    def _described(self, step: int | StepMetadata[Any] | None, whole: bool) -> StepMetadata[Any]:
        found = self._existing(step)
        context = get_context(self._context)
        with self._place(found.step) as place:
            if whole:
                metadata: Any = {name: item_metadata(place, name, context)
                                 for name in names_of(place)}
            else:
                metadata = item_metadata(place, tree_name(place, "AUTO"), context)
            return StepMetadata(found.step, metrics=found.metrics,
                                **described(place, metadata, context))

    def root_metadata(self) -> RootMetadata:
        """The metadata of the whole sequence."""
        return RootMetadata(directory=self.directory,
                            custom_metadata=read_root_metadata(self._path) or {})

    # ---- deleting ----

    def delete(self, step: int | StepMetadata[Any], *, checkpointable_name: str | None = None,
               missing_ok: bool = False) -> bool:
        """Deletes a step, or one checkpointable of it, whatever the policy says; see
        `ocp.delete`."""
        response = self.delete_async(step, checkpointable_name=checkpointable_name,
                                     missing_ok=missing_ok)
        self._wait_for_deletion()
        self._root.wait_for_view()
        return response.result()

    def delete_async(self, step: int | StepMetadata[Any], *,
                     checkpointable_name: str | None = None, missing_ok: bool = False
                     ) -> AsyncResponse[bool]:
        """As `delete`, in the background."""
        if isinstance(step, StepMetadata):
            step = step.step
        if not isinstance(step, int) or isinstance(step, bool):
            raise TypeError("step must be an explicit Python int.")
        if step < 0:
            raise ValueError("step must be nonnegative.")
        check_arguments(checkpointable_name, missing_ok)
        check_options(get_context(self._context))
        self.wait()
        if step not in self._root.steps():
            if missing_ok:
                return Work(lambda: False)
            raise StepNotFoundError(f"No checkpoint found at step {step}.")
        number, name = step, checkpointable_name
        if name is not None:
            with self._place(number) as place:
                if not check_item(place, name, missing_ok):
                    return Work(lambda: False)

        def work() -> bool:
            if name is None:
                self._root.delete(number)
            elif self._root.holds(number):
                self._root.store.delete(number, item=name)
            else:
                remove_item(self._root.foreign()[number], name)
            return True

        response = start(work)
        if name is None:
            self._infos = [info for info in self._infos if info.step != number]
            self._found.discard(number)
        self._pending_delete = response
        return response

    def _wait_for_deletion(self) -> None:
        pending, self._pending_delete = self._pending_delete, None
        if pending is not None:
            pending.result()
        self._remove_late()

    # ---- life ----

    def _log(self, event: str, step: int, started: float) -> None:
        if self._logger is not None:
            self._logger.log_entry({"event_type": event, "step": step, "directory": self._path,
                                    "blocking_duration_secs": time.time() - started})

    def wait(self) -> None:
        """Waits for what is under way, and raises what went wrong."""
        self._wait_for_deletion()
        for _, work in list(self._saves):
            work.wait()
        self._raise_failure()
        self._root.wait_for_view()

    def close(self) -> None:
        """Waits as `wait`, and gives the directory back."""
        try:
            self.wait()
        finally:
            try:
                self._root.close()
            except Error:
                if sys.exc_info()[1] is None:
                    raise

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def save_pytree(self, *args: Any, **kwargs: Any) -> bool:
        """Deprecated: use save."""
        _renamed("save")
        return self.save(*args, **kwargs)

    def save_pytree_async(self, *args: Any, **kwargs: Any) -> AsyncResponse[bool] | None:
        """Deprecated: use save_async."""
        _renamed("save_async")
        return self.save_async(*args, **kwargs)

    def load_pytree(self, *args: Any, **kwargs: Any) -> Any:
        """Deprecated: use load."""
        _renamed("load")
        return self.load(*args, **kwargs)

    def load_pytree_async(self, *args: Any, **kwargs: Any) -> AsyncResponse[Any]:
        """Deprecated: use load_async."""
        _renamed("load_async")
        return self.load_async(*args, **kwargs)

    def pytree_metadata(self, *args: Any, **kwargs: Any) -> StepMetadata[Any]:
        """Deprecated: use metadata."""
        _renamed("metadata")
        return self.metadata(*args, **kwargs)


def _renamed(new: str) -> None:
    warnings.warn(f"use Checkpointer.{new}", DeprecationWarning, stacklevel=3)


def _number(step: int | StepMetadata[Any]) -> int:
    return step.step if isinstance(step, StepMetadata) else step


def _nsecs(when: datetime.datetime) -> int | None:
    return None if when == datetime.datetime.min else int(when.timestamp() * 1e9)
