# SPDX-License-Identifier: Apache-2.0
"""An Orbax checkpoint that several processes import together: what each sees of it, and which share
of it each saves. Those that see it read it in equal shares (db/import/shares.h); a process on a
machine where it is not saves a part with nothing in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _stepwell
from ..errors import CheckpointNotFoundError, PeerError


class Share(NamedTuple):
    """What a process saves of a checkpoint."""

    step: int
    skip: bool  # nobody saves anything: the step is there already
    part: tuple[int, int] | None  # (index, count); None: it does not see the checkpoint
    items: list[str]  # of the step


def word_of(step: int, plan: _stepwell.ImportPlan | None, path: str) -> dict[str, Any]:
    """What a process says that sees the checkpoint. `plan`: None where the step is skipped."""
    digest = "" if plan is None else hashlib.blake2b(plan.identity(), digest_size=16).hexdigest()
    return {"step": step, "path": path, "digest": digest,
            "items": [] if plan is None else plan.items()}


def unseen(path: str) -> dict[str, Any]:
    """What a process says where there is nothing at `path`."""
    return {"path": path}


def share_of(words: Sequence[dict[str, Any]], process: int) -> Share:
    """From what all processes said; the same on all of them, but for their own part."""
    first = words[0]
    if "step" not in first:
        raise CheckpointNotFoundError(
            f"{first['path']}: there is no such file or directory where process 0 runs")
    if not first["digest"]:
        return Share(first["step"], True, None, [])
    seeing = [number for number, word in enumerate(words) if "step" in word]
    for number in seeing:
        word = words[number]
        if word["digest"] not in ("", first["digest"]) or word["step"] != first["step"]:
            raise PeerError(
                f"process {number} sees another checkpoint than process 0: {word['path']} (step "
                f"{word['step']}) there, {first['path']} (step {first['step']}) here; bring the "
                "same one to all machines, or to that of process 0 alone", [number])
    part = (seeing.index(process), len(seeing)) if process in seeing else None
    return Share(first["step"], False, part, first["items"])
