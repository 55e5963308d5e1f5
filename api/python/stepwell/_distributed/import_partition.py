# SPDX-License-Identifier: Apache-2.0
"""An Orbax checkpoint that several processes import together: what each sees of it, and which share
of it each saves. Those that see it read it in equal shares (db/import/shares.h); a process on a
machine where it is not saves a part with nothing in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from .. import _stepwell
from ..errors import CheckpointNotFoundError, PeerError
from .messages import CheckpointVote


class Share(NamedTuple):
    """What a process saves of a checkpoint."""

    step: int
    skip: bool  # no process saves anything: the step exists
    part: tuple[int, int] | None  # (index, count); None: it does not see the checkpoint
    items: Sequence[str]  # of the step


def vote_of(step: int, plan: _stepwell.ImportPlan | None, path: str) -> CheckpointVote:
    """What a process says that sees the checkpoint. `plan`: None where the step is skipped."""
    digest = "" if plan is None else hashlib.blake2b(plan.identity(), digest_size=16).hexdigest()
    return CheckpointVote(path, step, digest, [] if plan is None else plan.items())


def share_of(votes: Sequence[CheckpointVote], process: int) -> Share:
    """From what all processes said; the same on all of them, but for their own part."""
    first = votes[0]
    if first.step is None:
        raise CheckpointNotFoundError(
            f"{first.path}: there is no such file or directory where process 0 runs")
    if not first.digest:
        return Share(first.step, True, None, [])
    seeing = [number for number, vote in enumerate(votes) if vote.step is not None]
    for number in seeing:
        vote = votes[number]
        if vote.digest not in ("", first.digest) or vote.step != first.step:
            raise PeerError(
                f"process {number} sees another checkpoint than process 0: {vote.path} (step "
                f"{vote.step}) there, {first.path} (step {first.step}) here; bring the "
                "same one to all machines, or to that of process 0 alone", [number])
    part = (seeing.index(process), len(seeing)) if process in seeing else None
    return Share(first.step, False, part, first.items)
