# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: small tables, and dicts that unfold for Treescope."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

ROWS_MAX, END = 40, 20  # rows of a table, and of its beginning and end where there are more


def escaped(text: str) -> str:
    """Text as HTML shows it."""
    import html  # loads a table of all named characters: not at `import stepwell`

    return html.escape(text)


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """All texts are escaped. Of more than ROWS_MAX rows the first and the last are shown."""
    shown = [*map(_row, rows)] if len(rows) <= ROWS_MAX else [
        *map(_row, rows[:END]),
        f'<tr><td colspan="{len(header)}">… {len(rows) - 2 * END:,} more</td></tr>',
        *map(_row, rows[-END:])]
    head = "".join([f"<th>{escaped(text)}</th>" for text in header])
    return (f"<table><caption>{escaped(caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(shown)}</tbody></table>")


def treescope_dict(kind: type, below: Mapping[Any, Any], path: str | None, subtree: Any) -> Any:
    """A view as Treescope, which calls this, shows a dict: `path` and `subtree` are the arguments
    of `__treescope_repr__`."""
    return importlib.import_module("treescope.repr_lib").render_dictionary_wrapper(
        object_type=kind, wrapped_dict=dict(below), path=path, subtree_renderer=subtree)


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join([f'<td>{escaped(cell)}</td>' for cell in cells])}</tr>"
