# SPDX-License-Identifier: Apache-2.0
"""What the processes of group_process.py save."""

from typing import Any

import numpy as np

# (shape, partition spec over the mesh (x, y))
LEAVES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "rows": ((16, 6), ("x",)),
    "both": ((8, 8), ("y", "x")),
    "tuple": ((24,), (("x", "y"),)),
    "whole": ((5, 3), ()),
    "scalar": ((), ()),
    "empty": ((0, 4), ()),
    "large": ((64, 4096), (None, "x")),
}


def values(name: str, step: int) -> np.ndarray:
    shape, _ = LEAVES[name]
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32).reshape(shape) * 0.5 + step * 1000 + len(name))
