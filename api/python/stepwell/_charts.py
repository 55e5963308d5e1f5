# SPDX-License-Identifier: Apache-2.0
"""Numbers over the steps, as small charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._display import Html, escaped, shown

_WIDTH, _HEIGHT, _MARGIN = 160, 24, 2  # pixels


def means(numbers: Sequence[float], count_max: int) -> list[float]:
    """The numbers themselves, or of more than `count_max` the means of as many runs of them. One
    that is not finite makes its run so."""
    count = max(1, min(len(numbers), count_max))
    bounds = [len(numbers) * i // count for i in range(count + 1)]
    return [_mean(numbers[begin:end]) for begin, end in zip(bounds, bounds[1:], strict=False)]


def _mean(numbers: Sequence[float]) -> float:
    """Between the least and the greatest of them, so that equal numbers have their own mean. Of
    floats so large that their sum is none it is still finite."""
    if not numbers or not all(map(math.isfinite, numbers)):
        return math.nan
    mean = sum([number / len(numbers) for number in numbers])
    return min(max(mean, min(numbers)), max(numbers))


def scaled(numbers: Sequence[float]) -> list[float | None]:
    """Scales the lowest number to 0 and the highest to 1. One that is not finite becomes None."""
    finite = [number for number in numbers if math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    # Halves, since the distance between two numbers may be more than a float can be.
    span = high / 2 - low / 2
    return [((number / 2 - low / 2) / span if span else 0.0) if math.isfinite(number) else None
            for number in numbers]


def sparkline_svg(numbers: Sequence[float], label: str) -> Html:
    """A line, with gaps where numbers are not finite, in the colour of the text around it. `label`
    says what it is to those that do not see it."""
    points = scaled(means(numbers, _WIDTH))
    across = (_WIDTH - 2 * _MARGIN) / max(1, len(points) - 1)
    runs: list[list[str]] = [[]]
    for i, point in enumerate(points):
        if point is None:
            runs.append([])
        else:
            up = _HEIGHT - _MARGIN - point * (_HEIGHT - 2 * _MARGIN)
            runs[-1].append(f"{_MARGIN + i * across:.1f},{up:.1f}")
    # A round end makes a dot of a run of one point.
    lines = "".join([f'<polyline points="{" ".join(run * 2 if len(run) == 1 else run)}"></polyline>'
                     for run in runs if run])
    return Html(
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round">'
        f"<title>{escaped(shown(label))}</title>{lines}</svg>")
