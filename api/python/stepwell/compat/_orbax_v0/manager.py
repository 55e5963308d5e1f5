# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: the steps of a run in one directory."""

from __future__ import annotations

import logging
import operator
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orbax.checkpoint as orbax
from etils import epath
from orbax.checkpoint.args import CheckpointArgs, Composite
from orbax.checkpoint.checkpoint_manager import CheckpointInfo, StepAlreadyExistsError
from orbax.checkpoint.metadata import RootMetadata

from ...errors import InvalidArgumentError
from .._orbax_common import orbax_errors, read_root_metadata, write_root_metadata
from .._stores import METRICS, kept_beside, now, retired
from .._work import Work
from .handling import composite_handler
from .item_handlers import ItemHandlers
from .item_saving import Saving
from .policies import best, keep_policy, save_policy
from .step_items import DEFAULT_ITEM, StepItems, restore_items
from .steps import Steps

_logger = logging.getLogger("stepwell")


def _step_number(step: Any) -> int:
    """A step as an int. Flax knows steps that are floats; a store does not."""
    try:
        return operator.index(step)
    except TypeError:
        raise InvalidArgumentError(f"a step is an int, not {step!r}: round it, or count the saves "
                                   "and keep the number itself in custom_metadata") from None


class CheckpointManager(orbax.CheckpointManager):
    """Saves and restores the steps of a run, and deletes old ones.

    directory: where the steps are: `directory/<step>/…` in Orbax's layout, with the store beside
        them in `directory/.stepwell`. It may be the directory of a manager of Orbax.
    checkpointers: of the legacy interface: one, or a dict by item name.
    metadata: of the root; written once.
    item_names, item_handlers, handler_registry: how items are saved; without, the arguments of the
        first save or restore of each item say it.

    It keeps no list of steps: which there are is what the store says, and what is being saved.
    """

    def __init__(self, directory: str | os.PathLike[str], checkpointers: Any = None,
                 options: orbax.CheckpointManagerOptions | None = None,
                 metadata: Mapping[str, Any] | None = None,
                 item_names: Sequence[str] | None = None, item_handlers: Any = None,
                 logger: Any = None, handler_registry: Any = None) -> None:
        # Not Orbax's own, which makes a checkpointer and reads the directory.
        self._options = options or orbax.CheckpointManagerOptions()
        self._save_policy = save_policy(self._options)
        self._keep_policy = keep_policy(self._options)
        self._default, self._is_async, self._composite = composite_handler(
            self._options, checkpointers, item_names, item_handlers, handler_registry)
        self._handlers = ItemHandlers(self._composite)
        self._async_options = self._options.async_options or orbax.AsyncOptions()
        if self._async_options.post_finalization_callback is not None and not self._is_async:
            raise ValueError("AsyncOptions.post_finalization_callback needs "
                             "enable_async_checkpointing=True or an AsyncCheckpointer")
        if self._options.create and (
                self._options.multiprocessing_options.active_processes is not None):
            raise NotImplementedError("Option `create=True` with `active_processes` set is not "
                                      "supported. Please create the root directory yourself.")
        self._steps = Steps(os.fspath(directory), self._options)
        self._directory = epath.Path(directory)
        self._pending: tuple[int, Work[None]] | None = None  # the last save
        self._raised: set[int] = set()  # threads that its error was raised in
        self._root_metadata: RootMetadata | None = None
        self._save_root_metadata(metadata)

    # ---- steps ----

    @property
    def directory(self) -> epath.Path:
        """The directory with the steps."""
        return self._directory

    def all_steps(self, read: bool = False) -> Sequence[int]:
        """The steps that there are, those being saved included. `read` looks anew for steps that
        other libraries saved or deleted."""
        if read:
            self.reload()
        return self._steps.listed()

    def latest_step(self) -> int | None:
        """The last step that is not tainted (`stepwell.Store.taint`); None if there is none."""
        return self._steps.latest()

    def best_step(self) -> int | None:
        """The step with the best metrics by `best_fn` that is not tainted; without it the last
        one."""
        if self._options.best_fn is None:
            return self.latest_step()
        tainted = self._steps.tainted()
        found = best([info for info in self._steps.infos() if info.step not in tainted],
                     self._options)
        return None if found is None else found.step

    def reload(self) -> None:
        """Looks anew for steps that other libraries saved or deleted, and for all metrics."""
        self._steps.reload()

    def reached_preemption(self, step: int) -> bool:
        """Returns true if JAX's preemption service has reached its sync point."""
        return bool(orbax.utils.reached_preemption(step))

    def should_save(self, step: int) -> bool:
        """Returns true if the options ask to save this step. Never for one that is not behind the
        last that is not tainted."""
        step = _step_number(step)
        if self._options.read_only:
            _logger.warning("%s is read only, save will be skipped", self._directory)
            return False
        infos, tainted = self._steps.infos(), self._steps.tainted()
        infos = [info for info in infos if info.step not in tainted]
        if infos and infos[-1].step >= step:
            return False
        context = orbax.checkpoint_managers.DecisionContext(
            is_saving_in_progress=(self._options.enable_should_save_is_saving_in_progress_check
                                   and self.is_saving_in_progress()),
            reached_preemption=self.reached_preemption(step),
            multiprocessing_options=self._options.multiprocessing_options)
        return bool(self._save_policy.should_save(
            CheckpointInfo(step, now(), None), previous_steps=infos, context=context))

    def delete(self, step: int) -> None:
        """Deletes a step. Raises FileNotFoundError if the step does not exist."""
        if self._options.read_only:
            _logger.warning("%s is read only, delete will be skipped", self._directory)
            return
        step = _step_number(step)
        if step not in self._steps.listed():
            raise FileNotFoundError(f"Requested deleting a non-existent step: {step}. There are "
                                    f"{self._steps.listed()}.")
        if self._is_saving(step):
            self.wait_until_finished()
        self._steps.delete(step)
        self._steps.wait_for_view()

    # ---- saving ----

    def _check_args(self, items: Any, args: Any) -> None:
        if isinstance(items, CheckpointArgs):
            raise ValueError("`items` is an object of arguments: pass it as `args=`")
        if args is None:
            return
        if not isinstance(args, CheckpointArgs):
            raise ValueError(f"Expected args of type `CheckpointArgs`; found {type(args)}.")
        if self._default and isinstance(args, Composite):
            raise ValueError("Cannot provide `args` of type `Composite` when dealing with a "
                             "single, unnamed (default) checkpointable object.")
        if not self._default and not isinstance(args, Composite):
            raise ValueError("Must provide `args` of type `Composite` when dealing with multiple "
                             "checkpointable objects.")

    def save(self, step: int, items: Any = None, save_kwargs: Any = None, metrics: Any = None,
             force: bool | None = False, args: CheckpointArgs | None = None,
             custom_metadata: dict[str, Any] | None = None) -> bool:
        """Saves a step in the background, if the options ask for it; returns whether it does.

        args: `args.StandardSave(state)` and the like, or `args.Composite` of them by item name.
        items, save_kwargs: of the legacy interface. metrics: JSON, for `best_fn`. force: saves
        whatever the options say, but never over an existing step (StepAlreadyExistsError).
        custom_metadata: JSON, in `metadata(step).custom_metadata`. Waits for the save before.

        The steps that the policy does not keep go with the commit of this one. A tainted step
        (`stepwell.Store.taint`) is replaced, since a run that went back trains it anew.
        """
        step = _step_number(step)
        if items is None and args is None:
            raise ValueError("Must provide `args` for `save`.")
        if self._default is None:
            self._default = not isinstance(args, Composite)
        self._check_args(items, args)
        if not force and not self.should_save(step):
            return False
        self._wait_for_save()
        replace = step in self._steps.tainted()
        if not replace and step in self._steps.listed():
            raise StepAlreadyExistsError(f"Checkpoint for step {step} already exists.")
        named = self._named_args(items, save_kwargs, args)
        tracked = self._options.best_fn is not None
        if tracked and metrics is None:
            _logger.warning("step %d: best_fn is set, but no metrics are given", step)
        written = metrics if tracked and not self._options.prevent_write_metrics else None
        if written is not None:
            named.pop(METRICS, None)
        saving = Saving(self._async_options.timeout_secs if self._is_async else None)
        for name, each in sorted(named.items()):
            saving.add(name, self._handlers.get(name, each), each)
        with orbax_errors(), self._steps.planning():
            work = self._steps.save(
                step, saving.items, metadata=saving.metadata(custom_metadata), metrics=written,
                known_metrics=metrics, replace=replace,
                old=retired(self._old(step, metrics), step, saving.items),
                then=self._async_options.post_finalization_callback or (lambda: None),
                timeout=self._async_options.timeout_secs)
        self._raised.clear()
        self._pending = step, work
        if not self._is_async:
            self.wait_until_finished()
        return True

    def _named_args(self, items: Any, save_kwargs: Any, args: Any) -> dict[str, Any]:
        """The arguments of each item by name."""
        if args is not None:
            return {DEFAULT_ITEM: args} if self._default else dict(args.items())
        if self._default:
            items, save_kwargs = {DEFAULT_ITEM: items}, {DEFAULT_ITEM: save_kwargs}
        return {name: self._handlers.args_of(name)[0](item, **((save_kwargs or {}).get(name) or {}))
                for name, item in items.items()}

    def _old(self, step: int, metrics: Any) -> list[int]:
        """The steps that the policy does not keep once there is this one, which may be one."""
        infos = [info for info in self._steps.infos() if info.step != step]
        infos.append(CheckpointInfo(step, now(), metrics))
        kept = self._keep_policy.should_preserve(
            list(infos), context=orbax.checkpoint_managers.PreservationContext())
        stay = kept_beside([info.step for info in infos], step, self._steps.tainted())
        return [info.step for info, keep in zip(infos, kept, strict=True)
                if not keep and info.step not in stay]

    def wait_until_finished(self) -> None:
        """Waits until the save under way is done and its step stands in the directory. Raises what
        went wrong with the save, once in each thread."""
        if self._pending is not None:
            self._wait_for_save()
            self._steps.wait_for_view()

    def _wait_for_save(self) -> None:
        if self._pending is None:
            return
        _, work = self._pending
        try:
            work.result()
        except BaseException:
            if not work.done():
                raise
            self.check_for_errors()

    def check_for_errors(self) -> None:
        """Raises what went wrong with a save that is done."""
        thread = threading.get_ident()
        if self._pending is not None and self._pending[1].error is not None and (
                thread not in self._raised):
            self._raised.add(thread)
            raise self._pending[1].error

    def is_saving_in_progress(self) -> bool:
        """Returns true while a save is under way."""
        return self._pending is not None and not self._pending[1].done()

    def _is_saving(self, step: int) -> bool:
        return self._pending is not None and self._pending[0] == step

    # ---- restoring ----

    def restore(self, step: int | None, items: Any = None, restore_kwargs: Any = None,
                directory: str | os.PathLike[str] | None = None,
                args: CheckpointArgs | None = None) -> Any:
        """Restores a step (None: the last): one object, or a Composite of several.

        args: `args.StandardRestore(target)` and the like, or a Composite of them; without, all of
        the step as it was saved. directory: another root to restore from.

        Raises FileNotFoundError (no such step), KeyError (no such item), ValueError (the target
        does not fit).
        """
        with self._steps.other(directory) as steps:
            if step is None:
                step = steps.latest()
                if step is None:
                    raise FileNotFoundError(f"No steps found in {directory or self._directory}.")
            if self._default is not None:
                self._check_args(items, args)
            if steps is self._steps and self._is_saving(step):
                self.wait_until_finished()
            return steps.read(_step_number(step), lambda found: self._restore(
                found, items, restore_kwargs, args))

    def _restore(self, found: StepItems, items: Any, restore_kwargs: Any, args: Any) -> Any:
        if self._default is None:
            self._default = found.is_default
            self._check_args(items, args)
        named: dict[str, Any]
        if args is not None:
            named = {DEFAULT_ITEM: args} if self._default else dict(args.items())
        else:
            named = self._legacy_restore_args(items, restore_kwargs)
        if not named:
            named = {name: self._handlers.default_restore_args(name, found.handler(name))
                     for name in found.all_names()
                     if not self._default or name == DEFAULT_ITEM}
        restored = restore_items(found, self._handlers, named)
        if not self._default:
            return restored
        if DEFAULT_ITEM not in restored:
            raise ValueError(f"Unable to retrieve default item: {found.path} has the items "
                             f"{found.names}; pass args=Composite(...)")
        return restored[DEFAULT_ITEM]

    def _legacy_restore_args(self, items: Any, restore_kwargs: Any) -> dict[str, Any]:
        if self._default:
            items = {} if items is None else {DEFAULT_ITEM: items}
            restore_kwargs = {} if restore_kwargs is None else {DEFAULT_ITEM: restore_kwargs}
        items, restore_kwargs = items or {}, restore_kwargs or {}
        return {name: self._handlers.args_of(name)[1](items.get(name),
                                                      **(restore_kwargs.get(name) or {}))
                for name in {**items, **restore_kwargs}}

    def item_metadata(self, step: int) -> Any:
        """Metadata of the items of a step: a Composite, or of the one item."""
        if step is None:
            raise ValueError("`step` must be provided: the root has no items")
        return self.metadata(step).item_metadata

    def metrics(self, step: int) -> Any:
        """The metrics of a step; None if it has none."""
        return self._steps.metrics(_step_number(step))

    def metadata(self, step: int | None = None) -> Any:
        """Metadata of a step: items, metrics, times, custom metadata. None: of the root."""
        if step is None:
            if self._root_metadata is None:
                self._root_metadata = RootMetadata(
                    custom_metadata=read_root_metadata(self._directory) or {})
            return self._root_metadata
        if self._is_saving(step):
            self.wait_until_finished()
        return self._steps.read(_step_number(step), self._described)

    def _described(self, found: StepItems) -> Any:
        if self._default is None:
            self._default = found.is_default
        handlers = {name: found.handler(name) for name in found.names}
        items = Composite(**{
            name: found.item_metadata(name, self._handlers.known_or_default(name, typestr))
            for name, typestr in handlers.items()})
        return found.described(handlers, items.get(DEFAULT_ITEM) if self._default else items)

    def _save_root_metadata(self, metadata: Mapping[str, Any] | None) -> None:
        if metadata is None:
            return
        if self._options.read_only:
            if read_root_metadata(self._directory) is None:
                self._root_metadata = RootMetadata(custom_metadata=dict(metadata))
        elif self._options.save_root_metadata:
            if self._steps.leads:
                write_root_metadata(self._directory, dict(metadata))
            self._steps.wait_for_all("writing the root's metadata")

    # ---- life ----

    def close(self) -> None:
        """Waits for the save under way, and closes the store. Steps can still be restored."""
        try:
            self.wait_until_finished()
        finally:
            self._composite.close()
            self._steps.close()

    def __enter__(self) -> CheckpointManager:
        return cast(CheckpointManager, super().__enter__())
