# SPDX-License-Identifier: Apache-2.0
"""The steps of a training.Checkpointer, and saves of them."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..._runtime.files import local_path
from ..._runtime.preemption import jax_preempts_at
from .._orbax_common import orbax_errors, write_root_metadata
from .._root import NO_TIME, Root
from .._stores import Info, kept_beside, now, retired
from .._work import Work
from .base import get_context, v1
from .items import Items, check_names, to_items
from .places import STATE
from .undo import Old

training = v1.training
keeps, saves = training.preservation_policies, training.save_decision_policies
StepNotFoundError: Any = training.errors.StepNotFoundError
_OrbaxCheckpointer: Any = training.Checkpointer
T = TypeVar("T")


class Saved:
    """Orbax's AsyncResponse of a save."""

    def __init__(self, work: Work[None]) -> None:
        self._work = work

    def result(self, timeout: float | None = None) -> bool:
        """Waits, and raises what went wrong."""
        self._work.result(timeout)
        return True

    def on_complete(self, callback: Callable[[bool], object]) -> None:
        """Calls `callback(True)` once when the step is durable."""
        self._work.on_complete(lambda _: callback(True))


class _Save:
    """A save under way. old: what it takes away; None if some of that cannot come back."""

    def __init__(self, step: int, replaces: bool, old: list[Old] | None) -> None:
        self.step = step
        self.replaces = replaces
        self.old = old
        self.is_committed = False
        self.work: Work[None]


class Saving(_OrbaxCheckpointer):  # type: ignore[misc]  # Orbax has no types
    """A Checkpointer without loads and deletions. It is Orbax's class for `isinstance` alone: every
    method is replaced."""

    def __init__(self, directory: Any, *, context: Any = None, save_decision_policy: Any = None,
                 preservation_policy: Any = None, step_name_format: Any = None,
                 custom_metadata: Any = None, cleanup_tmp_directories: bool = False,
                 lightweight_initialize: bool = False, logger: Any = None) -> None:
        self._context = v1.Context(context or get_context())
        self._save_policy = save_decision_policy or saves.AnySavePolicy([
            saves.InitialSavePolicy(), saves.ContinuousCheckpointingPolicy(),
            saves.PreemptionCheckpointingPolicy()])
        self._keep_policy = preservation_policy or keeps.PreserveAll()
        self._format = step_name_format or v1.path.step.standard_name_format()
        self._lightweight = lightweight_initialize
        self._logger = logger
        self._path = local_path(directory)
        self._saves: list[_Save] = []
        self._failure: BaseException | None = None  # of a save, not raised yet
        self._pending_delete: Work[bool] | None = None
        self._root = Root(self._path, name_format=self._format, layout="v1",
                          zarr=3 if self._context.array.saving.use_zarr3 else 2,
                          cleanup=cleanup_tmp_directories)
        if custom_metadata is not None and self._root.leads:
            write_root_metadata(self._path, dict(custom_metadata))
        self._found = {info.step for info in self._infos()}  # before this Checkpointer

    # ---- steps ----

    @property
    def directory(self) -> Any:
        """The root of the steps."""
        return self._context.file.path_class(self._path)

    @property
    def latest(self) -> Any:
        """The step with the highest number that is not tainted (`stepwell.Store.taint`), as a
        training.CheckpointMetadata; None without any."""
        tainted = self._root.tainted()
        return max((each for each in self.checkpoints if each.step not in tainted),
                   key=lambda each: each.step, default=None)

    @property
    def checkpoints(self) -> Sequence[Any]:
        """The steps that there are, and those being saved, ascending."""
        self._settle()
        return [training.CheckpointMetadata(
            info.step, self.directory / self._format.build_name(info.step), metadata=None,
            metrics=info.metrics, commit_timestamp_nsecs=_nsecs(info.time))
            for info in self._infos()]

    def _infos(self) -> list[Info]:
        return self._root.infos(lightweight=self._lightweight)

    def _existing(self, step: Any) -> Any:
        if step is None:
            latest = self.latest
            if latest is None:
                raise StepNotFoundError("Specified `step=None`, but no checkpoints were found.")
            return latest
        checkpoints, number = self.checkpoints, number_of(step)
        for each in checkpoints:
            if each.step == number:
                return each
        raise StepNotFoundError(f"No checkpoint found at step {number}; there are "
                                f"{[each.step for each in checkpoints]}.")

    # ---- saving ----

    def should_save(self, step: Any) -> bool:
        """Returns true if the policy wants this step. Never one up to the latest."""
        number = number_of(step)
        preempted = jax_preempts_at(number)
        return self._decide(lambda: self._wants(number, self._infos(), preempted), "should_save")

    def _decide(self, decision: Callable[[], T], what: str) -> T:
        """Decides on process 0 for all: another one may not know yet which steps went."""
        return self._root.store._backend.from_leader(decision, what)

    def _wants(self, step: int, infos: list[Info], preempted: bool) -> bool:
        tainted = self._root.tainted()
        infos = [info for info in infos if info.step not in tainted]
        if any(info.step >= step for info in infos):
            return False
        context = saves.DecisionContext(
            is_saving_in_progress=self.is_saving_in_progress(), reached_preemption=preempted,
            multiprocessing_options=v1.options.MultiprocessingOptions(primary_host=0))
        return bool(self._save_policy.should_save(Info(step, now(), None), infos,
                                                  context=context))

    def _is_wanted(self, step: int, force: bool, overwrite: bool, preempted: bool
                   ) -> tuple[bool, bool, bool]:
        """Returns whether the step is there, whether it must stay as it is, and whether it is to be
        saved."""
        infos = self._infos()
        there = any(info.step == step for info in infos)
        stays = there and not overwrite and step not in self._root.tainted()
        others = [info for info in infos if info.step != step]
        wanted = not stays and (force or self._wants(step, others, preempted))
        return there, stays, wanted

    def _given_up(self, step: int, metrics: Any) -> list[int]:
        """The steps that the policy does not keep once there is this one, which may be one."""
        infos = [info for info in self._infos() if info.step != step]
        infos = sorted([*infos, Info(step, now(), metrics)], key=lambda info: info.step)
        kept = self._keep_policy.should_preserve(infos, context=keeps.PreservationContext())
        stay = kept_beside([info.step for info in infos], step, self._root.tainted())
        return [info.step for info, keep in zip(infos, kept, strict=True)
                if not keep and info.step not in stay]

    def save(self, step: int, state: Any, *, checkpointable_name: str = STATE,
             force: bool = False, overwrite: bool = False, metrics: Any = None,
             custom_metadata: Any = None) -> bool:
        """Saves a tree as a step, if the policy wants it or `force` is True, and says whether.

        overwrite: replaces the step if it is there, at one instant. Else StepAlreadyExistsError, or
        False if the step was there before this Checkpointer: a loop that resumes meets it again.
            A tainted step (`stepwell.Store.taint`) is replaced in any case: it is trained anew.
        metrics, custom_metadata: JSON, kept with the step.
        """
        return self.save_checkpointables(
            step, {checkpointable_name: state}, force=force, overwrite=overwrite, metrics=metrics,
            custom_metadata=custom_metadata)

    def save_async(self, step: int, state: Any, *, checkpointable_name: str = STATE,
                   **options: Any) -> Saved | None:
        """Does `save` in the background. None if the policy does not want the step."""
        return self.save_checkpointables_async(step, {checkpointable_name: state}, **options)

    def save_checkpointables(self, step: int, checkpointables: dict[str, Any], **options: Any
                             ) -> bool:
        """Does `save` for several checkpointables by name."""
        response = self.save_checkpointables_async(step, checkpointables, **options)
        return response is not None and response.result()

    def save_checkpointables_async(self, step: int, checkpointables: dict[str, Any], *,
                                   force: bool = False, overwrite: bool = False,
                                   metrics: Any = None, custom_metadata: Any = None
                                   ) -> Saved | None:
        """Does `save_checkpointables` in the background."""
        self._wait_for_deletion()
        self._raise_failure()
        started = time.time()
        check_names(checkpointables)
        preempted = not force and jax_preempts_at(step)  # all processes ask
        there, stays, wanted = self._decide(
            lambda: self._is_wanted(step, force, overwrite, preempted), "save")
        if stays and (force or step not in self._found):
            raise training.errors.StepAlreadyExistsError(f"Step {step} already exists.")
        if not wanted:
            return None
        context = get_context(self._context)
        items = to_items(checkpointables, context)
        if there:
            self._wait_for(step)
        with orbax_errors(), self._root.planning():
            saving = self._begin(step, items, there, metrics, custom_metadata, context)
        self._found.discard(step)
        self._saves.append(saving)
        self._log("save", step, started)
        return Saved(saving.work)

    def _begin(self, step: int, items: Items, there: bool, metrics: Any, custom_metadata: Any,
               context: Any) -> _Save:
        # Process 0 decides which steps are retired.
        gone = retired(self._given_up(step, metrics), step, items.trees) if self._root.leads else []
        others = [each for each in gone if each != step]
        saving = _Save(step, there, Old.all_of(self._root, [step] * there + others))

        def finish() -> None:
            saving.is_committed = True
            if step in gone and not self._root.store._backend.collective:
                self._delete(step)  # the policy wants no step at all
            self._root.wait_for_view()
            if context.asynchronous.post_finalization_callback is not None:
                context.asynchronous.post_finalization_callback()

        saving.work = self._root.save(
            step, items.trees, metadata=items.metadata(custom_metadata), metrics=metrics,
            chunks=items.chunks or None, replace=there, retire=others, then=finish,
            timeout=context.asynchronous.timeout_secs)
        return saving

    def _wait_for(self, step: int) -> None:
        for each in list(self._saves):
            if each.step == step:
                each.work.wait()

    def _delete(self, step: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._root.delete(step)

    def _raise_failure(self) -> None:
        self._settle()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _settle(self) -> None:
        """Forgets saves that are done, and keeps the first error that nobody saw."""
        for each in list(self._saves):
            if each.work.done():
                with contextlib.suppress(ValueError):  # another thread did
                    self._saves.remove(each)
                    if (each.work.error is not None and not each.work.reported
                            and self._failure is None):
                        each.work.reported, self._failure = True, each.work.error

    def is_saving_in_progress(self) -> bool:
        """Returns true while a save is under way."""
        return any(not each.work.done() for each in list(self._saves))

    def cancel(self, step: Any = None) -> None:
        """Undoes the saves under way, and deletes `step`. What such a save replaced or its
        retention gave up is there again when it returns; where that cannot be (steps of other
        libraries, several processes), the save stays."""
        self._wait_for_deletion()
        undone = [each for each in list(self._saves) if not each.work.done()]
        for each in list(self._saves):
            each.work.wait()
        self._settle()
        kept = {each.step for each in undone if each.replaces}
        for each in reversed(undone):
            if not each.is_committed or each.old is None:
                kept.add(each.step)
                continue
            for old in each.old:
                old.restore()
            if not each.replaces:
                self._delete(each.step)
        if step is not None and number_of(step) not in kept:
            self._delete(number_of(step))
        self._root.wait_for_view()

    # ---- life ----

    def _log(self, event: str, step: int, started: float) -> None:
        if self._logger is not None:
            self._logger.log_entry({"event_type": event, "step": step, "directory": self._path,
                                    "blocking_duration_secs": time.time() - started})

    def _wait_for_deletion(self) -> None:
        pending, self._pending_delete = self._pending_delete, None
        if pending is not None:
            pending.result()

    def wait(self) -> None:
        """Waits for what is under way, and raises what went wrong."""
        self._wait_for_deletion()
        for each in list(self._saves):
            each.work.wait()
        self._raise_failure()
        self._root.wait_for_view()


def number_of(step: Any) -> Any:
    return step.step if isinstance(step, training.CheckpointMetadata) else step


def _nsecs(when: datetime.datetime) -> int | None:
    return None if when == NO_TIME else int(when.timestamp() * 1e9)
