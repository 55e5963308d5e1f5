# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.orbax_v1 has every public name of Orbax, and Orbax's own classes."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from orbax.checkpoint import metadata as v0_metadata
from orbax.checkpoint import v1 as real

from stepwell.compat import orbax_v1 as ocp

_OURS = {"checkpointables_metadata", "delete", "delete_async", "is_orbax_checkpoint", "load",
         "load_async", "load_checkpointables", "load_checkpointables_async", "load_pytree",
         "load_pytree_async", "metadata", "partial", "pytree_metadata", "save", "save_async",
         "save_checkpointables", "save_checkpointables_async", "save_pytree", "save_pytree_async",
         "training"}


def _public_modules() -> list[str]:
    """Orbax's public modules, by their names below v1."""
    names = [""]
    for found in pkgutil.walk_packages(real.__path__, real.__name__ + "."):
        name = found.name.removeprefix(real.__name__ + ".")
        if not any(part.startswith("_") for part in name.split(".")):
            names.append(name)
    return names


@pytest.mark.parametrize("name", _public_modules())
def test_every_public_name_is_there(name: str) -> None:
    theirs: Any = importlib.import_module(f"{real.__name__}.{name}".rstrip("."))
    ours: Any = ocp
    for part in name.split(".") if name else ():
        ours = getattr(ours, part)
    public = {each for each in vars(theirs) if not each.startswith("_")}
    assert not {each for each in public if not hasattr(ours, each)}
    if isinstance(ours, types.ModuleType):
        assert public <= set(dir(ours)) and set(dir(ours)) >= set(getattr(ours, "__all__", ()))


def test_what_is_not_replaced_is_orbaxs_own() -> None:
    for name in dir(real):
        if not name.startswith("_") and name not in _OURS:
            assert getattr(ocp, name) is getattr(real, name), name
    for name in ("CheckpointMetadata", "RootMetadata", "errors", "preservation_policies",
                 "save_decision_policies", "pathways"):
        assert getattr(ocp.training, name, None) is getattr(real.training, name, None)
    assert ocp.path.step.NameFormat[Any] is not None
    with pytest.raises(AttributeError, match="neither .* nor .* has 'nothing'"):
        _ = ocp.nothing


def test_a_checkpointer_is_one_of_orbax_in_name_alone() -> None:
    """A method that is not replaced would act on the directory without the store."""
    inherited = {name for name, value in vars(real.training.Checkpointer).items()
                 if callable(value) or isinstance(value, property)
                 if not name.startswith("_")}
    ours = [vars(kind) for kind in ocp.training.Checkpointer.__mro__
            if kind.__module__.startswith("stepwell.")]
    assert inherited and inherited <= {name for each in ours for name in each}


def test_results_are_of_orbaxs_classes(tmp_path: pathlib.Path) -> None:
    import jax.numpy as jnp

    state = {"w": jnp.arange(4.0), "n": np.arange(3), "i": 1}
    for library in (ocp, real):
        with library.training.Checkpointer(tmp_path / library.__name__) as checkpointer:
            assert isinstance(checkpointer, real.training.Checkpointer)
            checkpointer.save(0, state, metrics={"loss": 1.0})
            found = [checkpointer.latest, *checkpointer.checkpoints, checkpointer.metadata(0),
                     checkpointer.checkpointables_metadata(0)]
            assert {type(each) for each in found} == {real.training.CheckpointMetadata}
            assert type(checkpointer.root_metadata()) is real.training.RootMetadata
        library.save(tmp_path / f"{library.__name__}_one", state)
    ours, theirs = (library.metadata(tmp_path / f"{library.__name__}_one")
                    for library in (ocp, real))
    assert type(ours) is type(theirs) is real.CheckpointMetadata
    for name in state:
        assert type(ours.metadata[name]) is type(theirs.metadata[name])
    sharding = ours.metadata["w"].sharding_metadata
    assert isinstance(sharding, v0_metadata.ShardingMetadata)
    assert sharding == theirs.metadata["w"].sharding_metadata
    assert ours.metadata["w"].sharding == theirs.metadata["w"].sharding == state["w"].sharding


def test_without_orbax_the_error_names_the_extra(
        run_python: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = run_python("""
import sys
sys.modules["orbax.checkpoint"] = None  # importing it fails
import stepwell
try:
    from stepwell.compat import orbax_v1
except ImportError as error:
    print("pip install 'orbax-checkpoint>=0.12'" in str(error))
""")
    assert (status, out) == (0, "True\n"), err
