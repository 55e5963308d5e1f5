# SPDX-License-Identifier: Apache-2.0
"""The Context: options of the calls in a `with` block."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import logging
from types import TracebackType
from typing import Any

from . import options as options_lib

# What a Context consists of: the name of each, its keyword in Context(...), its class.
_GROUPS: dict[str, tuple[str, type]] = {
    "pytree": ("pytree_options", options_lib.PyTreeOptions),
    "array": ("array_options", options_lib.ArrayOptions),
    "asynchronous": ("async_options", options_lib.AsyncOptions),
    "multiprocessing": ("multiprocessing_options", options_lib.MultiprocessingOptions),
    "file": ("file_options", options_lib.FileOptions),
    "checkpointables": ("checkpointables_options", options_lib.CheckpointablesOptions),
    "pathways": ("pathways_options", options_lib.PathwaysOptions),
    "deletion": ("deletion_options", options_lib.DeletionOptions),
    "memory": ("memory_options", options_lib.MemoryOptions),
    "safetensors": ("safetensors_options", options_lib.SafetensorsOptions),
    "atomicity": ("atomicity_options", options_lib.AtomicityOptions),
}
_KEYWORDS = {keyword: name for name, (keyword, _) in _GROUPS.items()}


class Context:
    """Options of checkpointing. Set them, then enter it: `with ctx: ...`. An active Context cannot
    be changed (RuntimeError). `Context(parent)` copies the options of `parent`. A thread that the
    program starts does not inherit the active Context."""

    pytree: options_lib.PyTreeOptions
    array: options_lib.ArrayOptions
    asynchronous: options_lib.AsyncOptions
    multiprocessing: options_lib.MultiprocessingOptions
    file: options_lib.FileOptions
    checkpointables: options_lib.CheckpointablesOptions
    pathways: options_lib.PathwaysOptions
    deletion: options_lib.DeletionOptions
    memory: options_lib.MemoryOptions
    safetensors: options_lib.SafetensorsOptions
    atomicity: options_lib.AtomicityOptions

    def __init__(self, context: Context | None = None, *,
                 pytree_options: options_lib.PyTreeOptions | None = None,
                 array_options: options_lib.ArrayOptions | None = None,
                 async_options: options_lib.AsyncOptions | None = None,
                 multiprocessing_options: options_lib.MultiprocessingOptions | None = None,
                 file_options: options_lib.FileOptions | None = None,
                 checkpointables_options: options_lib.CheckpointablesOptions | None = None,
                 pathways_options: options_lib.PathwaysOptions | None = None,
                 checkpoint_layout: options_lib.CheckpointLayout | str | None = None,
                 deletion_options: options_lib.DeletionOptions | None = None,
                 memory_options: options_lib.MemoryOptions | None = None,
                 safetensors_options: options_lib.SafetensorsOptions | None = None,
                 atomicity_options: options_lib.AtomicityOptions | None = None) -> None:
        arguments = locals()
        given = {name: arguments[keyword] for name, (keyword, _) in _GROUPS.items()}
        if checkpoint_layout is not None or any(each is not None for each in given.values()):
            logging.getLogger("stepwell").warning(
                "option objects as arguments of Context are deprecated: set its attributes, e.g. "
                "ctx.array.saving.use_zarr3 = False")
        for name, (_, kind) in _GROUPS.items():
            chosen = given[name] if given[name] is not None else getattr(context, name, None)
            object.__setattr__(self, name, kind() if chosen is None else copy.deepcopy(chosen))
        layout = checkpoint_layout if checkpoint_layout is not None else getattr(
            context, "checkpoint_layout", options_lib.CheckpointLayout.ORBAX)
        self._layout = options_lib.CheckpointLayout(layout)
        self._entered: list[tuple[contextvars.Token[Any], contextvars.Token[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name in _KEYWORDS:  # Orbax's older names
            return getattr(self, _KEYWORDS[name])
        raise AttributeError(f"a Context has no option {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _GROUPS:
            raise AttributeError(f"a Context's {name!r} cannot be set; its options can")
        object.__setattr__(self, name, value)

    @property
    def checkpoint_layout(self) -> options_lib.CheckpointLayout:
        return self._layout

    @checkpoint_layout.setter
    def checkpoint_layout(self, value: options_lib.CheckpointLayout | str) -> None:
        if id(self) in options_lib.FROZEN_IDS.get():
            raise RuntimeError("Cannot mutate an active Context. Ensure all configuration options "
                               "are set before entering the `with` context block.")
        self._layout = options_lib.CheckpointLayout(value)

    def __enter__(self) -> Context:
        frozen = options_lib.FROZEN_IDS.set(options_lib.FROZEN_IDS.get() | _ids(self))
        self._entered.append((_CONTEXT.set(self), frozen))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        active, frozen = self._entered.pop()
        _CONTEXT.reset(active)
        options_lib.FROZEN_IDS.reset(frozen)


_CONTEXT: contextvars.ContextVar[Context | None] = contextvars.ContextVar(
    "stepwell_orbax_context", default=None)


def get_context(default: Context | None = None) -> Context:
    """The active Context; without one `default`, or a new one."""
    return _CONTEXT.get() or default or Context()


def _ids(context: Context) -> frozenset[int]:
    ids = {id(context)}

    def walk(value: Any) -> None:
        if dataclasses.is_dataclass(value) and id(value) not in ids:
            ids.add(id(value))
            for field in dataclasses.fields(value):
                walk(getattr(value, field.name))

    for name in _GROUPS:
        walk(getattr(context, name))
    return frozenset(ids)
