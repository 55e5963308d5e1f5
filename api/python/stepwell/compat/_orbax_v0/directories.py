# SPDX-License-Identifier: Apache-2.0
"""Single checkpoints in directories: opened as a step, written for handlers that want files."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from ... import _store
from ..._interop.temporary_import import imported
from ..._runtime.files import local_path
from .._single import STEP, STORE_NAME, Form, open_store
from .._single import save as save_single
from .._work import Peers
from .step_items import DEFAULT_ITEM, StepItems

_TREE_FILE, _STEP_FILE = "_METADATA", "_CHECKPOINT_METADATA"


@contextlib.contextmanager
def open_directory(directory: Any) -> Iterator[StepItems]:
    """A checkpoint as a step: one that this package saved, or one of Orbax, which is imported for
    the time of the block. FileNotFoundError if there is none."""
    path = local_path(directory)
    if not os.path.isdir(path):
        raise FileNotFoundError(f"Checkpoint at {path} not found.")
    is_flat = any(os.path.exists(os.path.join(path, name)) for name in (_TREE_FILE, STORE_NAME))
    store = open_store(path)
    if store is not None:
        with store:
            yield StepItems(store, STEP, path, flat=is_flat)
        return
    with imported(_store.Store._open_alone, path, STEP) as copy:
        yield StepItems(copy, STEP, path, imported=True, flat=is_flat)


@contextlib.contextmanager
def opened(directory: Any) -> Iterator[tuple[StepItems, str]]:
    """A directory that is one item, and the name of this item."""
    with open_directory(directory) as step:
        yield step, DEFAULT_ITEM if DEFAULT_ITEM in step.names else step.names[0]


def save_into(directory: Any, item: Any) -> None:
    """Writes an item into a directory that exists, as Orbax's handlers do."""
    target = os.fspath(directory)
    made = os.path.join(target, ".stepwell-item")
    save_single(made, {DEFAULT_ITEM: item}, form=Form(layout="flat", zarr=2)).result()

    def move() -> None:
        for name in os.listdir(made):
            if name != _STEP_FILE:  # the checkpointer's that called the handler
                shutil.move(os.path.join(made, name), os.path.join(target, name))
        shutil.rmtree(made)

    Peers(f"saving into {target!r}").lead(move)
