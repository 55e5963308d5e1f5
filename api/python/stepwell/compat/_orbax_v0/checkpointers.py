# SPDX-License-Identifier: Apache-2.0
"""`checkpointers`: single checkpoints, each a directory that is named when it is saved."""

from __future__ import annotations

import os
from typing import Any

from ..._runtime.files import local_path
from .._single import Form
from .._single import save as save_single
from .._work import Work
from .args import StandardRestore, StandardSave, ours
from .base import get_registered_args_cls, has_registered_args, is_args
from .composite_handler import CompositeCheckpointHandler
from .directories import open_directory
from .item_saving import (Saving, call, is_native, item_metadata, orbax_errors,
                          restore_item)
from .libraries import as_path
from .metadata import StepMetadata
from .native_handlers import FilesHandler, PyTreeCheckpointHandler, StandardCheckpointHandler
from .options import AsyncOptions
from .registry import LegacyArgs
from .step_items import DEFAULT_ITEM


class Checkpointer:
    """Saves an object as one checkpoint and restores it, with a handler. A context manager.

    The directory is a checkpoint of Orbax with the store of one step inside. It is made under
    another name and renamed, so it is there whole or not at all.
    """

    is_async = False
    timeout_secs = AsyncOptions.timeout_secs

    def __init__(self, handler: Any, *, multiprocessing_options: Any = None,
                 file_options: Any = None, atomicity_options: Any = None,
                 checkpoint_metadata_store: Any = None, temporary_path_class: Any = None) -> None:
        self._handler = handler
        self._async_options = AsyncOptions()
        self._work: Work[None] | None = None

    @property
    def handler(self) -> Any:
        return self._handler

    def _args(self, for_restore: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of a call in either style: `args=StandardSave(x)`, or x itself."""
        for each in (*args, *kwargs.values()):
            if is_args(each):
                return ours(each)
        if not has_registered_args(self._handler):
            return LegacyArgs(*args, **kwargs)
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
        with Saving() as saving:
            if isinstance(self._handler, CompositeCheckpointHandler):
                for name, each in sorted(given.items()):
                    saving.add(name, self._handler.items.get(name, each), each)
                form = Form(layout="v1", zarr=2)
            else:
                saving.add(DEFAULT_ITEM, self._handler, given)
                form = Form(layout="flat", zarr=2)
            with orbax_errors():
                self._work = save_single(
                    path, saving.items, overwrite=force, metadata=saving.metadata(custom_metadata),
                    form=form, timeout=self._async_options.timeout_secs,
                    finished=self._async_options.post_finalization_callback)
            if not self.is_async:
                self._wait()

    def _wait(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def restore(self, directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Restores a checkpoint. FileNotFoundError if there is none."""
        self._wait()
        given = self._args(True, args, kwargs)
        if self._reads_files():
            path = as_path(local_path(directory))
            if not path.is_dir():
                raise FileNotFoundError(f"Checkpoint at {path} not found.")
            return call(self._handler.restore, path, given)
        with open_directory(directory) as found:
            if isinstance(self._handler, CompositeCheckpointHandler):
                return self._handler.restored(found, given)
            return restore_item(found, DEFAULT_ITEM, self._handler, given)

    def _reads_files(self) -> bool:
        """Whether the handler reads files, which lie in the checkpoint's directory."""
        return not isinstance(self._handler, CompositeCheckpointHandler) and (
            isinstance(self._handler, FilesHandler) or not is_native(self._handler))

    def metadata(self, directory: str | os.PathLike[str]) -> Any:
        """Metadata of a checkpoint: of its items, times, custom metadata."""
        self._wait()
        with open_directory(directory) as found:
            begun, committed = found.times
            if isinstance(self._handler, CompositeCheckpointHandler):
                handlers: Any = {name: found.handler(name) for name in found.names}
                items = self._handler.metadata_of(found)
            else:
                handlers = found.handler(DEFAULT_ITEM)
                items = (self._handler.metadata(found.directory_of(DEFAULT_ITEM))
                         if self._reads_files() else
                         item_metadata(found, DEFAULT_ITEM, self._handler))
            return StepMetadata(
                item_handlers=handlers, item_metadata=items, init_timestamp_nsecs=begun,
                commit_timestamp_nsecs=committed, custom_metadata=found.custom_metadata)

    def close(self) -> None:
        """Waits for the save under way."""
        self._wait()
        self._handler.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AbstractCheckpointer = Checkpointer


class AsyncCheckpointer(Checkpointer):
    """A Checkpointer whose `save` returns once the object may be changed."""

    is_async = True

    def __init__(self, handler: Any, timeout_secs: int | None = None, *,
                 async_options: AsyncOptions | None = None, multiprocessing_options: Any = None,
                 file_options: Any = None, atomicity_options: Any = None,
                 checkpoint_metadata_store: Any = None, temporary_path_class: Any = None,
                 **_: Any) -> None:
        super().__init__(handler)
        self._async_options = async_options or AsyncOptions()
        self.timeout_secs = timeout_secs or self._async_options.timeout_secs
        self._async_options.timeout_secs = self.timeout_secs

    def wait_until_finished(self) -> None:
        """Waits until the save under way is done, and raises what went wrong with it."""
        self._wait()

    def check_for_errors(self) -> None:
        """Raises what went wrong with a save that is done."""
        if self._work is not None and self._work.done():
            self._wait()

    def cancel(self) -> None:
        """Abandons the save under way, and waits until it has stopped writing. A checkpoint that
        was at the path before stays."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()


class StandardCheckpointer(AsyncCheckpointer):
    """An AsyncCheckpointer of pytrees of arrays and numbers."""

    def __init__(self, *, async_options: AsyncOptions | None = None,
                 multiprocessing_options: Any = None, file_options: Any = None,
                 atomicity_options: Any = None, checkpoint_metadata_store: Any = None,
                 temporary_path_class: Any = None, **kwargs: Any) -> None:
        super().__init__(StandardCheckpointHandler(**kwargs), async_options=async_options)

    def save(self, directory: str | os.PathLike[str], state: Any,  # type: ignore[override]
             *, save_args: Any = None, force: bool = False,
             custom_metadata: dict[str, Any] | None = None) -> None:
        """Saves a pytree."""
        super().save(directory, args=StandardSave(state, save_args), force=force,
                     custom_metadata=custom_metadata)

    def restore(self, directory: str | os.PathLike[str],
                target: Any = None, *, strict: bool = True) -> Any:
        """Restores a pytree, into `target` if one is given."""
        return super().restore(directory, args=StandardRestore(target, strict=strict))


class PyTreeCheckpointer(Checkpointer):
    """A Checkpointer of pytrees."""

    def __init__(self, primary_host: int | None = 0, use_ocdbt: bool = True,
                 use_zarr3: bool = False, use_compression: bool = True) -> None:
        super().__init__(PyTreeCheckpointHandler(
            use_ocdbt=use_ocdbt, use_zarr3=use_zarr3, use_compression=use_compression))
