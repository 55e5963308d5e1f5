# SPDX-License-Identifier: Apache-2.0
"""Random keys of JAX and NumPy as items: files as Orbax's handlers write them."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import numpy as np

from .args import (ArrayRestore, JaxRandomKeyRestore, JaxRandomKeySave, NumpyRandomKeyRestore,
                   NumpyRandomKeySave, PyTreeRestore)
from .base import register_with_handler
from .directories import opened
from .libraries import jax_module
from .native_handlers import ArrayCheckpointHandler, FilesHandler, PyTreeCheckpointHandler
from .tree_names import flatten

_KEY, _INDEX = 2, 1  # types of keys in _METADATA


def _write_zarr(folder: str, name: str, value: Any) -> None:
    """One array as zarr 2, in one chunk, not compressed."""
    array = np.ascontiguousarray(value)
    path = os.path.join(folder, name)
    os.mkdir(path)
    shape = list(np.shape(value))
    described = {"chunks": shape, "compressor": None, "dimension_separator": ".",
                 "dtype": array.dtype.str, "fill_value": None, "filters": None, "order": "C",
                 "shape": shape, "zarr_format": 2}
    with open(os.path.join(path, ".zarray"), "w", encoding="utf-8") as file:
        json.dump(described, file)
    with open(os.path.join(path, ".".join("0" * max(1, np.ndim(value)))), "wb") as chunk:
        chunk.write(array.tobytes())


def write_tree(folder: str, tree: Any, value_types: dict[type[Any], str]) -> None:
    """A small tree of arrays, numbers and strings as Orbax writes it without OCDBT.
    value_types: Orbax's names of the types of leaves."""
    os.mkdir(folder)
    leaves: dict[str, Any] = {}
    strings: dict[str, str] = {}
    key_type = _INDEX if isinstance(tree, tuple) else _KEY
    for names, leaf in flatten(tree):
        name = ".".join(names)
        if isinstance(leaf, str):
            strings[name] = leaf
        else:
            _write_zarr(folder, name, leaf)
        value_type = next(text for cls, text in value_types.items() if isinstance(leaf, cls))
        leaves[str(names)] = {
            "key_metadata": [{"key": key, "key_type": key_type} for key in names],
            "value_metadata": {"value_type": value_type, "skip_deserialize": False}}
    described = {"tree_metadata": leaves, "use_ocdbt": False, "use_zarr3": False,
                 "store_array_data_equal_to_fill_value": True, "custom_metadata": None}
    with open(os.path.join(folder, "_METADATA"), "w", encoding="utf-8") as file:
        json.dump(described, file)
    if strings:
        with open(os.path.join(folder, "_strings.json"), "w", encoding="utf-8") as file:
            json.dump(strings, file)


def _write_json(folder: str, value: Any) -> None:
    os.mkdir(folder)
    with open(os.path.join(folder, "metadata"), "w", encoding="utf-8") as file:
        json.dump(value, file)


def _read_json(folder: str) -> Any:
    with open(os.path.join(folder, "metadata"), encoding="utf-8") as file:
        return json.load(file)


class JaxRandomKeyCheckpointHandler(FilesHandler):
    """Saves and restores one JAX random key, typed or not."""

    _module = "random_key_checkpoint_handler"

    def __init__(self, key_name: str | None = None) -> None:
        self._name = key_name or "jax_random_key"

    def write(self, folder: str, args: Any) -> None:
        jax = jax_module()

        key = args.item
        if not isinstance(key, jax.Array):
            raise TypeError(f"Unsupported type: {type(key)}.")
        described: dict[str, Any] = {"typed": bool(jax.dtypes.issubdtype(key.dtype,
                                                                         jax.dtypes.prng_key))}
        if described["typed"]:
            described["impl"] = str(jax.random.key_impl(key))
            key = jax.random.key_data(key)
        inside = os.path.join(folder, self._name)
        write_tree(inside, {"checkpoint": np.asarray(key)}, {np.ndarray: "jax.Array"})
        sharding = {"sharding_type": "SingleDeviceSharding",
                    "device_str": str(next(iter(key.devices())))}
        with open(os.path.join(inside, "_sharding"), "w", encoding="utf-8") as file:
            json.dump({base64.b64encode(b"checkpoint").decode(): json.dumps(sharding)}, file)
        _write_json(os.path.join(folder, f"{self._name}_metadata"), described)

    def read(self, folder: str, args: Any) -> Any:
        jax = jax_module()

        described = _read_json(os.path.join(folder, f"{self._name}_metadata"))
        with opened(os.path.join(folder, self._name)) as (step, name):
            data = ArrayCheckpointHandler().restored(
                step, name, ArrayRestore(restore_args=args.restore_args))
        return jax.random.wrap_key_data(data, impl=described.get("impl")) if (
            described["typed"]) else data


class NumpyRandomKeyCheckpointHandler(FilesHandler):
    """Saves and restores the state of NumPy's random numbers, a tuple or a dict."""

    _module = "random_key_checkpoint_handler"

    def __init__(self, key_name: str | None = None) -> None:
        self._name = key_name or "np_random_key"

    def write(self, folder: str, args: Any) -> None:
        if not isinstance(args.item, (tuple, dict)):
            raise TypeError(f"Unsupported type: {type(args.item)}.")
        write_tree(os.path.join(folder, self._name), args.item,
                   {str: "string", np.ndarray: "np.ndarray", object: "scalar"})
        _write_json(os.path.join(folder, f"{self._name}_metadata"),
                    {"legacy": isinstance(args.item, tuple)})

    def read(self, folder: str, args: Any) -> Any:
        described = _read_json(os.path.join(folder, f"{self._name}_metadata"))
        with opened(os.path.join(folder, self._name)) as (step, name):
            state = PyTreeCheckpointHandler().restored(step, name, PyTreeRestore())
        return tuple(state) if described["legacy"] else state


for _handler, _save, _restore in (
        (JaxRandomKeyCheckpointHandler, JaxRandomKeySave, JaxRandomKeyRestore),
        (NumpyRandomKeyCheckpointHandler, NumpyRandomKeySave, NumpyRandomKeyRestore)):
    register_with_handler(_handler, for_save=True)(_save)
    register_with_handler(_handler, for_restore=True)(_restore)
