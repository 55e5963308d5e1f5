# SPDX-License-Identifier: Apache-2.0
"""Equinox's `tree_serialise_leaves` and `tree_deserialise_leaves` over Stepwell.

    from stepwell.compat import equinox as eqx_io

    eqx_io.tree_serialise_leaves("run.eqx", {"model": model, "opt_state": opt_state})
    model = eqx_io.tree_deserialise_leaves("run.eqx", model_like, path="model")

Leaves are found by their path in the tree, not by their position in a file. So a subtree loads
without the rest, and a renamed or reordered field is an error instead of another leaf's data.

What differs from Equinox:

- `run.eqx` is a directory, written under another name and renamed: it is whole and durable, or
  not there. It replaces an earlier one, also a file that Equinox wrote. Any other directory raises
  IsADirectoryError, as in Equinox.
- Files that Equinox wrote load through the same function. Objects with `write` or `read` take
  Equinox's own format, through Equinox.
- Every leaf of another shape or dtype, and every one that only `like` or only the file has, is in
  one TreeMismatchError, a RuntimeError as Equinox's. A leaf or a subtree that is `...` in `like`
  is left out and stays `...`.
- Typed PRNG keys are saved.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _store
from .._pytree.records import PathLike
from .._runtime.files import undisturbed
from .._views import ArrayView, NodeView
from ..errors import (CheckpointNotFoundError, Error, InvalidArgumentError, Mismatch, MismatchError,
                      PathNotFoundError)
from . import _single

__all__ = ["TreeMismatchError", "default_deserialise_filter_spec", "default_serialise_filter_spec",
           "tree_deserialise_leaves", "tree_serialise_leaves"]

_IsLeaf = Callable[[Any], bool] | None
_CUSTOM_KEY = "equinox_filter_spec"  # in the metadata: leaves may be files that a function wrote
_FILE_KEY = "equinox_leaf_file"  # of such a file, in the place of the leaf


class TreeMismatchError(MismatchError, RuntimeError):
    """The stored tree does not fit `like`: MismatchError, and the RuntimeError of Equinox."""


def default_serialise_filter_spec(f: Any, x: Any) -> None:
    """Saves arrays, NumPy scalars, bool, int, float and complex; leaves out everything else."""
    if not isinstance(f, _LeafWriter):
        _equinox().default_serialise_filter_spec(f, x)
    elif _is_saved(x):
        f.leaf = x


def default_deserialise_filter_spec(f: Any, x: Any) -> Any:
    """Loads what `default_serialise_filter_spec` saves; gives everything else as it is."""
    if not isinstance(f, _LeafReader):
        return _equinox().default_deserialise_filter_spec(f, x)
    return f.load(x) if _is_loaded(x) else x


def tree_serialise_leaves(path_or_file: Any, pytree: Any,
                          filter_spec: Any = default_serialise_filter_spec,
                          is_leaf: _IsLeaf = None) -> None:
    """Saves the leaves of a tree; they are durable when it returns.

    path_or_file: a path, to which ".eqx" is added if it has no suffix; or an object with `write`,
        which gets the format of Equinox.
    filter_spec: a function (file, leaf) that saves a leaf or does nothing, or a tree of such
        functions. What a function of yours writes is kept as a file of its own for this leaf.
    is_leaf: as in Equinox.

    Raises IsADirectoryError if the path is a directory that Stepwell did not make.
    """
    if not isinstance(path_or_file, (str, os.PathLike)):
        _equinox().tree_serialise_leaves(path_or_file, pytree, filter_spec, is_leaf)
        return

    def save(spec: Any, _: tuple[Any, ...], leaf: Any) -> Any:
        writer = _LeafWriter()
        (default_serialise_filter_spec if _is_default(spec) else spec)(writer, leaf)
        return writer.result()

    tree = _map(save, filter_spec, pytree, is_leaf)
    _single.save(_with_suffix(path_or_file), {"state": tree}, overwrite=True,
                 metadata=None if _is_default(filter_spec) else {_CUSTOM_KEY: True},
                 check=_check_replaceable).result()


def _check_replaceable(path: str) -> None:
    if os.path.isdir(path) and _single.store_in(path) is None:
        raise IsADirectoryError(errno.EISDIR, "a directory that is no checkpoint of Stepwell", path)


def tree_deserialise_leaves(path_or_file: Any, like: Any,
                            filter_spec: Any = default_deserialise_filter_spec,
                            is_leaf: _IsLeaf = None, *, path: PathLike | None = None) -> Any:
    """Loads leaves into the structure of `like`, by path.

    like: a tree with concrete leaves or jax.ShapeDtypeStructs. What `filter_spec` does not load
        stays as it is here.
    filter_spec: a function (file, leaf of like) that gives the loaded leaf, or a tree of such
        functions.
    path: the subtree that `like` is of, e.g. "model" or "model/layers/0"; None: all. Files of
        Equinox have no paths.

    TreeMismatchError when leaves do not fit; PathNotFoundError when there is nothing at `path`.
    """
    if not isinstance(path_or_file, (str, os.PathLike)) or os.path.isfile(
            _with_suffix(path_or_file)):
        if path is not None:
            raise InvalidArgumentError(
                f"path={path!r} needs a checkpoint of Stepwell: a file of Equinox has leaves by "
                "position only. Load all of it, and save it with tree_serialise_leaves")
        return _equinox().tree_deserialise_leaves(path_or_file, like, filter_spec, is_leaf)
    name = _with_suffix(path_or_file)
    return undisturbed(name, lambda: _deserialise(name, like, filter_spec, is_leaf, path))


def _deserialise(name: str, like: Any, filter_spec: Any, is_leaf: _IsLeaf, path: PathLike | None
                 ) -> Any:
    store = _single.open_store(name)
    if store is None:
        raise CheckpointNotFoundError(f"{name!r} is not there, or is not a checkpoint")
    with store:
        step = store[_single.STEP]
        if _is_default(filter_spec) and not (step.metadata or {}).get(_CUSTOM_KEY):
            return _load_all(store, path, like, is_leaf)
        view = step[path or "state"]

        def load(spec: Any, components: tuple[Any, ...], leaf: Any) -> Any:
            if _is_default(spec):
                spec = default_deserialise_filter_spec
            return spec(_LeafReader(view, components), leaf)

        return _map(load, filter_spec, like, is_leaf)


def _load_all(store: _store.Store, path: PathLike | None, like: Any, is_leaf: _IsLeaf) -> Any:
    leaves, structure = _jax().tree.flatten(like, is_leaf)
    wanted = structure.unflatten([leaf if _is_loaded(leaf) else ... for leaf in leaves])
    try:
        loaded = store.load(_single.STEP, path, like=wanted)
    except MismatchError as error:
        raise _as_runtime_error(error, path, like, is_leaf) from error
    return structure.unflatten([old if new is ... else new for new, old in zip(
        structure.flatten_up_to(loaded), leaves, strict=True)])


def _left_out() -> None:
    """Stands for a leaf that is not saved, as no function is."""


class _LeafWriter(io.RawIOBase):
    """The file that a filter_spec saves one leaf to."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf: Any = _left_out
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(self._written[-1])

    def result(self) -> Any:
        """Returns what is saved for the leaf."""
        if not self._written:
            return self.leaf
        return {_FILE_KEY: np.frombuffer(b"".join(self._written), np.uint8)}


class _LeafReader(io.RawIOBase):
    """The file that a filter_spec loads one leaf from: the bytes that were written for it, or the
    stored array as numpy.save writes it."""

    def __init__(self, view: Any, components: tuple[Any, ...]) -> None:
        super().__init__()
        self._view = view
        self._components = components
        self._file: io.BytesIO | None = None

    def _stored(self) -> Any:
        return self._view[self._components] if self._components else self._view

    def _bytes(self) -> io.BytesIO:
        if self._file is None:
            stored = self._stored()
            if isinstance(stored, NodeView):
                self._file = io.BytesIO(np.asarray(stored[_FILE_KEY]).tobytes())
            else:
                self._file = io.BytesIO()
                np.save(self._file, np.asarray(stored))
                self._file.seek(0)
        return self._file

    def load(self, like: Any) -> Any:
        stored = self._stored()
        if isinstance(stored, NodeView):
            loaded = _equinox().default_deserialise_filter_spec(self._bytes(), like)
        elif isinstance(stored, ArrayView):
            loaded = np.asarray(stored)
        else:
            loaded = stored
        return _as_leaf(loaded, like, self._components)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        return self._bytes().read(size)

    def readinto(self, buffer: Any, /) -> int:
        return self._bytes().readinto(buffer)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._bytes().seek(offset, whence)

    def tell(self) -> int:
        return self._bytes().tell()


def _map(function: Callable[[Any, tuple[Any, ...], Any], Any], specs: Any, tree: Any,
         is_leaf: _IsLeaf) -> Any:
    """`function(spec, components of the path, leaf)` for each leaf, in the order of Equinox; specs:
    one for all, or a tree of them that is a prefix of `tree`."""
    flatten = _jax().tree_util.tree_flatten_with_path
    found, structure = flatten(specs)
    mapped = []
    for (above, spec), part in zip(found, structure.flatten_up_to(tree), strict=True):
        leaves, inner = flatten(part, is_leaf)
        mapped.append(inner.unflatten([
            _call(function, spec, (*above, *below), leaf) for below, leaf in leaves]))
    return structure.unflatten(mapped)


def _call(function: Callable[[Any, tuple[Any, ...], Any], Any], spec: Any, keys: tuple[Any, ...],
          leaf: Any) -> Any:
    """Calls a filter_spec. An error in it is Equinox's RuntimeError."""
    components = tuple(map(_component, keys))
    words = f"Error at leaf with path {keys}"
    try:
        return function(spec, components, leaf)
    except PathNotFoundError as error:
        path = "/".join(map(str, components))
        missing = Mismatch(path, f"missing in the store: {error}", "missing")
        raise TreeMismatchError(f"{words}:", [missing]) from error
    except Error:
        raise
    except Exception as error:
        raise RuntimeError(f"{words}: {type(error).__name__}: {error}") from error


def _component(key: Any) -> Any:
    """A key of JAX's as a path of Stepwell has it."""
    for name in ("key", "name", "idx"):
        if hasattr(key, name):
            return getattr(key, name)
    return str(key)


def _is_saved(leaf: Any) -> bool:
    return bool(_equinox().is_array_like(leaf))


def _is_loaded(leaf: Any) -> bool:
    return isinstance(leaf, _jax().ShapeDtypeStruct) or _is_saved(leaf)


def _is_default(filter_spec: Any) -> bool:
    equinox = _equinox()
    return any(filter_spec is each for each in (
        default_serialise_filter_spec, default_deserialise_filter_spec,
        equinox.default_serialise_filter_spec, equinox.default_deserialise_filter_spec))


def _as_leaf(loaded: Any, like: Any, components: tuple[Any, ...]) -> Any:
    """A stored leaf as the type that it has in `like`."""
    jax = _jax()
    shape, dtype = np.shape(loaded), np.result_type(loaded)
    wanted_shape = np.shape(like)
    if shape != wanted_shape:
        raise _mismatch(components, "shape", f"stored {dtype}{list(shape)}, wanted shape "
                                             f"{list(wanted_shape)}")
    if hasattr(like, "dtype") and dtype != like.dtype:
        raise _mismatch(components, "dtype", f"stored {dtype}, wanted {like.dtype}")
    if isinstance(like, (jax.Array, jax.ShapeDtypeStruct)):
        return jax.device_put(loaded, getattr(like, "sharding", None))
    if isinstance(like, np.ndarray):
        return np.asarray(loaded)
    return type(like)(np.asarray(loaded).item())


def _mismatch(components: tuple[Any, ...], kind: Any, message: str) -> TreeMismatchError:
    path = "/".join(map(str, components))
    return TreeMismatchError("1 leaf does not fit `like`:", [Mismatch(path, message, kind)])


def _as_runtime_error(error: MismatchError, path: PathLike | None, like: Any, is_leaf: _IsLeaf
                      ) -> TreeMismatchError:
    """The error begins with Equinox's words about the first leaf."""
    first = error.mismatches[0]
    above = "/".join(map(str, path)) if isinstance(path, tuple) else path
    for keys, _ in _jax().tree_util.tree_flatten_with_path(like, is_leaf)[0]:
        name = "/".join(str(_component(key)) for key in keys)
        if first.path in (name, f"{above}/{name}" if name else above):
            words = (f"Error at leaf with path {keys}" if first.kind == "missing" else
                     f"Deserialised leaf at path {keys} has changed {first.kind}")
            break
    else:
        words = str(error).partition("\n")[0].rstrip(":")
    return TreeMismatchError(f"{words}:", error.mismatches,
                             "path= loads a subtree; what is `...` in `like` is left out")


def _with_suffix(path: Any) -> str:
    name = os.fsdecode(path)
    return name if os.path.splitext(name)[1] else f"{name}.eqx"


def _equinox() -> Any:
    return importlib.import_module("equinox")


def _jax() -> Any:
    return importlib.import_module("jax")
