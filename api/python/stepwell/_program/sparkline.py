# SPDX-License-Identifier: Apache-2.0
"""Numbers over the steps as one line of bars."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-:=+*#"  # where the output cannot have the others


def is_drawn() -> bool:
    """Returns true if standard output takes block characters."""
    return (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "") == "utf8"


def sparkline(numbers: Sequence[float], width_max: int, plain: bool = False) -> str:
    """One bar for each number, or of more than `width_max` for the mean of some; a space where it
    is not finite. `plain`: of ASCII."""
    bars = _PLAIN_BARS if plain else _BARS
    count = max(1, min(len(numbers), width_max))
    bounds = [len(numbers) * i // count for i in range(count + 1)]
    means = [_mean(numbers[begin:end]) for begin, end in zip(bounds, bounds[1:], strict=False)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    # Halves, since the distance between two numbers may be more than a float can be.
    span = high / 2 - low / 2
    return "".join([bars[round((mean / 2 - low / 2) / span * (len(bars) - 1)) if span else 0]
                    if math.isfinite(mean) else " " for mean in means])


def _mean(numbers: Sequence[float]) -> float:
    """Of floats so large that their sum is none it is still finite."""
    return sum([number / len(numbers) for number in numbers]) if numbers else math.nan
