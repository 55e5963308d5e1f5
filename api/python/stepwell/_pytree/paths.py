# SPDX-License-Identifier: Apache-2.0
r"""The path language: `params/*/kernel`, `a\/b/0`, ("a/b", 0).

A text path is components joined with "/"; a backslash before any of / * ? [ \ takes it literally.
A component with * or ? matches names; ** alone matches any number of components. An unescaped [ is
reserved. A tuple is exact: each str or int is one component, nothing is special in it. Components
match by spelling; where several stored ones are spelled alike, an int in a tuple means a key or
index, a str a name. With only the item `state` in the step its name may be left out; otherwise the
first component is the item.

format/path.h parses and db/read/step_tree.h resolves paths, for every interface alike.
"""

from __future__ import annotations

from typing import NamedTuple

from .records import StoredTree

PathLike = str | tuple[str | int, ...]


class Selection(NamedTuple):
    """What a path names: one record, or for a glob the leaves that it takes."""

    number: int | None
    leaves: list[int]


def resolve(tree: StoredTree, path: PathLike | None, below: int | None = None) -> Selection:
    """What `path` names in a step's tree; `below`: relative to that record, no item name."""
    if path is None or path in ("", ()):  # needs no index of the step, which a load would pay for
        return Selection(tree.top if below is None else below, [])
    return Selection(*tree.table.resolve(path, below))
