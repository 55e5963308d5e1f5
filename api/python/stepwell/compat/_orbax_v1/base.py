# SPDX-License-Identifier: Apache-2.0
"""Orbax's own v1, on which this facade stands, and what of it has no public name."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _module(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            failed = error
    raise ImportError("stepwell.compat.orbax_v1 stands on orbax-checkpoint 0.12 or newer: "
                      "pip install 'orbax-checkpoint>=0.12'") from failed


v1 = _module("orbax.checkpoint.v1", "orbax.checkpoint.experimental.v1")
_v0 = _module("orbax.checkpoint")
v0_metadata = _v0.metadata
jax = _module("jax")

handlers, errors = v1.handlers, v1.errors


def _home(public: Any) -> Any:
    """The module that defines a public name of Orbax. It has what has no public name: the active
    Context, how a handler is found, and the errors of that. So no path of a module is named here,
    which a later version may change."""
    return sys.modules[public.__module__]


get_context = _home(v1.Context).get_context
typestr = _home(handlers.CheckpointableHandler).typestr
resolve_handler_for_save = _home(handlers.register_handler).resolve_handler_for_save
resolve_handler_for_load = _home(handlers.register_handler).resolve_handler_for_load
NoEntryError: Any = _home(handlers.register_handler).NoEntryError
PartialSaveReplacementError: Any = _home(
    _v0.BasePyTreeCheckpointHandler).PartialSaveReplacementError


def leaf_metadata() -> tuple[Any, Any]:
    """Orbax's classes for a stored jax.Array and a stored NumPy array. They have no public name,
    and no public name is defined beside them."""
    package = _home(v1.Context).__name__.rpartition(".context.")[0] + ".serialization"
    return (importlib.import_module(f"{package}.array_leaf_handler").ArrayMetadata,
            importlib.import_module(f"{package}.numpy_leaf_handler").NumpyMetadata)


def public(module: Any) -> list[str]:
    """The public names of a module of Orbax."""
    names = getattr(module, "__all__", None) or vars(module)
    return sorted(name for name in names if not name.startswith("_"))


def inherited(theirs: Any, ours: str, name: str) -> Any:
    """`__getattr__` of our module that starts from Orbax's module of that name."""
    if name.startswith("_") or not hasattr(theirs, name):
        raise AttributeError(f"neither {ours} nor {theirs.__name__} has {name!r}")
    return getattr(theirs, name)
