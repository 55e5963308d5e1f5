# SPDX-License-Identifier: Apache-2.0
"""The names of `stepwell.compat.orbax`: Orbax's own, but for what acts on checkpoints."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import orbax.checkpoint as orbax

from .checkpointers import (AsyncCheckpointer, Checkpointer, PyTreeCheckpointer,
                            StandardCheckpointer)
from .following import checkpoints_iterator, wait_for_new_checkpoint
from .manager import CheckpointManager

_ORBAX = orbax.__name__ + "."

# Pairs of (Orbax's object, its replacement), under whichever name and in whichever module Orbax has
# it.
_OURS = [(orbax.CheckpointManager, CheckpointManager), (orbax.Checkpointer, Checkpointer),
         (orbax.AsyncCheckpointer, AsyncCheckpointer),
         (orbax.StandardCheckpointer, StandardCheckpointer),
         (orbax.PyTreeCheckpointer, PyTreeCheckpointer),
         (orbax.checkpoint_utils.wait_for_new_checkpoint, wait_for_new_checkpoint),
         (orbax.checkpoint_utils.checkpoints_iterator, checkpoints_iterator)]


def public_names(facade: str) -> dict[str, Any]:
    """Returns the names that the module `facade` has beside its own. `import facade.args` works as
    well."""
    found: dict[str, Any] = {}
    for name, value in vars(orbax).items():
        if name.startswith("_") or name == "v1":  # v1 is another facade
            continue
        found[name] = _module(value, f"{facade}.{name}") if _is_submodule(value) else _ours(value)
    for name, module in list(sys.modules.items()):
        below = name.removeprefix(_ORBAX)
        if below != name and not any(part.startswith("_") for part in below.split(".")):
            sys.modules.setdefault(f"{facade}.{below}", found.get(below, module))
    return found


def _is_submodule(value: object) -> bool:
    return isinstance(value, types.ModuleType) and value.__name__.startswith(_ORBAX)


def _ours(value: Any) -> Any:
    return next((ours for theirs, ours in _OURS if value is theirs), value)


def _module(orbaxs: types.ModuleType, name: str) -> types.ModuleType:
    """A module of Orbax, or where we replace something of it, one that has the rest from it."""
    replaced = {key: _ours(value) for key, value in vars(orbaxs).items()
                if not key.startswith("_") and _ours(value) is not value}
    if not replaced:
        return orbaxs
    module = types.ModuleType(name, orbaxs.__doc__)
    public = getattr(orbaxs, "__all__", [key for key in vars(orbaxs) if not key.startswith("_")])
    vars(module).update(replaced, __all__=list(public), __dir__=functools.partial(dir, orbaxs),
                        __getattr__=functools.partial(getattr, orbaxs))
    return module
