# SPDX-License-Identifier: Apache-2.0
"""Documents of a report, as `stepwell report --json` has them, for tests of the page: made here, so
that each odd thing is there without a store that has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

HOSTILE = ("<script>window.hit = 1</script>", "<img src=x onerror=\"window.hit = 2\">",
           "\u202egnp.evil", "\u05e9\u05dc\u05d5\u05dd", "bell\x07\x1b[31m\x00end", "x" * 5000,
           "</script><b>bold</b>", " ", "__proto__", "{policy}", "\ud800alone")


def document(*, steps: Sequence[int] = tuple(range(0, 60)), leaves: Sequence[str] | None = None,
             sampled: int = 12, metrics: dict[str, list[Any]] | None = None,
             **parts: Any) -> dict[str, Any]:
    """A document of these steps (numbers) and leaves (paths). Values follow from the positions:
    leaf i has norm i + 1 at the first sampled step, and grows by i % 3 percent at each; where
    i % 3 is 0 it stays as it is."""
    if leaves is None:
        leaves = [f"params/layers/{layer}/{name}" for layer in range(4)
                  for name in ("bias", "kernel")] + ["opt/count"]
    count = len(steps)
    loss = [round(math.exp(-i / 20), 6) for i in range(count)]
    each = range(count)
    marks = count > 20
    made: dict[str, Any] = {
        "schema": 1, "stepwell": "0.1.0", "made": "2026-11-29T15:20:38Z", "live": False,
        "store": {"path": "/runs/one", "name": "one", "format": 7, "steps": count,
                  "latest": steps[-1] if count else None, "first": steps[0] if count else None},
        "steps": {
            "total": count, "shown": count, "number": list(steps),
            "time_s": [1_795_966_217.25 + 30 * i for i in each],
            "save_s": [0.01 + 0.0001 * i for i in each],
            "logical_bytes": [3_000_000] * count, "stored_bytes": [2_000_000 + i for i in each],
            "owned_bytes": [1_500_000 + 1000 * i for i in each],
            "frees_bytes": [1_400_000 + 1000 * i for i in each],
            "leaves": [len(leaves)] * count, "verified": [0, 1] if marks else [],
            "pinned": [5] if marks else [], "taint": {"7": "loss spike"} if marks else {},
            "goes_next": [2] if marks else [], "damaged": {"9": "a bad chunk"} if marks else {},
            "kept_by": [[0]] * count},
        "metrics": {"loss": loss, "lr": [0.1] * count} if metrics is None else metrics,
        "best": {"loss": {"min": count - 1, "max": 0}} if count and metrics is None else {},
        "best_rules": [], "items": {},
        "retention": {"rules": ["LatestN(60)"], "warnings": [], "gaps": [], "interval": 1},
        "leaves": _leaves(leaves, count, sampled),
        "shardings": [{"text": "P('data', 'model') over data=4, model=2", "axes": ["data", "model"],
                       "mesh": {"data": 4, "model": 2}, "spec": [["data"], ["model"]],
                       "devices": list(range(8)), "memory_kind": None}],
        "space": {"total_bytes": 9 << 20, "live_bytes": 6 << 20, "padding_bytes": 1 << 20,
                  "overhead_bytes": 1 << 20, "dead_bytes": 1 << 20, "reserved_bytes": 0,
                  "index_bytes": 0, "other_bytes": 0, "pinned_by_readers_bytes": 0,
                  "linked_bytes": 0},
        "health": {"damaged": [{"step": steps[9], "what": "a bad chunk"}] if marks else [],
                   "losses": [], "recovery": {"clean": True, "commits_recovered": 0,
                                              "commits_rejected": 0, "index_rebuilt": False,
                                              "problems": []},
                   "last_verified": steps[1] if marks else None, "verified_steps": 2 * marks,
                   "old_pins": [], "views": [], "notes": []},
        "limits": []}
    if count:
        made["items"]["state"] = {name: made["steps"][name] for name in (
            "logical_bytes", "stored_bytes", "owned_bytes")}
    for name, part in parts.items():
        made[name] = {**made[name], **part} if isinstance(part, dict) else part
    return made


def _leaves(paths: Sequence[str], steps: int, sampled: int) -> dict[str, Any]:
    size = len(paths)
    shown = min(sampled, steps)
    chosen = sorted({round(k * (steps - 1) / max(1, shown - 1)) for k in range(shown)})

    def rows(value: Any) -> list[list[Any]]:
        return [[value(i, k) for k in range(len(chosen))] for i in range(size)]

    def norm(i: int, k: int) -> float:
        return round((i + 1) * (1 + i % 3 / 100) ** k, 5)

    return {
        "steps": chosen, "total_leaves": size, "shown": size, "path": list(paths),
        "item": ["state"] * size, "kind": ["array"] * size, "dtype": ["float32"] * size,
        "shape": [[64, 32]] * size, "logical_bytes": [8192 + i for i in range(size)],
        "stored_bytes": [4096 + i for i in range(size)],
        "sharding": [0 if i % 2 else None for i in range(size)],
        "content": rows(lambda i, k: k if i % 3 else 0),
        "statistics": {
            "norm": rows(norm), "min": rows(lambda i, k: -1 - i), "mean": rows(lambda i, k: 0.5),
            "max": rows(lambda i, k: 1 + i), "nonfinite": rows(lambda i, k: 0),
            "changed": rows(lambda i, k: None if k == 0 else 0.25 * bool(i % 3)),
            "changed_exact": True, "elements": rows(lambda i, k: 2048)}}
