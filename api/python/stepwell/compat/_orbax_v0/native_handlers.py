# SPDX-License-Identifier: Apache-2.0
"""`handlers`: how each kind of item is saved and restored."""

from __future__ import annotations

import abc
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import args as args_lib
from .args import (ArrayRestore, ArraySave, JsonRestore, JsonSave, ProtoRestore, ProtoSave,
                   PyTreeRestore, PyTreeSave, StandardRestore, StandardSave)
from .base import (AsyncCheckpointHandler, get_registered_args_cls, is_args,
                   register_with_handler)
from .directories import opened, save_into
from .leaves import Want, read_leaves, want_of_args
from .libraries import jax_module, text_format
from .restore_tree import restore_pytree, restore_standard
from .step_items import StepItems
from .tree_names import flatten, tuple_path_from_keypath


_JSON_FILE = "metadata"


def json_item(value: Any) -> Any:
    """What `save(items=)` takes for an item of JSON."""
    from ... import Json

    return Json(value)


def files_item(folder: str) -> Any:
    """What `save(items=)` takes for an item of files."""
    from ... import Files

    return Files(folder)


class NativeHandler(AsyncCheckpointHandler):
    """A handler of Orbax that needs no files here. `save`, `restore` and `metadata` work on
    directories of Orbax, for handlers that are built on others."""

    _module = ""  # of Orbax

    @classmethod
    def typestr(cls) -> str:
        for each in cls.__mro__:
            if issubclass(each, NativeHandler) and each._module and (
                    each.__module__.startswith(__package__)):
                return f"orbax.checkpoint._src.handlers.{each._module}.{each.__name__}"
        return super().typestr()

    @abc.abstractmethod
    def item_of(self, args: Any, folder: Callable[[], str]) -> Any:
        """What is saved for `args`. `folder`: makes a directory for the time of the save."""

    @abc.abstractmethod
    def restored(self, step: StepItems, name: str, args: Any) -> Any:
        """What `args` ask for of an item."""

    def metadata_of(self, step: StepItems, name: str) -> Any:
        return None

    def _args(self, args: tuple[Any, ...], kwargs: dict[str, Any], for_restore: bool) -> Any:
        """The arguments of a call in either style: `args=StandardSave(x)`, or x itself."""
        if args and is_args(args[0]):
            raise ValueError("Make sure to specify kwarg name `args=` when providing "
                             f"`{type(args[0]).__name__}`.")
        given = kwargs.get("args")
        if given is not None:
            return args_lib.ours(given)
        kwargs = {name: value for name, value in kwargs.items() if name != "args"}
        return get_registered_args_cls(self)[for_restore](*args, **kwargs)

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="stepwell-item-") as folder:
            save_into(directory, self.item_of(self._args(args, kwargs, False), lambda: folder))

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(directory, "await_creation"):
            directory = await directory.await_creation()
        self.save(directory, *args, **kwargs)
        return []

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        with opened(directory) as (step, name):
            return self.restored(step, name, self._args(args, kwargs, True))

    def metadata(self, directory: Any) -> Any:
        with opened(directory) as (step, name):
            return self.metadata_of(step, name)


# ---- trees --------------------------------------------------------------------------------------


def _casts(save_args: Any) -> dict[tuple[str, ...], Any]:
    """Dtypes that SaveArgs, ours or Orbax's own, ask for, by the names of leaves."""
    def is_leaf(each: Any) -> bool:
        return hasattr(each, "aggregate") and hasattr(each, "dtype")

    return {names: each.dtype for names, each in flatten(save_args, is_leaf)
            if is_leaf(each) and each.dtype is not None}


def _cast(leaf: Any, dtype: Any) -> Any:
    if isinstance(leaf, (int, float)):
        return np.asarray(leaf).astype(dtype).item()
    return leaf.astype(dtype) if hasattr(leaf, "astype") else leaf


def _prepared(tree: Any, save_args: Any) -> Any:
    """The tree as it is saved: cast as SaveArgs say; array-likes of other libraries as arrays."""
    jax = jax_module()

    casts = _casts(save_args)

    def prepare(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, (np.ndarray, jax.Array)) and hasattr(leaf, "__array__"):
            leaf = np.asarray(leaf)
        if casts:
            dtype = casts.get(tuple_path_from_keypath(path))
            if dtype is not None:
                return _cast(leaf, dtype)
        return leaf

    flat, treedef = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [prepare(path, leaf) for path, leaf in flat]
    if all(new is old for new, (_, old) in zip(leaves, flat, strict=True)):
        return tree  # as it is: with its own types of nodes
    return jax.tree_util.tree_unflatten(treedef, leaves)


class _TreeHandler(NativeHandler):
    """What the handlers of pytrees have in common."""

    def metadata_of(self, step: StepItems, name: str) -> Any:
        if step.kind(name) != "tree":
            return None
        return step.tree(name).metadata(step.directory_of(name), step.custom_metadata_of(name))


class StandardCheckpointHandler(_TreeHandler):
    """Saves and restores pytrees of arrays and numbers."""

    _module = "standard_checkpoint_handler"

    def __init__(self, *, save_concurrent_gb: int = 96, restore_concurrent_gb: int = 96,
                 multiprocessing_options: Any = None, pytree_metadata_options: Any = None,
                 use_ocdbt: bool = True) -> None:
        pass

    def item_of(self, args: Any, folder: Callable[[], str]) -> Any:
        if args.item is None:
            raise ValueError("Must provide item to save.")
        if _is_single(args.item):
            raise ValueError("StandardCheckpointHandler / StandardSave does not support single "
                             "arrays or scalars. Use ArrayCheckpointHandler / ArraySave")
        return _prepared(args.item, args.save_args)

    def restored(self, step: StepItems, name: str, args: Any) -> Any:
        return restore_standard(step.tree(name), args)


def _is_single(item: Any) -> bool:
    jax = jax_module()

    return isinstance(item, (jax.Array, int, float, complex, np.number))


class PyTreeCheckpointHandler(_TreeHandler):
    """Saves and restores any pytree."""

    _module = "pytree_checkpoint_handler"

    def __init__(self, aggregate_filename: str | None = None, *,
                 save_concurrent_gb: int | None = None, restore_concurrent_gb: int | None = None,
                 save_device_host_concurrent_gb: int | str | None = None,
                 memory_limit_options: Any = None, use_ocdbt: bool = True, use_zarr3: bool = False,
                 use_compression: bool = True, multiprocessing_options: Any = None,
                 type_handler_registry: Any = None, handler_impl: Any = None,
                 pytree_metadata_options: Any = None, array_metadata_validator: Any = None,
                 enable_pinned_host_transfer: bool | None = None,
                 is_prioritized_key_fn: Any = None) -> None:
        pass

    def item_of(self, args: Any, folder: Callable[[], str]) -> Any:
        return _prepared(args.item, args.save_args)

    def restored(self, step: StepItems, name: str, args: Any) -> Any:
        return restore_pytree(step.tree(name), args)


class ArrayItem(NamedTuple):
    """How an array that is an item is stored: Orbax gives it this name."""

    checkpoint: Any


class ArrayCheckpointHandler(NativeHandler):
    """Saves and restores single arrays and numbers."""

    _module = "array_checkpoint_handler"

    def __init__(self, checkpoint_name: str | None = None) -> None:
        pass

    def item_of(self, args: Any, folder: Callable[[], str]) -> Any:
        jax = jax_module()

        item = args.item
        if not isinstance(item, (np.ndarray, jax.Array, int, float, np.number)):
            raise TypeError(f"Unsupported type: {type(item)}.")
        dtype = getattr(args.save_args, "dtype", None)
        return ArrayItem(item if dtype is None else _cast(item, dtype))

    def restored(self, step: StepItems, name: str, args: Any) -> Any:
        stored = step.tree(name)
        (number, *more) = stored.leaves.values()
        if more:
            raise ValueError(f"step {step.step}: item {name!r} is a tree of {1 + len(more)} "
                             "leaves; ArrayRestore is for single arrays")
        want = Want() if args.restore_args is None else want_of_args(args.restore_args, args.item)
        return read_leaves(stored, [(number, want)])[number]


# ---- JSON and protocol buffers -------------------------------------------------------------------


class FilesHandler(NativeHandler):
    """A handler of Orbax whose items are files: `write` and `read` know them."""

    def item_of(self, args: Any, folder: Callable[[], str]) -> Any:
        path = folder()
        self.write(path, args)
        return files_item(path)

    def restored(self, step: StepItems, name: str, args: Any) -> Any:
        with step.files(name) as folder:
            return self.read(os.fspath(folder), args)

    @abc.abstractmethod
    def write(self, folder: str, args: Any) -> None:
        """Writes what `args` say into `folder`, which exists."""

    @abc.abstractmethod
    def read(self, folder: str, args: Any) -> Any:
        """What `args` ask for of the files in `folder`."""

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        self.write(os.fspath(directory), self._args(args, kwargs, False))

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        return self.read(os.fspath(directory), self._args(args, kwargs, True))

    def metadata(self, directory: Any) -> Any:
        return None


class JsonCheckpointHandler(FilesHandler):
    """Saves and restores what JSON holds, in the file `filename`."""

    _module = "json_checkpoint_handler"

    def __init__(self, filename: str | None = None, *, multiprocessing_options: Any = None) -> None:
        self._filename = filename or _JSON_FILE

    def item_of(self, args: Any, folder: Callable[[], str]) -> Any:
        if self._filename == _JSON_FILE:
            return json_item(args.item)
        return super().item_of(args, folder)

    def restored(self, step: StepItems, name: str, args: Any) -> Any:
        return step.json(name) if step.kind(name) == "json" else super().restored(step, name, args)

    def write(self, folder: str, args: Any) -> None:
        with open(os.path.join(folder, self._filename), "w", encoding="utf-8") as file:
            json.dump(args.item, file)

    def read(self, folder: str, args: Any) -> Any:
        with open(os.path.join(folder, self._filename), encoding="utf-8") as file:
            return json.load(file)


class ProtoCheckpointHandler(FilesHandler):
    """Saves and restores protocol buffers, as text."""

    _module = "proto_checkpoint_handler"

    def __init__(self, filename: str = "proto.pbtxt", *, multiprocessing_options: Any = None
                 ) -> None:
        self._filename = filename

    def write(self, folder: str, args: Any) -> None:
        with open(os.path.join(folder, self._filename), "w", encoding="utf-8") as file:
            file.write(text_format().MessageToString(args.item))

    def read(self, folder: str, args: Any) -> Any:
        with open(os.path.join(folder, self._filename), encoding="utf-8") as file:
            return text_format().Parse(file.read(), args.item())


def _register() -> None:
    for handler, save, restore in (
            (StandardCheckpointHandler, StandardSave, StandardRestore),
            (PyTreeCheckpointHandler, PyTreeSave, PyTreeRestore),
            (ArrayCheckpointHandler, ArraySave, ArrayRestore),
            (JsonCheckpointHandler, JsonSave, JsonRestore),
            (ProtoCheckpointHandler, ProtoSave, ProtoRestore)):
        register_with_handler(handler, for_save=True)(save)
        register_with_handler(handler, for_restore=True)(restore)


_register()
