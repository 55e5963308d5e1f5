# SPDX-License-Identifier: Apache-2.0
"""The record, in a pushed run, of the steps that a store has pushed to it. The next PushFollower of
the store reads it, on any machine, and deletes the steps behind which the store has gone back."""

from __future__ import annotations

import json
from typing import NamedTuple

from .run import RunStore, read_range

_BYTES_MAX = 64 << 20


class Pushed(NamedTuple):
    """A step as it was pushed."""

    time_ns: int  # of its commit
    taint: str


class PushRecord:
    """The steps that a store pushed. One process at a time follows a store to a run; of two the
    last that writes is believed."""

    def __init__(self, bucket: RunStore, store_id: bytes) -> None:
        self._bucket = bucket
        self._key = f"followed/{store_id.hex()}"
        self.steps = self._read()

    def _read(self) -> dict[int, Pushed]:
        """What is damaged says nothing: then the steps are other stores' for this one."""
        data = read_range(self._bucket, self._key, 0, _BYTES_MAX)
        try:
            return {int(step): Pushed(int(time_ns), str(taint)) for step, (time_ns, taint)
                    in json.loads(data or b"{}").items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return {}

    def write(self, steps: dict[int, Pushed]) -> None:
        if steps != self.steps:
            self._bucket.put(self._key, json.dumps(steps).encode())
            self.steps = dict(steps)
