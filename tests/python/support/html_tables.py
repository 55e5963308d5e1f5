# SPDX-License-Identifier: Apache-2.0
"""Reads what objects show in notebooks."""

from __future__ import annotations

import html.parser


class Table(html.parser.HTMLParser):
    """Balanced tags of the few that there are, and the text of all cells. `lines`: the points of
    each line of each chart, and `titles` what the charts are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open: list[str] = []
        self.titles: list[str] = []
        self.lines: list[list[list[tuple[float, float]]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("table", "caption", "thead", "tbody", "tr", "th", "td", "p", "svg", "title",
                       "polyline")
        self.open.append(tag)
        if tag == "svg":
            self.lines.append([])
        elif tag == "polyline":
            points = (dict(attrs)["points"] or "").split()
            self.lines[-1].append([(float(x), float(y)) for x, y in
                                   (point.split(",") for point in points)])
        elif tag == "title":
            self.titles.append("")
        self.cells += [""] if tag in ("th", "td", "caption", "p") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "title":
            self.titles[-1] += data
        else:
            self.cells[-1] += data
