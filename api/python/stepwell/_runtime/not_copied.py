# SPDX-License-Identifier: Apache-2.0
"""What belongs to a store that this process has open."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class NotCopied:
    """Refuses copy, deepcopy and pickle, which would copy what only looks like data."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it belongs to a store that this "
            "process has open. Pass the store's path, and open it there (mode 'r' works beside a "
            "writer); or load() what is in it, which is data")
