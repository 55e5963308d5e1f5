# SPDX-License-Identifier: Apache-2.0
"""The measurements: values and ratios by row and contender, as an object and as JSON."""

import statistics
from typing import Any

import rows


class Figure:
    """One row of one contender: a value a round, each with the limit of the same round."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.ratios: list[float] = []
        self.problem = ""  # the first error, or why it cannot do this

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None


class Report:
    """All figures. `who` has the contenders in the order of the tables, as they describe
    themselves."""

    def __init__(self, catalogue: list[rows.Row], contenders: list[str]) -> None:
        self.rows = {row.id: row for row in catalogue}
        self.who: dict[str, dict[str, Any]] = {
            key: {"name": key, "kinds": [], "durable": True, "version": ""} for key in contenders}
        self.figures: dict[tuple[str, str], Figure] = {}
        self.limits: dict[str, list[float]] = {}
        self.failures: list[str] = []

    def know(self, contender: str, described: dict[str, Any]) -> None:
        self.who[contender] = described

    def figure(self, row: str, contender: str) -> Figure:
        return self.figures.setdefault((row, contender), Figure())

    def add_limits(self, found: dict[str, float]) -> None:
        for name, value in found.items():
            self.limits.setdefault(name, []).append(value)

    def add(self, contender: str, event: dict[str, Any], found: dict[str, float]) -> None:
        row = self.rows[event["row"]]
        figure = self.figure(row.id, contender)
        if "cannot" in event:
            figure.problem = "cannot: " + event["cannot"]
            return
        figure.values.append(event["value"])
        limit = event["limit"] if row.limit == "own" else found.get(row.limit)
        if limit:
            figure.ratios.append(event["value"] / limit)

    def fail(self, contender: str, prefixes: tuple[str, ...], why: str) -> None:
        """Every row that this contender could have had from a task that went wrong."""
        described = self.who[contender]
        self.failures.append(f"{described['name']}, {prefixes[0].rstrip('/')}: {why}")
        for row in self.rows.values():
            if (row.id.startswith(prefixes) and row.only in ("", contender)
                    and not ("jax" in row.id and "jax" not in described["kinds"])
                    and not (row.background and described["durable"])):
                figure = self.figure(row.id, contender)
                figure.problem = figure.problem or "failed: " + why

    def as_json(self) -> dict[str, Any]:
        figures = []
        for (row_id, contender), figure in self.figures.items():
            row = self.rows[row_id]
            out: dict[str, Any] = {"row": row_id, "contender": contender, "unit": row.unit,
                                   "values": figure.values, "ratios": figure.ratios,
                                   "problem": figure.problem}
            if figure.values:
                out["median"] = figure.median
                out["ratio_median"] = figure.ratio
            figures.append(out)
        return {"rows": [row._asdict() for row in self.rows.values()], "contenders": self.who,
                "limits": self.limits, "figures": figures, "failures": self.failures}

    @staticmethod
    def from_json(document: dict[str, Any]) -> "Report":
        made = Report([rows.Row(**row) for row in document["rows"]], [])
        made.who = document["contenders"]
        made.limits = document["limits"]
        made.failures = document["failures"]
        for out in document["figures"]:
            figure = made.figure(out["row"], out["contender"])
            figure.values, figure.ratios = out["values"], out["ratios"]
            figure.problem = out["problem"]
        return made
