# SPDX-License-Identifier: Apache-2.0
"""The charts of the README, in plain SVG: a few rows of the report as bars, and a store that
grows."""

import math
import statistics
from html import escape
from typing import Any, NamedTuple

from report import Report
from tables import UNITS, number


class Panel(NamedTuple):
    row: str
    title: str
    better: str
    limit: str = ""  # the key in Report.limits, drawn as a line
    limit_name: str = ""
    logarithmic: bool = False


PANELS = [
    Panel("full/jax/durable", "Save until durable, GB/s", "more is better", "write", "fio write"),
    Panel("full/jax/stall", "The training loop waits, ms", "less is better; log scale",
          logarithmic=True),
    Panel("full/NumPy/restore", "Cold restore, GB/s", "more is better", "read", "fio read"),
]

NAMES, PANEL, BAR, TOP, LINE = 160, 240, 150, 62, 26
OWN, OTHERS, INK, FAINT = "#00796b", "#90a4ae", "#263238", "#607d8b"


def svg(report: Report) -> str:
    """All contenders, a line each; white behind it, so that it is readable on any page."""
    width, height = NAMES + PANEL * len(PANELS), TOP + LINE * len(report.who) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="13" '
        f'fill="{INK}" role="img">',
        f'<title>{"; ".join(panel.title for panel in PANELS)}</title>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, described in enumerate(report.who.values()):
        y = TOP + LINE * place + 13
        lines.append(_text(NAMES - 10, y, described["name"], 'text-anchor="end"'))
    for place, panel in enumerate(PANELS):
        lines += _panel(report, panel, NAMES + PANEL * place)
    return "\n".join([*lines, "</svg>"]) + "\n"


GROWTH_WIDTH, GROWTH_HEIGHT, LEFT, BOTTOM = 640, 300, 70, 40


def growth(found: dict[str, Any]) -> str:
    """Bytes on the disk by the number of steps that are kept: what fine_tuning.measure found."""
    steps, whole = found["steps"], found["state_bytes"]
    top = 1.25 * max(used for _, used in found["stepwell"]) / whole  # in states
    right, floor = GROWTH_WIDTH - 20, GROWTH_HEIGHT - BOTTOM

    def line(points: list[tuple[int, float]], colour: str, attributes: str = "") -> str:
        places = " ".join(f"{LEFT + (right - LEFT) * step / steps:.1f},"
                          f"{floor - (floor - 50) * used / whole / top:.1f}"
                          for step, used in points)
        return (f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2.5" '
                f'{attributes}/>').replace(" />", "/>")

    title = f"A fine-tuning keeps {steps:,} steps of {whole / 1e6:,.0f} MB"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {GROWTH_WIDTH} {GROWTH_HEIGHT}" '
        f'width="{GROWTH_WIDTH}" height="{GROWTH_HEIGHT}" font-family="sans-serif" '
        f'font-size="13" fill="{INK}" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{GROWTH_WIDTH}" height="{GROWTH_HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 22, title, 'font-weight="bold"'),
        _text(LEFT, 40, "disk space, in states; segments are laid out whole until the store closes",
              f'fill="{FAINT}" font-size="11"')]
    for states in range(int(top) + 1):
        y = floor - (floor - 50) * states / top
        lines += [f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#cfd8dc"/>',
                  _text(LEFT - 8, round(y) + 4, str(states), 'text-anchor="end"')]
    for share in range(0, 5):
        lines.append(_text(LEFT + (right - LEFT) * share / 4, floor + 18, f"{steps * share // 4:,}",
                           f'fill="{FAINT}" font-size="11" text-anchor="middle"'))
    peers = [(step, used) for step, used in found["orbax"] if used / whole <= top]
    last, peer = found["stepwell"][-1][1] / whole, found["orbax"][-1]
    lines += [line([(0, 0), *peers], OTHERS), line(found["stepwell"], OWN),
              _text(LEFT + 14, 90, f"Orbax v1: {peer[1] / whole:.1f} states after {peer[0]} steps",
                    f'fill="{FAINT}"'),
              _text(right - 14, round(floor - (floor - 50) * last / top) + 74,
                    f"Stepwell: {last:.2f} states after {steps:,} steps",
                    f'fill="{OWN}" text-anchor="end"')]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(report: Report, panel: Panel, x: int) -> list[str]:
    unit = report.rows[panel.row].unit
    figures = {key: report.figures.get((panel.row, key)) for key in report.who}
    values = {key: figure.median for key, figure in figures.items() if figure and figure.values}
    limit = statistics.median(report.limits[panel.limit]) if panel.limit in report.limits else None
    everything = [*values.values(), *([] if limit is None else [limit])]

    def scale(value: float) -> float:
        if panel.logarithmic:  # the smallest value gets a bar, too
            low = min(everything) / 2
            return BAR * math.log(value / low) / math.log(max(everything) / low)
        return BAR * value / max(everything)

    lines = [_text(x, 22, panel.title, 'font-weight="bold"'),
             _text(x, 40, panel.better, f'fill="{FAINT}" font-size="11"')]
    for place, key in enumerate(report.who):
        y = TOP + LINE * place
        if key not in values:
            lines.append(_text(x, y + 13, "not measured", f'fill="{FAINT}"'))
            continue
        length = scale(values[key])
        colour = OWN if key == "stepwell" else OTHERS
        lines.append(f'<rect x="{x}" y="{y}" width="{length:.1f}" height="18" fill="{colour}"/>')
        lines.append(_text(x + BAR + 8, y + 13, number(values[key], unit)))
    if limit is not None:
        at, bottom = x + scale(limit), TOP + LINE * len(report.who)
        lines.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{bottom}" '
                     f'stroke="{INK}" stroke-dasharray="4 3"/>')
        label = f"{panel.limit_name} {limit * UNITS[unit]:.3g}"
        lines.append(_text(at, bottom + 15, label,
                           f'fill="{FAINT}" font-size="11" text-anchor="middle"'))
    return lines


def _text(x: float, y: int, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" {attributes}>{escape(text)}</text>'.replace(" >", ">")
