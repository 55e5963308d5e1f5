# SPDX-License-Identifier: Apache-2.0
"""ocp.partial: a checkpoint saved in parts, each with other leaves, and then finalized.

The parts are the steps of a store in `<path>.partial_save`; `finalize` makes one checkpoint of
them, at one instant.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ... import _store
from ..._pytree.tree import walk_items
from ..._runtime import durable
from ..._runtime.files import local_path
from ..._stepwell import RowTag
from .. import _resolve
from .._orbax_common import orbax_errors
from .._orbax_stored import StoredItem
from .._stores import opened_to_change
from .._work import Peers, Work
from . import trees
from .base import PartialSaveReplacementError, get_context, inherited, public, v1
from .items import to_items
from .places import STATE

SUFFIX = ".partial_save"
_STORE = "store"

__all__ = ["finalize", "save", "save_async"]
__all__ += [name for name in public(v1.partial) if name not in __all__]


def __getattr__(name: str) -> Any:
    return inherited(v1.partial, __name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)


def save(path: Any, state: Any, *, custom_metadata: Any = None) -> None:
    """Saves some leaves of the checkpoint `path`, which is there once `finalize` has returned."""
    save_async(path, state, custom_metadata=custom_metadata).result()


def save_async(path: Any, state: Any, *, custom_metadata: Any = None) -> Work[None]:
    """Does `save` in the background. FileExistsError if the checkpoint is finalized already;
    PartialSaveReplacementError, of Orbax, for a leaf that an earlier call saved, or that lies where
    one saved a tree, or the other way round."""
    context = get_context()
    final = local_path(path).removesuffix(SUFFIX)
    if os.path.exists(final):
        raise FileExistsError(f"Finalized checkpoint already exists at {final}.")
    items = to_items({STATE: state}, context)
    with contextlib.ExitStack() as closing, orbax_errors():
        store = closing.enter_context(opened_to_change(os.path.join(final + SUFFIX, _STORE)))
        _check_new(store, items.trees)
        handle = store._put((store.latest if store.latest is not None else -1) + 1, items.trees,
                            metadata=custom_metadata or None, chunks=items.chunks or None)
        end = closing.pop_all()

    def work() -> None:
        with end:
            handle.result()

    return Work(work, timeout=context.asynchronous.timeout_secs)


def _leaves(item: StoredItem) -> set[tuple[str, ...]]:
    return {tuple(str(name) for _, name in item.tree.components(leaf, item.number))
            for leaf in item.tree.leaves(item.number)}


def _check_new(store: _store.Store, items: dict[str, Any]) -> None:
    before: set[tuple[str, ...]] = set()
    for step in store.steps():
        before |= _leaves(StoredItem(store._source(step), STATE))
    above = {names[:length] for names in before for length in range(len(names))}
    ((_, flat),) = walk_items(items, spread=True)
    for row in flat.rows:
        names = tuple(str(name) for _, name in row.path)
        if names in before or row.tag != RowTag.NODE and names in above:
            raise PartialSaveReplacementError(
                f'Key "{names}" was found in a previous partial save. Partial saving currently '
                "does not support REPLACEMENT.")


def finalize(path: Any) -> None:
    """Makes the checkpoint `path` of what was saved. FileNotFoundError if nothing was."""
    context = get_context()
    final = local_path(path).removesuffix(SUFFIX)
    if os.path.exists(final):
        raise FileExistsError(f"Finalized checkpoint already exists at {final}.")
    folder = final + SUFFIX
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"Partial save path {folder} does not exist.")
    with _store.open(os.path.join(folder, _STORE)) as store:
        parts = [trees.load_plain(store._source(step), STATE) for step in store.steps()]
        metadata: dict[str, Any] = {}
        for step in store.steps():
            metadata.update(store[step].metadata or {})
    items = to_items({STATE: v1.tree.merge(*parts)}, context)
    _resolve.save(final, items.trees, overwrite=False, metadata=metadata or None,
                  form=items.form(context)).result()
    Peers(f"removing {folder!r}").lead(lambda: durable.remove(folder))
