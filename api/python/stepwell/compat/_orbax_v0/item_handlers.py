# SPDX-License-Identifier: Apache-2.0
"""The handler of each item, as Orbax's CompositeCheckpointHandler chooses it.

An item keeps the handler that the first save or restore gave it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from orbax.checkpoint import CompositeCheckpointHandler
from orbax.checkpoint.args import get_registered_args_cls
# Which handler has which name in a checkpoint is registered where no public name leads.
from orbax.checkpoint._src.handlers.handler_type_registry import get_handler_type


class ItemHandlers:
    """Asks a composite handler. It has no public methods for this."""

    def __init__(self, composite: CompositeCheckpointHandler) -> None:
        self._composite = composite

    def get(self, name: str, args: Any) -> Any:
        """The handler of an item for these arguments; for None the one that it has. ValueError."""
        return self._composite._get_or_set_handler(name, args)

    def known(self) -> dict[str, Any]:
        """Items with their handlers; None for items that have a name only."""
        return dict(self._composite._get_all_registered_and_unregistered_items_and_handlers())

    def args_of(self, name: str) -> tuple[Any, Any]:
        """The classes of arguments of an item, for `items=` of the legacy interface."""
        handler = self.known().get(name)
        if handler is None:
            raise ValueError(f'Unknown key "{name}" in CompositeCheckpointHandler.')
        save, restore = get_registered_args_cls(handler)
        return save, restore

    def known_or_default(self, name: str, typestr: str | None) -> Any:
        """The handler of an item, or one of the class that saved it; None if neither is known."""
        handler = self.known().get(name)
        if handler is None and typestr is not None:
            with contextlib.suppress(KeyError, TypeError):
                handler = get_handler_type(typestr)()
        return handler

    def default_restore_args(self, name: str, typestr: str | None) -> Any:
        """Arguments that restore an item of which nothing was said."""
        handler = self.known().get(name)
        if handler is None and name in self.known():
            raise ValueError(f'Item with name: "{name}" had an undetermined `CheckpointHandler` '
                             "when restoring. Pass arguments that say which it is")
        try:
            cls = get_registered_args_cls(handler or get_handler_type(typestr or ""))[1]
        except KeyError:
            raise ValueError(
                f'Item "{name}" was found in the checkpoint, but could not be restored. Please '
                "provide a `CheckpointHandlerRegistry`, or call `restore` with an appropriate "
                "`CheckpointArgs` subclass.") from None
        try:
            return cls()
        except TypeError as error:
            raise ValueError(f'Item "{name}": {cls.__name__} cannot be made without arguments; '
                             "pass it to restore") from error
