# SPDX-License-Identifier: Apache-2.0
"""The layout "safetensors": a .safetensors file, or a directory of some, for loading."""

from __future__ import annotations

import glob
import json
import os
from typing import Any

from ..._interop.checkpoint_import import read_file
from . import trees
from .context import Context
from .errors import CheckpointNotFoundError, InvalidLayoutError
from .metadata import CheckpointMetadata

SUFFIX = ".safetensors"


def is_one(path: str) -> bool:
    return bool(_files(path)) if os.path.isdir(path) else path.endswith(SUFFIX)


def _files(path: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(path), "*" + SUFFIX)))


def _read(path: str) -> dict[str, Any]:
    if not os.path.exists(path):
        raise CheckpointNotFoundError(f"Path {path} does not exist.")
    files = _files(path) if os.path.isdir(path) else [path]
    if not files or not all(file.endswith(SUFFIX) for file in files):
        raise InvalidLayoutError(f"{path} is not a {SUFFIX} file, nor a directory with some")
    arrays: dict[str, Any] = {}
    for file in files:
        for name, array in read_file(file, None).items():
            if name in arrays:
                raise ValueError(f"Duplicate tensor {name} found in multiple files.")
            arrays[name] = array
    return arrays


def load(path: str, target: Any) -> dict[str, Any]:
    """Tensors by name: as NumPy arrays, or as the target says."""
    if target is not None and not (isinstance(target, dict) and all(
            hasattr(leaf, "shape") for leaf in target.values())):
        raise ValueError("The PyTree is not a flat dictionary.")
    arrays = _read(path)
    if target is None:
        return arrays
    jax = trees.import_jax()
    loaded = {}
    for name in sorted(target):
        if name not in arrays:
            raise KeyError(f"Tensor '{name}' not found in Safetensors checkpoint.")
        wanted, array = target[name], arrays[name]
        if tuple(wanted.shape) != array.shape:
            raise ValueError(f"Shape mismatch at {name!r}: abstract state has "
                             f"{tuple(wanted.shape)}, the checkpoint has {array.shape}.")
        loaded[name] = jax.device_put(array.astype(wanted.dtype),
                                      getattr(wanted, "sharding", None))
    return loaded


def metadata(path: str, context: Context) -> CheckpointMetadata[dict[str, Any]]:
    jax = trees.import_jax()
    custom: dict[str, Any] = {}
    files = _files(path) if os.path.isdir(path) else [path]
    arrays = _read(path)
    for file in files:
        with open(file, "rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            custom.update(json.loads(opened.read(size)).get("__metadata__") or {})
    committed = max(os.stat(file).st_mtime_ns // 10**9 for file in files)
    return CheckpointMetadata(
        context.file.path_class(path),
        metadata={name: jax.ShapeDtypeStruct(array.shape, array.dtype)
                  for name, array in arrays.items()},
        commit_timestamp_nsecs=committed, custom_metadata=custom)
