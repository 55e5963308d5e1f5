# SPDX-License-Identifier: Apache-2.0
"""Which steps to keep: objects for `open(keep=...)`."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from .errors import InvalidArgumentError

__all__ = ["LatestN", "Policy"]


class Policy:
    """Base of the policies."""

    __slots__ = ()

    def _keep_latest(self) -> int:
        raise NotImplementedError


class LatestN(Policy):
    """Keep the `n` highest steps; lower ones are deleted after each commit.

    `n` is an int >= 1; anything else raises `InvalidArgumentError`.
    """

    __slots__ = ("n",)

    def __init__(self, n: SupportsIndex) -> None:
        self.n = operator.index(n)
        if self.n < 1:
            raise InvalidArgumentError(f"LatestN keeps at least 1 step, not {self.n}")

    def __repr__(self) -> str:
        return f"LatestN({self.n})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatestN) and other.n == self.n

    def __hash__(self) -> int:
        return hash((LatestN, self.n))

    def _keep_latest(self) -> int:
        return self.n
