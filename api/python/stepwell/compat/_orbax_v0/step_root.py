# SPDX-License-Identifier: Apache-2.0
"""The root of a manager: the store and Orbax's own steps, by the names that the options ask for."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from ... import _store
from ..._handle import SaveHandle
from ..._runtime.files import local_path
from ...errors import StepNotFoundError
from .._root import STORE_NAME, Root
from .infos import UTC, CheckpointInfo, foreign_metrics
from .item_saving import Saving, orbax_errors
from .options import CheckpointManagerOptions
from .step import TMP_DIR_SUFFIX, Metadata, standard_name_format, standard_parts
from .step_items import METRICS_ITEM, StepItems


class StepRoot:
    """The steps below a directory.

    The store is opened for writing, unless the options say read_only; create=False opens it only
    once a step is saved if the directory does not exist.
    """

    def __init__(self, path: str, options: CheckpointManagerOptions) -> None:
        self.path = local_path(path)
        self._options = options
        self._format = options.step_name_format or standard_name_format(
            step_prefix=options.step_prefix,
            step_format_fixed_length=options.step_format_fixed_length)
        self._read_only = options.read_only
        self._root: Root | None = None
        if options.create or os.path.isdir(self.path):
            self._open()
        if options.cleanup_tmp_directories:
            self._remove_temporary()

    def _open(self) -> Root:
        if self._root is None:
            prefix, digits = standard_parts(self._format)
            self._root = Root(self.path, read_only=self._read_only, create=self._options.create,
                              layout="v0", zarr=2, step_prefix=prefix, step_digits=digits,
                              find_steps=self._find)
        return self._root

    def _writable(self) -> Root:
        """The root, open for writing. LockedError, with the process that has it."""
        root = self._open()
        if root.store.read_only and not self._read_only:  # another process had it, then
            root.close()
            self._root = None
            root = self._open()
            if root.store.read_only:
                _store.open(os.path.join(self.path, STORE_NAME)).close()
        return root

    def _find(self, directory: str) -> dict[int, str]:
        return {found.step: os.path.basename(os.fspath(found.path))
                for found in self._format.find_all(directory)}

    def _remove_temporary(self) -> None:
        """Removes what unfinished saves of Orbax left."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                if TMP_DIR_SUFFIX in name:
                    shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)

    def steps(self) -> list[int]:
        return self._open().steps() if os.path.isdir(self.path) else []

    def directory_of(self, step: int) -> str:
        """The directory that a step has, or would have."""
        return os.path.join(self.path, self._format.build_name(step))

    def _foreign(self, step: int) -> str | None:
        """The directory of a step that Orbax wrote; None for a step of the store."""
        return self._open().foreign().get(step)

    def infos(self, lightweight: bool) -> list[CheckpointInfo]:
        """All steps, ascending. lightweight: without times and metrics."""
        if not os.path.isdir(self.path):
            return []
        root = self._open()
        foreign = root.foreign()
        infos: list[CheckpointInfo] = []
        for step in root.steps():
            time, metrics = datetime.datetime.min.replace(tzinfo=UTC), None
            if not lightweight:
                if step in foreign:
                    time = Metadata(step, foreign[step]).commit_timestamp
                    metrics = foreign_metrics(foreign[step])
                else:
                    view = root.store[step]
                    time, metrics = view.time, _metrics(StepItems(root.store, step, ""))
            infos.append(CheckpointInfo(step, time, metrics))
        return infos

    def metrics(self, step: int) -> Any:
        """The metrics of a step; None if it or they do not exist."""
        with contextlib.suppress(StepNotFoundError):
            foreign = self._foreign(step)
            if foreign is not None:
                return foreign_metrics(foreign)
            return _metrics(StepItems(self._open().store, step, ""))
        return None

    def items(self, step: int) -> StepItems:
        """What is in a step. StepNotFoundError, a FileNotFoundError."""
        foreign = self._foreign(step)
        store = self._open().opened(step)
        return StepItems(store, step, foreign or self.directory_of(step),
                         imported=foreign is not None)

    def save(self, step: int, saving: Saving, metrics: Any,
             custom_metadata: Mapping[str, Any] | None) -> SaveHandle:
        if METRICS_ITEM in saving.items and isinstance(metrics, Mapping):
            del saving.items[METRICS_ITEM]
        elif metrics is not None and not isinstance(metrics, Mapping):
            from .native_handlers import json_item

            saving.items[METRICS_ITEM] = json_item(metrics)  # a number, a list
            metrics = None
        root = self._writable()
        with orbax_errors():
            return root.store.save(step, items=saving.items, metrics=metrics,
                                   metadata=saving.metadata(custom_metadata))

    def delete(self, step: int) -> None:
        """Deletes a step. With `todelete_subdir` its checkpoint stays there, by hard links, in
        place of one that the step had there before."""
        subdir = self._options.todelete_subdir
        root = self._writable()
        if subdir is None:
            root.delete(step)
            return
        folder = os.path.join(self.path, subdir)
        foreign = self._foreign(step)
        name = self._format.build_name(step) if foreign is None else os.path.basename(foreign)
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        if foreign is not None:
            os.makedirs(folder, exist_ok=True)
            os.rename(foreign, os.path.join(folder, name))
            return
        prefix, digits = standard_parts(self._format)
        root.store.export(step, folder, layout="v0", zarr=2, step_prefix=prefix,
                          step_digits=digits, on_unsupported="skip")
        root.delete(step)

    def wait_for_view(self) -> None:
        """Waits until the directory shows all steps."""
        if self._root is not None and not self._read_only:
            self._root.wait_for_view()

    def wait_for_all(self, what: str) -> None:
        """Waits until all processes are here. `what`: they do, for messages."""
        self._open().store._backend.gather(0, what)

    @contextlib.contextmanager
    def other(self, directory: Any) -> Iterator[StepRoot]:
        """This root, or one of another directory for reading."""
        if directory is None:
            yield self
            return
        options = CheckpointManagerOptions(
            read_only=True, step_prefix=self._options.step_prefix,
            step_format_fixed_length=self._options.step_format_fixed_length,
            step_name_format=self._options.step_name_format)
        opened = StepRoot(os.fspath(directory), options)
        try:
            yield opened
        finally:
            opened.close()

    def close(self) -> None:
        """Closes the store. What is asked then opens it for reading."""
        root, self._root = self._root, None
        self._read_only = True
        if root is not None:
            root.close()


def _metrics(step: StepItems) -> Any:
    found = step.view.metrics
    if found is None and METRICS_ITEM in step:
        return step.json(METRICS_ITEM)
    return found
