# SPDX-License-Identifier: Apache-2.0
"""Displays in notebooks: small tables, and dicts that unfold for Treescope."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ._text import printable

ROWS_MAX, END = 40, 20  # rows of a table, and of its beginning and end where there are more
TEXT_MAX = 300  # characters of a cell


def escaped(text: str) -> str:
    """Text as HTML shows it."""
    import html  # loads a table of all named characters: not at `import stepwell`

    return html.escape(text)


class Html(str):
    """A cell that is HTML already; all others are text."""


def shown(text: str) -> str:
    """At most TEXT_MAX characters of a text, without what a page might obey."""
    short = printable(text[:TEXT_MAX + 1])
    return short if len(short) <= TEXT_MAX else short[:TEXT_MAX] + "…"


def html_note(text: str) -> str:
    """Makes a paragraph of a text, escaped and cut."""
    return f"<p>{escaped(shown(text))}</p>"


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]],
               cut: bool = True) -> str:
    """All texts are escaped, and those of cells cut. `cut`: of more than ROWS_MAX rows the first
    and the last are shown."""
    body = [*map(_row, rows)] if not cut or len(rows) <= ROWS_MAX else [
        *map(_row, rows[:END]),
        f'<tr><td colspan="{len(header)}">… {len(rows) - 2 * END:,} more</td></tr>',
        *map(_row, rows[-END:])]
    head = "".join([f"<th>{escaped(text)}</th>" for text in header])
    return (f"<table><caption>{escaped(shown(caption))}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>")


def format_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def commit_time(time_ns: int) -> datetime:
    """UTC."""
    return datetime.fromtimestamp(time_ns / 1e9, tz=timezone.utc)


class Numbers(dict[str, Any]):
    """A dict, with dicts in it, that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return html_table("stats", ("number", "value", ""), list(_numbers("", self)), False)


def _numbers(above: str, value: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(f"{above}.{name}" if above else name, each)
    elif isinstance(value, int) and above.endswith("_bytes"):
        yield above, f"{value:,}", format_bytes(value)
    elif isinstance(value, float) and above.endswith("_s"):
        yield above, f"{value:.6g}", "s"
    elif isinstance(value, int) and not isinstance(value, bool):
        yield above, f"{value:,}", ""
    else:
        yield above, str(value), ""


def treescope_dict(kind: type, below: Mapping[Any, Any], path: str | None, subtree: Any) -> Any:
    """A view as Treescope, which calls this, shows a dict: `path` and `subtree` are the arguments
    of `__treescope_repr__`."""
    return importlib.import_module("treescope.repr_lib").render_dictionary_wrapper(
        object_type=kind, wrapped_dict=dict(below), path=path, subtree_renderer=subtree)


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join([f'<td>{_cell(cell)}</td>' for cell in cells])}</tr>"


def _cell(text: str) -> str:
    return text if isinstance(text, Html) else escaped(shown(text))
