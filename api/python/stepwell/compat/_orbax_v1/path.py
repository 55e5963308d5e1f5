# SPDX-License-Identifier: Apache-2.0
"""ocp.path: types of paths, and names of steps."""

from __future__ import annotations

import os
from typing import Any

from . import step
from .handlers import PathAwaitingCreation

__all__ = ["Path", "PathAwaitingCreation", "PathLike", "step"]

Path = Any
PathLike = str | os.PathLike[str]
