# SPDX-License-Identifier: Apache-2.0
"""What a Checkpointer knows of its root: steps, as policies see them, and root metadata."""

from __future__ import annotations

import datetime
import json
import os
import sys
from typing import Any, NamedTuple

from ..._runtime.files import sync_folder
from .. import _single
from .._root import Root
from .places import read_json

_ROOT_METADATA = os.path.join("metadata", "_ROOT_METADATA")  # as Orbax has it


class Info(NamedTuple):
    """What policies know of a step."""

    step: int
    time: datetime.datetime
    metrics: Any


def now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.timezone.utc)


def reached_preemption(step: int) -> bool:
    """Whether JAX's preemption service says that this is the step to save at."""
    if "jax" not in sys.modules:
        return False
    from jax.experimental import multihost_utils

    try:
        return bool(multihost_utils.reached_preemption_sync_point(step))
    except RuntimeError:  # there is no such service
        return False


def read_infos(root: Root, lightweight: bool) -> list[Info]:
    """The steps of the store and of other libraries, ascending. `lightweight`: numbers only."""
    store, foreign = root.store, root.foreign()
    if lightweight:
        return [Info(step, datetime.datetime.min, None)
                for step in sorted({*store.steps(), *foreign})]
    infos = [Info(step, store[step].time, store[step].metrics) for step in store.steps()]
    for step, path in foreign.items():
        committed = read_json(os.path.join(path, _single.CHECKPOINT_METADATA)).get(
            "commit_timestamp_nsecs") or os.stat(path).st_mtime_ns
        infos.append(Info(
            step, datetime.datetime.fromtimestamp(committed / 1e9, tz=datetime.timezone.utc),
            read_json(os.path.join(path, "metrics", "metrics")) or None))
    return sorted(infos, key=lambda info: info.step)


def read_root_metadata(root: str) -> dict[str, Any]:
    found: dict[str, Any] = read_json(os.path.join(root, _ROOT_METADATA)).get(
        "custom_metadata") or {}
    return found


def save_root_metadata(root: str, custom: dict[str, Any]) -> None:
    """Writes the metadata of a root that has none yet."""
    path = os.path.join(root, _ROOT_METADATA)
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + _single.TEMPORARY, "w", encoding="utf-8") as file:
        json.dump({"custom_metadata": custom}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + _single.TEMPORARY, path)
    sync_folder(os.path.dirname(path))
