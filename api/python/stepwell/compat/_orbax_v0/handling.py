# SPDX-License-Identifier: Apache-2.0
"""Decides how a manager saves items: as one of the interfaces of Orbax's CheckpointManager does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orbax.checkpoint as orbax

from .._stores import METRICS
from .step_items import DEFAULT_ITEM


def composite_handler(options: orbax.CheckpointManagerOptions, checkpointers: Any,
                      item_names: Sequence[str] | None, item_handlers: Any, registry: Any
                      ) -> tuple[bool | None, bool, orbax.CompositeCheckpointHandler]:
    """Returns whether steps are one item without a name (None: the first call will tell), whether
    saves go on in the background, and the handler of all items. ValueError for options that exclude
    each other."""
    given = {"checkpointers": checkpointers, "item_names": item_names,
             "item_handlers": item_handlers, "handler_registry": registry}
    for one, other in (("checkpointers", "item_names"), ("checkpointers", "item_handlers"),
                       ("checkpointers", "handler_registry"),
                       ("item_handlers", "handler_registry"), ("item_names", "handler_registry")):
        if given[one] and given[other]:
            raise ValueError(f"`{one}` and `{other}` are mutually exclusive")
    metrics = orbax.JsonCheckpointHandler(filename=METRICS)
    is_async = options.enable_async_checkpointing
    if checkpointers is not None:
        default, is_async, handlers = _of_checkpointers(options, checkpointers)
    elif isinstance(item_handlers, orbax.CheckpointHandler):
        if item_names:
            raise ValueError("`item_handlers` is one handler, of an item without a name; "
                             "`item_names` and it are mutually exclusive")
        default, handlers = True, {DEFAULT_ITEM: item_handlers}
    elif item_names is not None or item_handlers is not None:
        default = False
        handlers = {**dict.fromkeys(item_names or ()), **(item_handlers or {})}
    else:
        filled = orbax.DefaultCheckpointHandlerRegistry(registry)
        for args in (orbax.args.JsonSave, orbax.args.JsonRestore):
            if not filled.has(METRICS, args):
                filled.add(METRICS, args, metrics)
        return None, is_async, orbax.CompositeCheckpointHandler(handler_registry=filled)
    return default, is_async, orbax.CompositeCheckpointHandler(
        *handlers, **{**handlers, METRICS: metrics})


def _of_checkpointers(options: orbax.CheckpointManagerOptions, checkpointers: Any
                      ) -> tuple[bool, bool, dict[str, Any]]:
    if options.multiprocessing_options.primary_host != 0:
        raise ValueError("`primary_host` other than 0 is not supported in legacy API.")
    named = checkpointers if isinstance(checkpointers, Mapping) else {DEFAULT_ITEM: checkpointers}
    for name, each in named.items():
        if not isinstance(each, orbax.Checkpointer):
            raise ValueError(f"Value corresponding to {name} in `checkpointers` is not a "
                             f"Checkpointer. Found {type(each)}.")
    in_background = [each for each in named.values() if isinstance(each, orbax.AsyncCheckpointer)]
    if options.async_options is None:
        options.async_options = orbax.AsyncOptions()
        timeouts = [each._save_options.timeout_secs for each in in_background
                    if hasattr(each, "_save_options")]  # not Orbax's own
        options.async_options.timeout_secs = max(
            timeouts, default=options.async_options.timeout_secs)
    return (not isinstance(checkpointers, Mapping), bool(in_background),
            {name: each.handler for name, each in named.items()})
