# SPDX-License-Identifier: Apache-2.0
"""Drafts: steps that several calls fill."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, SupportsIndex

from ._handle import SaveHandle
from ._lifetime import DRAFTS, OpenStore, check_no_link
from ._pytree.tree import KEY, path_text, walk_items
from ._runtime.arguments import IfExists, json_text, step_number
from ._runtime import durable
from ._runtime.files import read_json_object
from ._runtime.service import NotCopied
from ._stepwell import ContainerKind
from ._views import NodeView, StepView
from .errors import (CheckpointNotFoundError, Error, InvalidArgumentError, OutcomeUnknownError)

# In a draft while its step is being saved: {"after": the newest commit before}. What a process that
# died between the step's commit and the draft's end left is known by it.
_FINALIZING = "FINALIZING"


class Draft(NotCopied):
    """A step that several calls fill; made by `Store.draft`. What was added is durable and survives
    this process; nothing of it is a step of the store before `finalize`. As a context manager it
    finalizes at the end of the block, unless that ends with an exception."""

    def __init__(self, store: OpenStore, step: int, path: str) -> None:
        self.step = step
        self._path = path
        self._store = store
        self._parts: Any = store._open_alone(path)
        self._finished = False
        self._saving: dict[int, SaveHandle] = {}
        self._leaves: dict[int, list[list[str]]] = {}  # their paths, by part
        self._taken: dict[tuple[str, ...], bool] = {}  # paths of parts; whether it is a leaf
        for number in self._parts.steps():
            tree = self._parts._source(number).tree
            self._take(number, [[str(name) for _, name in tree.components(leaf)]
                                for leaf in tree.leaves(-1)])

    def _take(self, number: int, leaves: list[list[str]]) -> None:
        self._leaves[number] = leaves
        for path in leaves:
            for depth in range(1, len(path)):
                self._taken.setdefault(tuple(path[:depth]), False)
            self._taken[tuple(path)] = True

    def _forget_failed(self) -> None:
        """Lets parts that were not saved be added again."""
        done = [number for number, handle in self._saving.items() if handle.done()]
        failed = [number for number in done if number not in self._parts]
        for number in done:
            del self._saving[number]
        for number in failed:
            del self._leaves[number]
        if failed:
            self._taken.clear()
            for number, leaves in self._leaves.items():
                self._take(number, leaves)

    @property
    def parts(self) -> int:
        """The number of parts that were added."""
        self._forget_failed()
        return len(self._leaves)

    def add(self, state: Any = None, *, items: Mapping[str, Any] | None = None) -> SaveHandle:
        """Adds a part of the step, asynchronously: leaves that no part has yet, in dicts that parts
        may share. When the handle is done, the part is durable. A leaf that is there already, or a
        list of which another part has an element, is an InvalidArgumentError. A part that was not
        saved, because the disk was full, can be added again."""
        self._check()
        self._forget_failed()
        trees = dict(items or {}) if state is None else {"state": state, **(items or {})}
        paths = []
        for name, flat in walk_items(trees):
            kinds = {row.path: row.container for row in flat.rows}
            for row in flat.rows:
                path = [name, *[str(component) for _, component in row.path]]
                known = self._taken.get(tuple(path))
                if known or (known is not None and kinds[row.path] != ContainerKind.DICT):
                    raise InvalidArgumentError(
                        f"the draft of step {self.step} has "
                        f"{path_text([(KEY, name) for name in path])!r} already: a part adds what "
                        "no other part has")
                if not kinds[row.path]:
                    paths.append(path)
        number = max(self._leaves, default=-1) + 1
        handle: SaveHandle = self._parts._put(number, trees)
        self._saving[number] = handle
        self._take(number, paths)
        return handle

    def finalize(self, *, metadata: Mapping[str, Any] | None = None,
                 metrics: Mapping[str, Any] | None = None, if_exists: IfExists = "error") -> int:
        """Saves the step, as `Store.save` does, and waits until it is durable; returns its number.
        The parts are read into memory, and removed when the step is durable. After an error the
        draft is as it was."""
        self._check()
        for name, value in (("metadata", metadata), ("metrics", metrics)):
            json_text(value, name)
        if not self._leaves:
            raise InvalidArgumentError(f"the draft of step {self.step} is empty: add a part")
        self._parts.wait()
        merged: dict[str, Any] = {}
        for number in self._parts.steps():
            view: StepView = self._parts[number]
            for item in view.items:
                part = view[(item,)] if view.items != ["state"] else view[""]
                merged[item] = _merge(merged[item], part) if item in merged else part
        store: Any = self._store
        mark = os.path.join(self._path, _FINALIZING)
        newest = max((summary.commit for summary in store._backend.steps()), default=0)
        durable.write(mark, json.dumps({"after": newest}).encode())
        try:
            step: int = store.save(self.step, items=merged, metadata=metadata, metrics=metrics,
                                   if_exists=if_exists).result()
        except OutcomeUnknownError:
            raise  # the next open of the store knows it
        except BaseException:
            with contextlib.suppress(Error):
                durable.remove(mark)
            raise
        self.discard()
        return step

    def discard(self) -> None:
        """Removes the draft with its parts. Idempotent."""
        if self._finished:
            return
        self.close()
        with contextlib.suppress(CheckpointNotFoundError):
            durable.remove(self._path)

    def close(self) -> None:
        """Waits for the parts, and leaves the draft: `Store.draft` goes on with it. Idempotent."""
        self._finished = True
        self._parts.close()

    def _check(self) -> None:
        if self._finished:
            raise Error(f"the draft of step {self.step} is finished")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._finished:
            return
        if error is None:
            self.finalize()
        else:
            self.close()


def _merge(one: Any, other: Any) -> Any:
    """Merges the dicts of several parts; views of stored nodes, whose leaves differ."""
    merged = dict(one) if isinstance(one, dict) else _children(one)
    for key, child in _children(other).items():
        merged[key] = _merge(merged[key], child) if key in merged else child
    return merged


def _children(node: NodeView) -> dict[Any, Any]:
    """A path of one key is in a tuple where it needs one."""
    return {name[0] if isinstance(name, tuple) else name: node[name] for name in node}


def draft(self: OpenStore, step: SupportsIndex) -> Draft:
    """Begins a step that several calls fill, for states that are not in memory at once, or goes on
    with one that an earlier process left:

        with store.draft(7) as draft:
            draft.add({"encoder": encoder})
            draft.add({"decoder": decoder})

    Of several processes: InvalidArgumentError.
    """
    self._check()
    number = step_number(step)
    self._check_writable()
    if self._backend.collective:
        raise InvalidArgumentError("a draft is of one process; save the shards of all of them "
                                   "with one `save`")
    path = os.path.join(self.path, DRAFTS, str(number))
    for each in (os.path.dirname(path), path):
        check_no_link(each)
    durable.make_directories(os.path.dirname(path), 0o700)
    return Draft(self, number, path)


def settle(self: OpenStore) -> None:
    """Settles drafts that processes which died in `finalize` left: a draft whose step was committed
    goes. Called at each open for writing."""
    folder = os.path.join(self.path, DRAFTS)
    if os.path.islink(folder) or not os.path.isdir(folder):
        return
    commits = {summary.step: summary.commit for summary in self._backend.steps()}
    for name in os.listdir(folder):
        mark = os.path.join(folder, name, _FINALIZING)
        if not name.isdigit() or not os.path.isfile(mark):
            continue
        with contextlib.suppress(Error):
            after = read_json_object(mark).get("after")
            committed = isinstance(after, int) and commits.get(int(name), 0) > after
            durable.remove(os.path.dirname(mark) if committed else mark)
