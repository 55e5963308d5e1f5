# SPDX-License-Identifier: Apache-2.0
"""The leaves of a report: what they are, how they are sharded, and their numbers over time."""

from __future__ import annotations

import json
from typing import Any

from .. import _stepwell

CELLS_MAX = 240_000  # leaves times steps that are looked into
LEAVES_MAX = 50_000
SAMPLES_MAX = 1_000
PATH_BYTES_MAX = 16 << 20
SHARDINGS_MAX = 1_000
_DEVICES_MAX = 4_096  # of a mesh that is drawn
_TEXT_MAX = 1_000  # characters of a sharding over no mesh


def sample_count(leaf_count_max: int) -> int:
    """How many steps are looked into, where the largest has so many leaves."""
    return max(2, min(SAMPLES_MAX, CELLS_MAX // max(leaf_count_max, 1)))


def survey(core: _stepwell.Core, steps: list[int]) -> _stepwell.Survey:
    """Reads the records of these steps, ascending, in bulk, and no arrays."""
    return core.survey(steps, _stepwell.SurveyLimits(
        cells=CELLS_MAX, leaves=LEAVES_MAX, path_bytes=PATH_BYTES_MAX))


def leaves_of(found: _stepwell.Survey, samples: list[int]) -> dict[str, Any]:
    """`samples`: the places of the steps among those that are shown."""
    paths = found.paths()
    return {
        "steps": samples,
        "total_leaves": found.total_leaves,
        "shown": len(paths),
        "path": paths,
        "item": found.items(),
        "kind": found.kinds(),
        "dtype": found.dtypes(),
        "shape": found.shapes(),
        "logical_bytes": found.logical_bytes(),
        "stored_bytes": found.stored_bytes(),
        "sharding": [number if number is not None and number < SHARDINGS_MAX else None
                     for number in found.leaf_shardings()],
        "content": found.contents(),
        "statistics": found.statistics() or None,
    }


def shardings_of(found: _stepwell.Survey) -> list[dict[str, Any]]:
    return [_sharding(text) for text in found.shardings()[:SHARDINGS_MAX]]


def _sharding(text: str) -> dict[str, Any]:
    parsed = _stepwell.parsed_sharding(text)
    if parsed is None:
        return {"text": _of_no_mesh(text), "axes": None, "mesh": None, "spec": None,
                "devices": None, "memory_kind": None}
    axes, spec, devices, memory_kind = parsed
    parts = [repr(names[0]) if len(names) == 1 else repr(tuple(names)) if names else "None"
             for names in spec]
    mesh = ", ".join([f"{name}={size}" for name, size in axes]) or "one device"
    return {"text": f"P({', '.join(parts)}) over {mesh}", "axes": [name for name, _ in axes],
            "mesh": dict(axes), "spec": spec,
            "devices": devices if len(devices) <= _DEVICES_MAX else None,
            "memory_kind": memory_kind or None}


def _of_no_mesh(text: str) -> str:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict) and {"sharding_type", "device_str"} <= fields.keys():
        return f"{fields['sharding_type']} on {fields['device_str']}"[:_TEXT_MAX]
    return text[:_TEXT_MAX]
