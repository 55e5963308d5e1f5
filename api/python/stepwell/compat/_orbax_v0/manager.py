# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: the steps of a run in one directory."""

from __future__ import annotations

import contextlib
import datetime
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import InvalidArgumentError, StepNotFoundError
from .._orbax_root import read_root_metadata, write_root_metadata
from .args import Composite, ours
from .background import PendingSave
from .base import is_args, is_handler
from .checkpointers import Checkpointer
from .composite import CompositeMapping
from .infos import UTC, CheckpointInfo, best, keep_policy, save_policy
from .item_saving import Saving, item_metadata, restore_items
from .libraries import as_path
from .metadata import RootMetadata, StepMetadata
from .multihost import is_primary_host, reached_preemption
from .options import AsyncOptions, CheckpointManagerOptions, logger
from .preservation_policy import PreservationContext
from .registry import ItemHandlers
from .save_decision_policy import DecisionContext
from .step_items import DEFAULT_ITEM, StepItems
from .step_root import StepRoot


class StepAlreadyExistsError(ValueError):
    """A step is saved that exists already."""


def _step_number(step: Any) -> int:
    """A step as an int. Flax knows steps that are floats; a store does not."""
    try:
        return operator.index(step)
    except TypeError:
        raise InvalidArgumentError(f"a step is an int, not {step!r}: round it, or count the saves "
                                   "and keep the number itself in custom_metadata") from None


class CheckpointManager:
    """Saves and restores the steps of a run, and deletes old ones.

    directory: where the steps are: `directory/<step>/…` in Orbax's layout, with the store beside
        them in `directory/.stepwell`. It may be the directory of a manager of Orbax.
    checkpointers: of the legacy interface: one, or a dict by item name.
    metadata: of the root; written once.
    item_names, item_handlers, handler_registry: how items are saved; without, the arguments of the
        first save or restore of each item say it.
    """

    def __init__(self, directory: str | os.PathLike[str], checkpointers: Any = None,
                 options: CheckpointManagerOptions | None = None,
                 metadata: Mapping[str, Any] | None = None,
                 item_names: Sequence[str] | None = None, item_handlers: Any = None,
                 logger: Any = None, handler_registry: Any = None) -> None:
        self._options = options or CheckpointManagerOptions()
        self._save_policy = save_policy(self._options)
        self._keep_policy = keep_policy(self._options)
        self._is_async = self._options.enable_async_checkpointing
        self._default: bool | None = None  # whether steps are one item without a name
        self._handlers = self._configure(checkpointers, item_names, item_handlers,
                                         handler_registry)
        self._async_options = self._options.async_options or AsyncOptions()
        if self._async_options.post_finalization_callback is not None and not self._is_async:
            raise ValueError("AsyncOptions.post_finalization_callback needs "
                             "enable_async_checkpointing=True or an AsyncCheckpointer")
        if self._options.create and (
                self._options.multiprocessing_options.active_processes is not None):
            raise NotImplementedError("Option `create=True` with `active_processes` set is not "
                                      "supported. Please create the root directory yourself.")
        self._root = StepRoot(os.fspath(directory), self._options)
        self._directory = as_path(directory)
        self._pending: PendingSave | None = None
        self._infos = self._root.infos(self._options.lightweight_initialize)
        self._root_metadata: RootMetadata | None = None
        self._save_root_metadata(metadata)

    def _configure(self, checkpointers: Any, item_names: Sequence[str] | None, item_handlers: Any,
                   registry: Any) -> ItemHandlers:
        """The handlers of items, as one of three interfaces says them."""
        given = {"checkpointers": checkpointers, "item_names": item_names,
                 "item_handlers": item_handlers, "handler_registry": registry}
        for one, other in (("checkpointers", "item_names"), ("checkpointers", "item_handlers"),
                           ("checkpointers", "handler_registry"),
                           ("item_handlers", "handler_registry"),
                           ("item_names", "handler_registry")):
            if given[one] and given[other]:
                raise ValueError(f"`{one}` and `{other}` are mutually exclusive")
        if checkpointers is not None:
            return self._configure_legacy(checkpointers)
        if item_handlers is not None and is_handler(item_handlers):
            if item_names:
                raise ValueError("`item_handlers` is one handler, of an item without a name; "
                                 "`item_names` and it are mutually exclusive")
            self._default = True
            return ItemHandlers(items_and_handlers={DEFAULT_ITEM: item_handlers})
        if item_names is not None or item_handlers is not None:
            self._default = False
            return ItemHandlers(tuple(item_names or ()), None, dict(item_handlers or {}))
        return ItemHandlers(handler_registry=registry)

    def _configure_legacy(self, checkpointers: Any) -> ItemHandlers:
        if self._options.multiprocessing_options.primary_host != 0:
            raise ValueError("`primary_host` other than 0 is not supported in legacy API.")
        named = checkpointers if isinstance(checkpointers, Mapping) else {
            DEFAULT_ITEM: checkpointers}
        for name, each in named.items():
            if not isinstance(each, Checkpointer):
                raise ValueError(f"Value corresponding to {name} in `checkpointers` is not a "
                                 f"Checkpointer. Found {type(each)}.")
        self._default = not isinstance(checkpointers, Mapping)
        self._is_async = any(each.is_async for each in named.values())
        if self._options.async_options is None:
            timeouts = [each.timeout_secs for each in named.values() if each.is_async]
            self._options.async_options = AsyncOptions(
                timeout_secs=max(timeouts, default=AsyncOptions.timeout_secs))
        return ItemHandlers(items_and_handlers={name: each.handler
                                                for name, each in named.items()})

    # ---- steps ----

    @property
    def directory(self) -> Any:
        """The directory with the steps."""
        return self._directory

    def all_steps(self, read: bool = False) -> Sequence[int]:
        """The steps that there are, those being saved included. `read` looks at the disk."""
        if read:
            self.reload()
        return [info.step for info in self._infos]

    def latest_step(self) -> int | None:
        """The last step; None if there is none."""
        return self._infos[-1].step if self._infos else None

    def best_step(self) -> int | None:
        """The step with the best metrics by `best_fn`; without it the last one."""
        if self._options.best_fn is None:
            return self.latest_step()
        found = best(self._infos, self._options)
        return None if found is None else found.step

    def reload(self) -> None:
        """Looks at the disk for steps that others saved or deleted."""
        self._infos = self._root.infos(lightweight=False)

    def reached_preemption(self, step: int) -> bool:
        """Whether JAX's preemption service has reached its sync point."""
        return reached_preemption(step)

    def should_save(self, step: int) -> bool:
        """Whether the options ask to save this step. Never for one that is not behind the last."""
        step = _step_number(step)
        if self._options.read_only:
            logger.warning("%s is read only, save will be skipped", self._directory)
            return False
        latest = self.latest_step()
        if latest is not None and latest >= step:
            return False
        context = DecisionContext(
            is_saving_in_progress=(self._options.enable_should_save_is_saving_in_progress_check
                                   and self.is_saving_in_progress()),
            reached_preemption=self.reached_preemption(step),
            multiprocessing_options=self._options.multiprocessing_options)
        info = CheckpointInfo(step, datetime.datetime.now(tz=UTC), None)
        return bool(self._save_policy.should_save(info, previous_steps=list(self._infos),
                                                  context=context))

    def delete(self, step: int) -> None:
        """Deletes a step. Raises FileNotFoundError if the step does not exist."""
        if self._options.read_only:
            logger.warning("%s is read only, delete will be skipped", self._directory)
            return
        step = _step_number(step)
        if step not in self.all_steps():
            raise FileNotFoundError(f"Requested deleting a non-existent step: {step}. There are "
                                    f"{self.all_steps()}.")
        if self._pending is not None and self._pending.step == step:
            self.wait_until_finished()
        self._root.delete(step)
        self._infos = [info for info in self._infos if info.step != step]
        self._root.wait_for_view()

    # ---- saving ----

    def _check_args(self, items: Any, args: Any) -> None:
        if is_args(items):
            raise ValueError("`items` is an object of arguments: pass it as `args=`")
        if args is None:
            return
        if not is_args(args):
            raise ValueError(f"Expected args of type `CheckpointArgs`; found {type(args)}.")
        if self._default and isinstance(args, CompositeMapping):
            raise ValueError("Cannot provide `args` of type `Composite` when dealing with a "
                             "single, unnamed (default) checkpointable object.")
        if not self._default and not isinstance(args, CompositeMapping):
            raise ValueError("Must provide `args` of type `Composite` when dealing with multiple "
                             "checkpointable objects.")

    def save(self, step: int, items: Any = None, save_kwargs: Any = None, metrics: Any = None,
             force: bool | None = False, args: Any = None,
             custom_metadata: dict[str, Any] | None = None) -> bool:
        """Saves a step in the background, if the options ask for it; returns whether it does.

        args: `args.StandardSave(state)` and the like, or `args.Composite` of them by item name.
        items, save_kwargs: of the legacy interface. metrics: JSON, for `best_fn`. force: saves
        whatever the options say, but never over an existing step (StepAlreadyExistsError).
        custom_metadata: JSON, in `metadata(step).custom_metadata`. Waits for the save before.
        """
        step = _step_number(step)
        args = ours(args)
        if items is None and args is None:
            raise ValueError("Must provide `args` for `save`.")
        if self._default is None:
            self._default = not isinstance(args, CompositeMapping)
        self._check_args(items, args)
        if not force and not self.should_save(step):
            return False
        self._wait_for_save()
        if step in self.all_steps():
            raise StepAlreadyExistsError(f"Checkpoint for step {step} already exists.")
        named = self._named_args(items, save_kwargs, args)
        tracked = self._options.best_fn is not None
        if tracked and metrics is None:
            logger.warning("step %d: best_fn is set, but no metrics are given", step)
        stored_metrics = None if self._options.prevent_write_metrics or not tracked else metrics
        with Saving() as saving:
            for name, each in sorted(named.items()):
                saving.add(name, self._handlers.get(name, each), each)
            handle = self._root.save(step, saving, stored_metrics, custom_metadata)
        self._infos.append(CheckpointInfo(step, datetime.datetime.now(tz=UTC), metrics))
        old = self._take_old()
        self._pending = PendingSave(step, handle, lambda: self._finish(old))
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

    def _take_old(self) -> list[int]:
        """Takes the steps that the policy does not keep out of the list."""
        infos = list(self._infos)
        flags = self._keep_policy.should_preserve(list(infos), context=PreservationContext())
        old = [info.step for info, keep in zip(infos, flags, strict=True) if not keep]
        # Not of `infos`: a signal handler may have saved meanwhile.
        self._infos = [info for info in self._infos if info.step not in old]
        return old

    def _finish(self, old: Iterable[int]) -> None:
        """What follows a save that is durable."""
        for step in old:
            with contextlib.suppress(StepNotFoundError):  # another manager deleted it
                self._root.delete(step)
        if self._async_options.post_finalization_callback is not None:
            self._async_options.post_finalization_callback()

    def wait_until_finished(self) -> None:
        """Waits until the save under way is done and its step stands in the directory. Raises what
        went wrong with the save."""
        if self._pending is not None:
            self._wait_for_save()
            self._root.wait_for_view()

    def _wait_for_save(self) -> None:
        pending = self._pending
        if pending is None:
            return
        try:
            pending.wait(self._async_options.timeout_secs)
        except TimeoutError:
            raise
        except BaseException:
            self._infos = [info for info in self._infos if info.step != pending.step]
            raise

    def check_for_errors(self) -> None:
        """Raises what went wrong with a save that is done."""
        if self._pending is not None and self._pending.done():
            self._pending.check()

    def is_saving_in_progress(self) -> bool:
        """Whether a save is under way."""
        return self._pending is not None and not self._pending.done()

    # ---- restoring ----

    def restore(self, step: int | None, items: Any = None, restore_kwargs: Any = None,
                directory: str | os.PathLike[str] | None = None, args: Any = None) -> Any:
        """Restores a step (None: the last): one object, or a Composite of several.

        args: `args.StandardRestore(target)` and the like, or a Composite of them; without, all of
        the step as it was saved. directory: another root to restore from.

        Raises FileNotFoundError (no such step), KeyError (no such item), ValueError (the target
        does not fit).
        """
        args = ours(args)
        with self._root.other(directory) as root:
            if step is None:
                step = self.latest_step() if directory is None else max(root.steps(), default=None)
                if step is None:
                    raise FileNotFoundError(f"No steps found in {directory or self._directory}.")
            if self._default is not None:
                self._check_args(items, args)
            if directory is None and self._pending is not None and self._pending.step == step:
                self.wait_until_finished()
            found = root.items(_step_number(step))
            return self._restore(found, items, restore_kwargs, args)

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
                     for name in found.names
                     if not self._default or name == DEFAULT_ITEM}
        restored = restore_items(found, self._handlers, named)
        if not self._default:
            return Composite(**restored)
        if DEFAULT_ITEM not in restored:
            raise ValueError(f"Unable to retrieve default item: step {found.step} has the items "
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
        return self._root.metrics(_step_number(step))

    def metadata(self, step: int | None = None) -> Any:
        """Metadata of a step: items, metrics, times, custom metadata. None: of the root."""
        if step is None:
            if self._root_metadata is None:
                self._root_metadata = RootMetadata(
                    custom_metadata=read_root_metadata(self._directory) or {})
            return self._root_metadata
        if self._pending is not None and self._pending.step == step:
            self.wait_until_finished()
        found = self._root.items(_step_number(step))
        if self._default is None:
            self._default = found.is_default
        handlers = {name: found.handler(name) for name in found.names}
        items = {name: item_metadata(found, name, self._handlers.known_or_default(
            name, handlers[name])) for name in found.names}
        begun, committed = found.times
        return StepMetadata(
            item_handlers=handlers,
            item_metadata=items.get(DEFAULT_ITEM) if self._default else Composite(**items),
            metrics=found.view.metrics or {}, init_timestamp_nsecs=begun,
            commit_timestamp_nsecs=committed, custom_metadata=found.custom_metadata)

    def _save_root_metadata(self, metadata: Mapping[str, Any] | None) -> None:
        if metadata is None:
            return
        if self._options.read_only:
            if read_root_metadata(self._directory) is None:
                self._root_metadata = RootMetadata(custom_metadata=dict(metadata))
        elif self._options.save_root_metadata:
            if is_primary_host(0):
                write_root_metadata(self._directory, dict(metadata))
            self._root.wait_for_all("writing the root's metadata")

    # ---- life ----

    def close(self) -> None:
        """Waits for the save under way, and closes the store. Steps can still be restored."""
        try:
            self.wait_until_finished()
        finally:
            for handler in {id(each): each for each in self._handlers.known().values()
                            if hasattr(each, "close")}.values():
                handler.close()
            self._root.close()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
