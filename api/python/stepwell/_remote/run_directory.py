# SPDX-License-Identifier: Apache-2.0
"""A directory of this machine that runs are pushed to."""

from __future__ import annotations

import contextlib
import os

from .._runtime import durable
from ..errors import CheckpointNotFoundError, StorageError
from .directory_store import DirectoryStore


class RunDirectory(DirectoryStore):
    """Files appear whole, and are durable before the next one is written."""

    def __init__(self, root: str, mode: int) -> None:
        """`mode`: permissions of new directories; files have those without execution."""
        super().__init__(root)
        self._mode = mode

    def _path(self, key: str) -> str:
        """Raises StorageError for a symbolic link below the place."""
        above = self.url
        for each in key.split("/")[:-1]:
            above = os.path.join(above, each)
            if os.path.islink(above):
                raise StorageError(f"{above} is a symbolic link, which is not followed below a "
                                   "pushed run")
        return os.path.join(self.url, key)

    def list(self) -> dict[str, int]:
        """Without what is being written or removed; of that, what killed processes left goes."""
        found = super().list()
        left = {key for key in found if os.path.basename(key).startswith(durable.OWN)}
        for above in {os.path.dirname(self._path(key)) for key in left}:
            durable.sweep(above)
        return {key: size for key, size in found.items() if key not in left}

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        durable.make_directories(os.path.dirname(path), self._mode)
        durable.write(path, data, mode=self._mode & 0o666)

    def delete(self, key: str) -> None:
        with contextlib.suppress(CheckpointNotFoundError):
            durable.remove(self._path(key))
