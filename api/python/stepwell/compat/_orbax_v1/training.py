# SPDX-License-Identifier: Apache-2.0
"""ocp.training: Orbax's, with a Checkpointer of ours."""

from __future__ import annotations

from typing import Any

from .base import inherited, public, v1
from .checkpointer import Checkpointer as Checkpointer

__all__ = ["Checkpointer"]
__all__ += [name for name in public(v1.training) if name not in __all__]


def __getattr__(name: str) -> Any:
    return inherited(v1.training, __name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
