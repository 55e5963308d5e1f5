# SPDX-License-Identifier: Apache-2.0
"""Checkpointers: single checkpoints, each a directory that is named when it is saved.

The directory is a checkpoint of Orbax with the store of one step inside. It is made under another
name and renamed, so it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

import orbax.checkpoint as orbax
from orbax.checkpoint.args import CheckpointArgs, get_registered_args_cls

from ..._runtime.files import local_path, undisturbed
from ...errors import CheckpointNotFoundError
from .. import _resolve
from .._orbax_common import orbax_errors
from .._single import Form
from .._work import Work
from .item_handlers import ItemHandlers
from .item_saving import Saving
from .step_items import DEFAULT_ITEM, StepItems, restore_items

_WITHOUT_METADATA = ("manifest.ocdbt", "checkpoint")  # files that tell a tree of Orbax


class Checkpointer(orbax.Checkpointer):
    """Orbax's Checkpointer, whose checkpoints are Stepwell's."""

    is_async = False
    _save_options = orbax.AsyncOptions()  # how its saves run in the background

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        composite = isinstance(self._handler, orbax.CompositeCheckpointHandler) and all(
            getattr(type(self._handler), name) is getattr(orbax.CompositeCheckpointHandler, name)
            for name in ("save", "async_save", "restore"))
        self._items = ItemHandlers(self._handler) if composite else None
        self._works: list[Work[None]] = []  # saves under way, of all threads

    def _args(self, for_restore: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of a call in either style: `args=StandardSave(x)`, or x itself."""
        for each in (*args, *kwargs.values()):
            if isinstance(each, CheckpointArgs):
                return each
        return get_registered_args_cls(self._handler)[for_restore](*args, **kwargs)

    def save(self, directory: str | os.PathLike[str], *args: Any, force: bool = False,
             custom_metadata: dict[str, Any] | None = None, save_context: Any = None,
             **kwargs: Any) -> None:
        """Saves a checkpoint. ValueError if the directory exists, unless `force` replaces it."""
        self._wait()
        path = local_path(directory)
        if os.path.lexists(path) and not force:
            raise ValueError(f"Destination {path} already exists.")
        given = self._args(False, args, kwargs)
        saving = Saving(self._save_options.timeout_secs if self.is_async else None)
        if self._items is not None:
            for name, each in sorted(given.items()):
                saving.add(name, self._items.get(name, each), each)
        else:
            saving.add(DEFAULT_ITEM, self._handler, given)
        form = Form(layout="flat" if self._items is None else "v1", zarr=2)
        with orbax_errors():
            self._works.append(_resolve.save(
                path, saving.items, overwrite=force, metadata=saving.metadata(custom_metadata),
                form=form, timeout=self._save_options.timeout_secs,
                finished=self._save_options.post_finalization_callback))
        if not self.is_async:
            self._wait()

    def _wait(self) -> None:
        for work in list(self._works):
            try:
                work.result()
            finally:
                if work.done():
                    self._forget(work)

    def _forget(self, work: Work[None]) -> None:
        with contextlib.suppress(ValueError):  # another thread did
            self._works.remove(work)

    def restore(self, directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Restores a checkpoint. FileNotFoundError if there is none."""
        self._wait()
        given = self._args(True, args, kwargs)
        return undisturbed(local_path(directory), lambda: self._restore(directory, given))

    def _restore(self, directory: str | os.PathLike[str], given: Any) -> Any:
        with self._opened(directory) as opened:
            items = StepItems(opened)
            if self._items is None:
                items.check_is_one()
                return items.restore(DEFAULT_ITEM, self._handler, given)
            named = {} if given is None else dict(given.items())
            return restore_items(items, self._items, named or {
                name: self._items.default_restore_args(name, items.handler(name))
                for name in items.all_names()})

    def _opened(self, directory: str | os.PathLike[str]) -> _resolve.Opened:
        path = local_path(directory)
        if os.path.isdir(path) and orbax.utils.is_tmp_checkpoint(path):
            raise ValueError(f"Found incomplete checkpoint at {path}.")
        try:
            return _resolve.opened(path)
        except CheckpointNotFoundError:
            # An old one, of which only the arguments of a restore can tell what is in it.
            if self._items is None and os.path.isdir(path) and any(
                    os.path.exists(os.path.join(path, name)) for name in _WITHOUT_METADATA):
                found = _resolve.OrbaxCheckpoint(path)
                found.flat, found.names = True, [DEFAULT_ITEM]
                return found
            raise

    def metadata(self, directory: str | os.PathLike[str]) -> Any:
        """Metadata of a checkpoint: of its items, times, custom metadata."""
        self._wait()
        return undisturbed(local_path(directory), lambda: self._metadata(directory))

    def _metadata(self, directory: str | os.PathLike[str]) -> Any:
        with self._opened(directory) as opened:
            items = StepItems(opened)
            if self._items is None:
                items.check_is_one()
                return items.described(items.handler(DEFAULT_ITEM),
                                       items.item_metadata(DEFAULT_ITEM, self._handler))
            handlers = {name: items.handler(name) for name in items.names}
            return items.described(handlers, orbax.args.Composite(**{
                name: items.item_metadata(name, self._items.known_or_default(name, typestr))
                for name, typestr in handlers.items()}))

    def close(self) -> None:
        """Waits for the save under way."""
        self._wait()
        super().close()


class AsyncCheckpointer(Checkpointer, orbax.AsyncCheckpointer):
    """A Checkpointer whose `save` returns once the object may be changed."""

    is_async = True

    def __init__(self, handler: Any, timeout_secs: int | None = None, *,
                 async_options: orbax.AsyncOptions | None = None, **more: Any) -> None:
        self._save_options = orbax.AsyncOptions(**vars(async_options or orbax.AsyncOptions()))
        self._save_options.timeout_secs = timeout_secs or self._save_options.timeout_secs
        super().__init__(handler, timeout_secs, async_options=self._save_options, **more)

    def wait_until_finished(self) -> None:
        """Waits until the save under way is done, and raises what went wrong with it."""
        self._wait()

    def check_for_errors(self) -> None:
        """Raises what went wrong with a save that is done."""
        for work in [work for work in list(self._works) if work.done()]:
            self._forget(work)
            work.result()

    def cancel(self) -> None:
        """Abandons the save under way, and waits until it has stopped writing. A checkpoint that
        was at the path before stays."""
        for work in list(self._works):
            self._forget(work)
            work.cancel()


class StandardCheckpointer(orbax.StandardCheckpointer, AsyncCheckpointer):
    """An AsyncCheckpointer of pytrees of arrays and numbers."""

    if TYPE_CHECKING:  # Orbax's, which has no types

        def __init__(self, **options: Any) -> None: ...


class PyTreeCheckpointer(orbax.PyTreeCheckpointer, Checkpointer):
    """A Checkpointer of pytrees."""

    if TYPE_CHECKING:

        def __init__(self, *options: Any, **more: Any) -> None: ...


for _ours, _theirs in ((Checkpointer, orbax.Checkpointer),
                       (AsyncCheckpointer, orbax.AsyncCheckpointer)):
    functools.update_wrapper(vars(_ours)["__init__"], _theirs.__init__)  # for inspect.signature
