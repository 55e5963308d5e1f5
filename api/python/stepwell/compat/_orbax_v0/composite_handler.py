# SPDX-License-Identifier: Apache-2.0
"""CompositeCheckpointHandler: several items in one checkpoint."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from .args import Composite, ours
from .base import AsyncCheckpointHandler, register_with_handler
from .item_saving import item_metadata, restore_items, save_files
from .libraries import as_path
from .options import (AsyncOptions, AtomicityOptions, FileOptions, MultiprocessingOptions)
from .registry import ItemHandlers
from .step_items import StepItems


@dataclasses.dataclass
class CompositeOptions:
    """Options of a CompositeCheckpointHandler; a checkpointer or manager has those that act."""

    multiprocessing_options: MultiprocessingOptions = dataclasses.field(
        default_factory=MultiprocessingOptions)
    temporary_path_class: Any = None
    file_options: FileOptions | None = None
    atomicity_options: AtomicityOptions | None = None
    async_options: AsyncOptions | None = None


class CompositeCheckpointHandler(AsyncCheckpointHandler):
    """Saves and restores several items, each with a handler of its own.

    item_names, items_and_handlers, handler_registry: the handlers; without, the arguments of the
    first save or restore of each item say which it is.
    """

    def __init__(self, *item_names: str, composite_options: CompositeOptions | None = None,
                 handler_registry: Any = None, **items_and_handlers: Any) -> None:
        if handler_registry is not None and (items_and_handlers or item_names):
            raise ValueError("`handler_registry` excludes `item_names` and `items_and_handlers`")
        self.items = ItemHandlers(item_names, handler_registry, items_and_handlers)

    def restored(self, step: StepItems, args: Any) -> Composite:
        """The items of a step that `args` ask for; all of them if they ask for none."""
        named = dict(args.items()) if args is not None else {}
        if not named:
            named = {name: self.items.default_restore_args(name, step.handler(name))
                     for name in step.names}
        return Composite(**restore_items(step, self.items, named))

    def metadata_of(self, step: StepItems) -> Composite:
        return Composite(**{name: item_metadata(
            step, name, self.items.known_or_default(name, step.handler(name)))
            for name in step.names})

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Saves each item into a directory of its own below `directory`."""
        given = ours(kwargs["args"] if "args" in kwargs else args[0])
        for name, each in given.items():
            path = os.path.join(directory, name)
            os.mkdir(path)
            save_files(self.items.get(name, each), path, each)

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        self.save(directory, *args, **kwargs)
        return []

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Composite:
        """Restores items that `save` wrote into directories below `directory`."""
        given = ours(kwargs["args"] if "args" in kwargs else args[0])
        return Composite(**{name: self.items.get(name, each).restore(
            as_path(directory) / name, args=each) for name, each in given.items()})

    def close(self) -> None:
        for handler in self.items.known().values():
            if handler is not None:
                handler.close()


register_with_handler(CompositeCheckpointHandler, for_save=True, for_restore=True)(Composite)
