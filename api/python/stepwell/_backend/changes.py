# SPDX-License-Identifier: Apache-2.0
"""The difference between two steps, as a backend tells it: by the numbers of leaves in the steps'
trees."""

from __future__ import annotations

from typing import NamedTuple

from .. import _stepwell
from .._load.source import Source
from .._stepwell import LoadStats


class LeafDifference(NamedTuple):
    """The fields of `_stepwell.LeafChange`."""

    before: int
    after: int
    chunk_count: int
    changed_chunks: int
    changed_bytes: int
    changed_elements: int | None


class StepDifference(NamedTuple):
    removed: list[int]
    added: list[int]
    changed: list[LeafDifference]
    unchanged: int
    stats: LoadStats


def leaf_differences(found: _stepwell.StepChanges) -> list[LeafDifference]:
    return [LeafDifference(*[getattr(change, name) for name in LeafDifference._fields])
            for change in found.changed]


def compare(before: Source, after: Source, leaves_before: list[int], leaves_after: list[int],
            elements: bool) -> StepDifference:
    """Compares two steps that this process can read by itself."""
    found = _stepwell.compare_steps(before.tree, leaves_before, after.tree, leaves_after, elements)
    return StepDifference(found.removed, found.added, leaf_differences(found), found.unchanged,
                          found.stats)
