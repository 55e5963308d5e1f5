# SPDX-License-Identifier: Apache-2.0
"""Describes the records in a step's tree (`_stepwell.StepTree`): no array data is read.

format/path.h has the language of paths, and db/read/step_tree.h resolves them, for every interface
alike. With only the item `state` in the step its name may be left out; otherwise the first
component is the item.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from .._stepwell import LeafKind

ARRAY, VALUE, NODE = LeafKind.ARRAY, LeafKind.VALUE, LeafKind.NODE

ROOT = -1  # the number of the step, above its items

PathLike = str | tuple[Hashable, ...]  # the latter: of keys, and of names and indices


def array_text(dtype: Any, shape: tuple[int, ...], prng_impl: str = "") -> str:
    """Describes an array as `StepTree.describe` does."""
    name = f"key<{prng_impl}> {dtype}" if prng_impl else str(np.dtype(dtype))
    return f"{name}[{', '.join(map(str, shape))}]"
