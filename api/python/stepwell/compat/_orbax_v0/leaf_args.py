# SPDX-License-Identifier: Apache-2.0
"""SaveArgs and RestoreArgs: how one leaf is saved and restored."""

from __future__ import annotations

import dataclasses
from typing import Any

from .libraries import jax_module

PLACEHOLDER = ...  # a leaf of a target that is not restored


@dataclasses.dataclass
class SaveArgs:
    """How one leaf is saved. `dtype` converts it; for the others see ACCEPTED_WITHOUT_EFFECT."""

    aggregate: bool = False
    dtype: Any = None
    chunk_byte_size: int | None = None
    shard_axes: tuple[int, ...] = ()


@dataclasses.dataclass
class RestoreArgs:
    """How one leaf is restored: as which type, with which dtype. None: as it was saved."""

    restore_type: Any = None
    dtype: Any = None


def jax_array() -> Any:
    jax = jax_module()

    return jax.Array


@dataclasses.dataclass
class ArrayRestoreArgs(RestoreArgs):
    """A leaf that is restored as jax.Array.

    sharding: its sharding; or mesh and mesh_axes. Without, the one that it was saved with.
    global_shape, shape: its shape; if strict is False, an array of another shape is padded with
    zeros or truncated to it.
    """

    restore_type: Any = dataclasses.field(default_factory=jax_array)
    mesh: Any = None
    mesh_axes: Any = None
    sharding: Any = None
    global_shape: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        if self.shape is not None and self.global_shape is not None:
            if self.shape != self.global_shape:
                raise ValueError(
                    "If `shape` and `global_shape` are both provided, they must match.")
        elif self.shape is None:
            self.shape = self.global_shape
        else:
            self.global_shape = self.shape


@dataclasses.dataclass
class SingleReplicaArrayRestoreArgs(ArrayRestoreArgs):
    """As ArrayRestoreArgs: each process reads what its devices need."""

    single_replica_sharding: Any = None


def is_restore_args(value: object) -> bool:
    """RestoreArgs, ours or Orbax's own."""
    return hasattr(value, "restore_type") and hasattr(value, "dtype")
