# SPDX-License-Identifier: Apache-2.0
"""Every public name of orbax.checkpoint, and of its public modules, is in the facade."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import orbax.checkpoint as real
import pytest

from stepwell.compat import orbax as ocp

_PREFIX = "orbax.checkpoint."


def public(module: types.ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


def modules() -> list[str]:
    return sorted(name.removeprefix(_PREFIX) for name, value in vars(real).items()
                  if isinstance(value, types.ModuleType) and not name.startswith("_")
                  for name in [name] if value.__name__.startswith(_PREFIX))


def test_names() -> None:
    assert not [name for name in public(real) if not hasattr(ocp, name)]
    assert set(public(real)) <= set(dir(ocp)) and set(public(real)) <= set(ocp.__all__)
    space: dict[str, Any] = {}
    exec("from stepwell.compat.orbax import *", space)
    assert not [name for name in public(real) if name not in space]
    assert space["CheckpointManager"] is ocp.CheckpointManager
    with pytest.raises(AttributeError):
        ocp.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", modules())
def test_names_of_modules(name: str) -> None:
    theirs, ours = getattr(real, name), getattr(ocp, name)
    assert not [each for each in public(theirs) if not hasattr(ours, each)]
    assert not [each for each in public(theirs) if each not in dir(ours)]


def test_modules_are_imported_by_name() -> None:
    for name in [name for name in sys.modules if name.startswith(_PREFIX)]:
        below = name.removeprefix(_PREFIX)
        if any(part.startswith("_") for part in below.split(".")) or below.endswith("v1"):
            continue
        found = importlib.import_module(f"stepwell.compat.orbax.{below}")
        assert not [each for each in public(sys.modules[name]) if not hasattr(found, each)]


def test_what_is_replaced_is_replaced_in_every_module() -> None:
    assert ocp.checkpoint_manager.CheckpointManager is ocp.CheckpointManager
    assert ocp.checkpoint_managers.CheckpointManager is ocp.CheckpointManager
    assert ocp.checkpointers.StandardCheckpointer is ocp.StandardCheckpointer
    assert ocp.checkpoint_utils.checkpoints_iterator is not (
        real.checkpoint_utils.checkpoints_iterator)


def test_names_that_programs_use() -> None:
    """17 public programs use these names."""
    for name in (
            "checkpoint_manager.DEFAULT_ITEM_NAME", "checkpoint_manager.FileOptions",
            "utils.TMP_DIR_SUFFIX", "utils.fully_replicated_host_local_array_to_global_array",
            "logging.AbstractLogger", "metadata.get_step_metadata",
            "multihost.initialize_runtime_to_distributed_ids",
            "multihost.initialize_distributed_to_device_ids", "path.atomicity",
            "checkpoint_args.CheckpointArgs", "Future", "BasePyTreeCheckpointHandler",
            "handlers.handler_registration", "path.step.find_step_path",
            "path.step.build_step_metadatas", "tree.get_param_names",
            "type_handlers.register_type_handler", "type_handlers.SingleReplicaArrayHandler"):
        for module in (real, ocp):
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part)
    assert ocp.v1.__name__ == "stepwell.compat.orbax_v1"
