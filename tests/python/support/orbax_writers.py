# SPDX-License-Identifier: Apache-2.0
"""Orbax's ways to write a checkpoint: v0 and v1, their formats, layouts and options."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import v1


@dataclasses.dataclass
class Content:
    """The state to save, and in the end the state that is there: not every writer has a place for
    all."""

    tree: Any
    others: dict[str, Any]  # further items: trees and JSON
    metrics: dict[str, float]
    metadata: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Writer:
    name: str
    api: str  # "v0" or "v1"
    write: Callable[[pathlib.Path, int, Content], pathlib.Path]  # gives the checkpoint's directory
    as_files: bool = False  # arrays are directories: names must be those of files
    is_flat: bool = False
    is_unnamed: bool = False  # the item is "default"


ROOT = {"of the root": [1, None, {"é": -0.5}]}
ITEM = {"of the item": {"é": [True]}}

# ---- v1 ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def v1_options(chunk_bytes: int | None = None, **saving: Any) -> Iterator[None]:
    options = v1.options.ArrayOptions
    storage = options.Saving.StorageOptions(chunk_byte_size=chunk_bytes)
    with v1.Context(array_options=options(
            saving=options.Saving(storage_options=storage, **saving))):
        yield


def v1_save(**options: Any) -> Callable[[pathlib.Path, int, Content], pathlib.Path]:
    def write(folder: pathlib.Path, step: int, content: Content) -> pathlib.Path:
        content.metrics = {}
        with v1_options(**options):
            v1.save_checkpointables(folder / str(step), {"state": content.tree, **content.others},
                                    custom_metadata=content.metadata)
        return folder / str(step)

    return write


def v1_training(folder: pathlib.Path, step: int, content: Content) -> pathlib.Path:
    content.others = {}
    with v1.training.Checkpointer(folder, custom_metadata=ROOT) as checkpointer:
        checkpointer.save(step, content.tree, metrics=content.metrics,
                          custom_metadata=content.metadata)
    return folder / str(step)


# ---- v0 ---------------------------------------------------------------------------------------


def save_args(tree: Any, chunk_bytes: int | None) -> Any:
    if chunk_bytes is None:
        return None
    return jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=chunk_bytes), tree)


def v0_flat(chunk_bytes: int | None = None, **options: Any
            ) -> Callable[[pathlib.Path, int, Content], pathlib.Path]:
    def write(folder: pathlib.Path, step: int, content: Content) -> pathlib.Path:
        content.others, content.metrics, content.metadata = {}, {}, {}
        args = ocp.args.PyTreeSave(content.tree, save_args=save_args(content.tree, chunk_bytes))
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(folder / str(step), args=args)
        return folder / str(step)

    return write


def manager_of(folder: pathlib.Path, content: Content) -> ocp.CheckpointManager:
    best = (lambda metrics: metrics["loss"]) if content.metrics else None
    options = ocp.CheckpointManagerOptions(best_fn=best)
    return ocp.CheckpointManager(folder, options=options, metadata=ROOT)


def v0_manager(folder: pathlib.Path, step: int, content: Content) -> pathlib.Path:
    content.others = {}
    with manager_of(folder, content) as manager:
        manager.save(step, args=ocp.args.PyTreeSave(content.tree, custom_metadata=ITEM),
                     metrics=content.metrics or None, custom_metadata=content.metadata)
    return folder / str(step)


def v0_items(folder: pathlib.Path, step: int, content: Content) -> pathlib.Path:
    args = ocp.args.Composite(
        state=ocp.args.PyTreeSave(content.tree),
        **{name: ocp.args.JsonSave(other) if name == "config" else ocp.args.StandardSave(other)
           for name, other in content.others.items()})
    with manager_of(folder, content) as manager:
        manager.save(step, args=args, metrics=content.metrics or None,
                     custom_metadata=content.metadata)
    return folder / str(step)


WRITERS = [
    Writer("v1", "v1", v1_save()),
    Writer("v0 manager", "v0", v0_manager, is_unnamed=True),
    Writer("v1 zarr2 raw", "v1", v1_save(use_zarr3=False, use_compression=False)),
    Writer("v0 items", "v0", v0_items),
    Writer("v1 training", "v1", v1_training),
    Writer("v0 zarr2 files", "v0", v0_flat(use_ocdbt=False), is_flat=True, as_files=True),
    Writer("v1 chunks", "v1", v1_save(chunk_bytes=50_000, ocdbt_target_data_file_size=300_000)),
    Writer("v0 zarr3 chunks", "v0", v0_flat(40_000, use_zarr3=True), is_flat=True),
    Writer("v1 zarr3 files raw", "v1", v1_save(use_ocdbt=False, use_compression=False),
           as_files=True),
    Writer("v0 zarr3 files chunks", "v0", v0_flat(40_000, use_zarr3=True, use_ocdbt=False),
           is_flat=True, as_files=True),
    Writer("v1 replicas", "v1", v1_save(use_replica_parallel=True)),
    Writer("v0 raw", "v0", v0_flat(use_compression=False), is_flat=True),
]  # fmt: skip
