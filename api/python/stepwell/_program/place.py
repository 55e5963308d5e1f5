# SPDX-License-Identifier: Apache-2.0
"""Whether a store that is open is still at its path."""

from __future__ import annotations

import os

from .._store import Store
from ..errors import StoreNotFoundError


class Place:
    """Where an open store lies. One that is removed or renamed can be read on through its open
    files, as if it stood still; other processes do not find it."""

    def __init__(self, store: Store) -> None:
        self._path = store.path
        self._is_local = os.path.isdir(store.path)

    def check(self) -> None:
        """Raises StoreNotFoundError if a directory of this machine is not there any more."""
        if self._is_local and not os.path.isdir(self._path):
            raise StoreNotFoundError(f"the store {self._path!r} is not there any more")
