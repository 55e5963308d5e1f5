# SPDX-License-Identifier: Apache-2.0
"""Figures: medians, spread, ratios to the limit of the same round, and the table."""

import statistics
from typing import Any

UNITS = {"GB/s": 1e-9, "ms": 1e3, "s": 1.0, "core-s/GB": 1.0, "x": 1.0, "MB": 1e-6, "": 1.0}


class Figure:
    """One row: a value a round and, where there is one, the limit measured in the same round."""

    def __init__(self, group: str, what: str, unit: str, *, limit: str = "", bound: str = "",
                 budget: str = "") -> None:
        self.group = group
        self.what = what
        self.unit = unit
        self.limit = limit  # what the values are divided by
        self.bound = bound  # what it cannot be better than, in words
        self.budget = budget
        self.values: list[float] = []
        self.ratios: list[float] = []

    def add(self, value: float, limit: float | None = None) -> None:
        self.values.append(value)
        if limit:
            self.ratios.append(value / limit)

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "group": self.group, "what": self.what, "unit": self.unit,
            "values": [value * UNITS[self.unit] for value in self.values],
        }  # fmt: skip
        if self.values:
            out["median"] = statistics.median(out["values"])
        if self.ratios:
            out["limit"] = self.limit
            out["ratios"] = self.ratios
            out["ratio_median"] = statistics.median(self.ratios)
        for name in ("bound", "budget"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        return out

    def _number(self, value: float) -> str:
        value *= UNITS[self.unit]
        if value == 0:
            return "0"
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"

    def cells(self) -> list[str]:
        if not self.values:
            return [self.what, "-", "", "", self.budget, self.bound]
        median = f"{self._number(statistics.median(self.values))} {self.unit}".strip()
        spread = ""
        if len(self.values) > 1:
            spread = f"{self._number(min(self.values))} … {self._number(max(self.values))}"
        ratio = f"{statistics.median(self.ratios):.2f} × {self.limit}" if self.ratios else ""
        return [self.what, median, spread, ratio, self.budget, self.bound]


HEAD = ["what", "median", "min … max", "ratio to limit", "budget", "bounded by"]


class Report:
    """All figures, in the order in which they were first named."""

    def __init__(self) -> None:
        self.figures: dict[tuple[str, str], Figure] = {}

    def figure(self, group: str, what: str, unit: str, **words: str) -> Figure:
        key = (group, what)
        if key not in self.figures:
            self.figures[key] = Figure(group, what, unit, **words)
        return self.figures[key]

    def table(self) -> str:
        """Markdown that is also readable as it is."""
        groups: dict[str, list[list[str]]] = {}
        for figure in self.figures.values():
            groups.setdefault(figure.group, []).append(figure.cells())
        rows = [row for cells in groups.values() for row in cells]
        widths = [max(len(row[i]) for row in [HEAD, *rows]) for i in range(len(HEAD))]

        def line(cells: list[str]) -> str:
            return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

        lines: list[str] = []
        for group, cells in groups.items():
            lines += ["", f"**{group}**", "", line(HEAD)]
            lines.append("|" + "|".join("-" * (width + 2) for width in widths) + "|")
            lines += [line(row) for row in cells]
        return "\n".join(lines[1:])


def head(described: dict[str, Any], settings: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in described["versions"].items())
    return "\n".join([
        f"machine     {described['cores']} cores of {described['cpu']}, "
        f"{described['memory_bytes'] / 2**30:.0f} GiB; load {described['load_average']:.1f}",
        f"kernel      Linux {described['kernel']}",
        f"directory   {described['filesystem']}",
        f"versions    {versions}",
        f"state       {settings['state']}",
        f"method      {settings['method']}",
    ])  # fmt: skip
