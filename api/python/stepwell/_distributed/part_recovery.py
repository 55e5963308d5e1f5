# SPDX-License-Identifier: Apache-2.0
"""What an open by all processes makes of the parts that it finds."""

from __future__ import annotations

from typing import Any

from .. import _stepwell
from ..errors import Error
from .coordinator import part_path


def state_of(core: _stepwell.Core) -> dict[str, Any]:
    _, part, mark, _ = core.group_status()
    return {"part": part, "mark": mark}


Committed = dict[tuple[int, bytes], list[int]]  # (step, save id) to its parts


def check_complete(core: _stepwell.Core, root: str, process: int, committed: Committed) -> None:
    """Whether a part has its share of all that was committed."""
    _, part, _, prepared = core.group_status()
    here = {*prepared, *[(step, save_id) for step, save_id, _ in core.group_steps()]}
    for (step, save_id), parts in committed.items():
        if part in parts and (step, save_id) not in here:
            raise Error(f"part {part} of step {step} is missing: {part_path(root, part)!r} of "
                        f"process {process} does not have it. Was the disk of that machine lost, "
                        "or an older copy put back? Bring it, or begin a new store elsewhere")


def settle(core: _stepwell.Core, committed: Committed, mark: int) -> None:
    """Decides what is undecided in a part, and deletes what part 0 has not."""
    _, part, _, prepared = core.group_status()
    if part == 0:
        return
    for step, save_id in prepared:
        core.decide(step, save_id, (step, save_id) in committed, [], mark, True)
    gone = [step for step, save_id, _ in core.group_steps() if (step, save_id) not in committed]
    if gone:
        core.delete(gone)
