# SPDX-License-Identifier: Apache-2.0
"""training.Checkpointer: a sequence of checkpoints in a training loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from ...errors import Error
from .. import _resolve
from .._orbax_common import read_root_metadata
from .._resolve import Opened
from .._work import Work, start
from .base import get_context, v1
from .free import check_deletion, check_item, described, in_background, renamed, unwrapped
from .items import load_items, metadata_of
from .places import AUTO, STATE, names_of, tree_name
from .saving import Saving, StepNotFoundError, number_of
from .trees import check_target

T = TypeVar("T")
training = v1.training


class Checkpointer(Saving):
    """Saves steps below `directory`, when a policy says so, and keeps those that another one wants.

    Steps that Orbax saved there are listed and loaded, too. New steps go to a store within, and
    `<directory>/<step>` shows each as a checkpoint of Orbax. Which steps there are, the store says.

    save_decision_policy: None saves whenever no save is under way.
    preservation_policy: None keeps every step.
    step_name_format: see ocp.path.step.
    custom_metadata: of the whole sequence; that of the first Checkpointer of a directory stays.
    cleanup_tmp_directories: removes what an interrupted save of Orbax left behind.
    lightweight_initialize: does not read times and metrics of the steps that are there.
    logger: its `log_entry` gets a dict about each save and load.
    """

    # ---- loading ----

    def _read(self, step: int, read: Callable[[Opened], T]) -> T:
        self._wait_for(step)
        return _resolve.read_step(self._root, step, read)

    def load(self, step: Any = None, abstract_state: Any = None, *,
             checkpointable_name: str = STATE) -> Any:
        """Loads a tree of a step (None: the latest); see `ocp.load`."""
        abstract_state = unwrapped(abstract_state)
        check_target(abstract_state)
        return self.load_checkpointables(
            step, {checkpointable_name: abstract_state})[checkpointable_name]

    def load_checkpointables(self, step: Any = None, abstract_checkpointables: Any = None
                             ) -> dict[str, Any]:
        """Loads checkpointables of a step by name: those that are asked for, or all."""
        started = time.time()
        number = self._existing(step).step
        wanted, context = unwrapped(abstract_checkpointables), get_context(self._context)
        loaded = self._read(number, lambda place: load_items(place, wanted, context))
        self._log("load", number, started)
        return loaded

    def load_async(self, step: Any = None, abstract_state: Any = None, *,
                   checkpointable_name: str = STATE) -> Work[Any]:
        """Does `load` in the background. Orbax does not have it."""
        return in_background(lambda: self.load(step, abstract_state,
                                               checkpointable_name=checkpointable_name))

    def load_checkpointables_async(self, step: Any = None, abstract_checkpointables: Any = None
                                   ) -> Work[dict[str, Any]]:
        """Does `load_checkpointables` in the background. Orbax does not have it."""
        return in_background(lambda: self.load_checkpointables(step, abstract_checkpointables))

    # ---- metadata ----

    def metadata(self, step: Any = None) -> Any:
        """Describes the tree of a step, as a training.CheckpointMetadata."""
        return self._described(step, whole=False)

    def checkpointables_metadata(self, step: Any = None) -> Any:
        """Describes each checkpointable of a step, by name."""
        return self._described(step, whole=True)

    def _described(self, step: Any, whole: bool) -> Any:
        found = self._existing(step)
        context = get_context(self._context)

        def read(place: Opened) -> Any:
            names = names_of(place) if whole else [tree_name(place, AUTO)]
            each = {name: metadata_of(place, name, context) for name in names}
            return training.CheckpointMetadata(
                found.step, metrics=found.metrics,
                **described(place, each if whole else each[names[0]], context))

        return self._read(found.step, read)

    def root_metadata(self) -> Any:
        """The training.RootMetadata of the whole sequence."""
        return training.RootMetadata(directory=self.directory,
                                     custom_metadata=read_root_metadata(self._path) or {})

    def reload(self) -> None:
        """Waits for a deletion; the lists are always those of the directory."""
        self._wait_for_deletion()

    # ---- deleting ----

    def delete(self, step: Any, *, checkpointable_name: str | None = None,
               missing_ok: bool = False) -> bool:
        """Deletes a step, or one checkpointable of it, whatever the policy says; see
        `ocp.delete`."""
        response = self.delete_async(step, checkpointable_name=checkpointable_name,
                                     missing_ok=missing_ok)
        self._wait_for_deletion()
        self._root.wait_for_view()
        return response.result()

    def delete_async(self, step: Any, *, checkpointable_name: str | None = None,
                     missing_ok: bool = False) -> Work[bool]:
        """Does `delete` in the background."""
        number, name = number_of(step), checkpointable_name
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError("step must be an explicit Python int.")
        if number < 0:
            raise ValueError("step must be nonnegative.")
        check_deletion(name, missing_ok, get_context(self._context))
        self.wait()
        if number not in self._root.steps():
            if missing_ok:
                return Work(lambda: False)
            raise StepNotFoundError(f"No checkpoint found at step {number}.")
        if name is not None:
            if not self._read(number, lambda place: check_item(place, name, missing_ok)):
                return Work(lambda: False)

        def work() -> bool:
            if name is None:
                self._root.delete(number)
            elif self._root.holds(number):
                self._root.delete_item(number, name)
            else:
                _resolve.delete_item(self._root.foreign()[number], name)
            return True

        if name is None:
            self._found.discard(number)
        self._pending_delete = response = start(work)
        return response

    # ---- life ----

    def close(self) -> None:
        """Waits as `wait`, and gives the directory back."""
        try:
            self.wait()
        finally:
            try:
                self._root.close()
            except Error:
                if sys.exc_info()[1] is None:
                    raise

    def __contextmanager__(self) -> Any:
        yield self  # Orbax's class wants it; __enter__ and __exit__ do without

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    save_pytree = renamed("save_pytree", Saving.save)
    save_pytree_async = renamed("save_pytree_async", Saving.save_async)
    load_pytree = renamed("load_pytree", load)
    load_pytree_async = renamed("load_pytree_async", load_async)
    pytree_metadata = renamed("pytree_metadata", metadata)
