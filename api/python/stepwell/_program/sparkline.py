# SPDX-License-Identifier: Apache-2.0
"""Numbers over the steps as one line of bars."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .._charts import means, scaled

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-:=+*#"  # where the output cannot have the others


def is_drawn() -> bool:
    """Returns true if standard output takes block characters."""
    return (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "") == "utf8"


def sparkline(numbers: Sequence[float], width_max: int, plain: bool = False) -> str:
    """One bar for each number, or of more than `width_max` for the mean of some; a space where it
    is not finite. `plain`: of ASCII."""
    bars = _PLAIN_BARS if plain else _BARS
    return "".join([" " if part is None else bars[round(part * (len(bars) - 1))]
                    for part in scaled(means(numbers, width_max))])
