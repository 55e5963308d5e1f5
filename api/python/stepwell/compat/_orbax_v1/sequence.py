# SPDX-License-Identifier: Apache-2.0
"""What a Checkpointer knows of its root: steps, as policies see them."""

from __future__ import annotations

import datetime
import os
from typing import Any, NamedTuple

from .. import _single
from .._root import Root
from .places import read_json


class Info(NamedTuple):
    """What policies know of a step."""

    step: int
    time: datetime.datetime
    metrics: Any


def now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.timezone.utc)


def read_infos(root: Root, lightweight: bool) -> list[Info]:
    """The steps of the store and of other libraries, ascending. `lightweight`: numbers only."""
    own, foreign = root.own_steps(), root.foreign()
    if lightweight:
        return [Info(step, datetime.datetime.min, None)
                for step in sorted({*own, *foreign})]
    infos = [Info(step, root.store[step].time, root.store[step].metrics) for step in own]
    for step, path in foreign.items():
        committed = read_json(os.path.join(path, _single.CHECKPOINT_METADATA)).get(
            "commit_timestamp_nsecs") or os.stat(path).st_mtime_ns
        infos.append(Info(
            step, datetime.datetime.fromtimestamp(committed / 1e9, tz=datetime.timezone.utc),
            read_json(os.path.join(path, "metrics", "metrics")) or None))
    return sorted(infos, key=lambda info: info.step)
