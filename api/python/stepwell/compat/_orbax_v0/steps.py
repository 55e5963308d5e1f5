# SPDX-License-Identifier: Apache-2.0
"""The steps of a manager: its root's, and what this manager knows of them beside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import orbax.checkpoint as orbax
from orbax.checkpoint.checkpoint_manager import CheckpointInfo

from ..._runtime import durable
from ..._runtime.files import local_path
from ...errors import Error, StepNotFoundError
from .._resolve import read_step
from .._root import Root, naming
from .._stores import Info
from .._work import Work
from .step_items import StepItems

T = TypeVar("T")


class Steps:
    """The steps below a directory, in the names that the options ask for."""

    def __init__(self, path: str, options: orbax.CheckpointManagerOptions) -> None:
        self.path = local_path(path)
        self._options = options
        self._format = options.step_name_format or orbax.path.step.standard_name_format(
            step_prefix=options.step_prefix,
            step_format_fixed_length=options.step_format_fixed_length)
        self._read_only = options.read_only
        self._lightweight = options.lightweight_initialize
        # Metrics of steps that this manager saved: those that the store was not given, or whose
        # copy there is not looked up.
        self._metrics: dict[int, Any] = {}
        self._scalars: dict[int, Any] = {}  # of Orbax's steps: metrics that are no dict
        self._root: Root | None = None
        self._open()

    def _open(self) -> Root:
        if self._root is None:
            self._root = Root(self.path, name_format=self._format, read_only=self._read_only,
                              create=self._options.create, layout="v0", zarr=2,
                              cleanup=self._options.cleanup_tmp_directories)
        return self._root

    # ---- which there are ----

    def listed(self) -> list[int]:
        """All steps, ascending, with those that are being saved."""
        return self._open().listed()

    def latest(self) -> int | None:
        """The highest of them that is not tainted."""
        return self._open().latest()

    def tainted(self) -> set[int]:
        """The steps that are not to be resumed from, which a save replaces."""
        return self._open().tainted()

    def infos(self) -> list[CheckpointInfo]:
        """Returns the facts about each step."""
        root = self._open()
        infos = root.infos(lightweight=self._lightweight)
        foreign = root.foreign() if self._options.best_fn and not self._lightweight else {}
        return [CheckpointInfo(info.step, info.time, self._known(info, info.step in foreign))
                for info in infos]

    def _known(self, info: Info, is_foreign: bool) -> Any:
        step = info.step
        if info.metrics is not None or step in self._metrics:
            return self._metrics.get(step) if info.metrics is None else info.metrics
        if is_foreign and step not in self._scalars:
            self._scalars[step] = self.metrics(step)
        return self._scalars.get(step)

    def reload(self) -> None:
        """Reads everything anew."""
        self._open().foreign(anew=True)
        self._lightweight = False
        self._metrics.clear()
        self._scalars.clear()

    def metrics(self, step: int) -> Any:
        """The metrics of a step; None if it or they do not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self.read(step, lambda found: found.metrics)
        return None

    def read(self, step: int, read: Callable[[StepItems], T]) -> T:
        """Returns the result of `read` for a step; waits if it is being saved.
        FileNotFoundError."""
        root = self._open()
        if step not in root.steps() and step in root.listed():
            with contextlib.suppress(Error):
                root.store.wait()
        return read_step(root, step, lambda found: read(StepItems(found, self.wait_for_view)))

    # ---- changes ----

    def planning(self) -> contextlib.AbstractContextManager[object]:
        """The same as Root's."""
        return self._open().planning()

    def save(self, step: int, items: Mapping[str, Any], *, metadata: Any, metrics: Any,
             known_metrics: Any, replace: bool, old: list[int], then: Callable[[], object],
             timeout: float) -> Work[None]:
        """Saves a step. `old`: what goes with its commit. `known_metrics`: for policies."""
        retire = [] if self._options.todelete_subdir else [each for each in old if each != step]

        def finish() -> None:
            self._finish(old)
            then()

        work = self._open().save(step, items, metadata=metadata, metrics=metrics, replace=replace,
                                 retire=retire, then=finish, timeout=timeout)
        self._metrics.pop(step, None)  # of what it replaces
        if known_metrics is not None and (metrics is None or self._lightweight):
            self._metrics[step] = known_metrics
        return work

    def _finish(self, old: list[int]) -> None:
        """Deletes what could not go with the commit: steps that are kept elsewhere, and the step
        itself."""
        for step in set(old) & set(self._open().steps()):
            with contextlib.suppress(StepNotFoundError):  # another manager deleted it
                self.delete(step)

    def delete(self, step: int) -> None:
        """Deletes a step. With `todelete_subdir` its checkpoint stays there, by hard links, in
        place of one that the step had there before."""
        root = self._open()
        if self._options.todelete_subdir is not None:
            self._keep_elsewhere(root, step, os.path.join(self.path, self._options.todelete_subdir))
        if step in root.steps():
            root.delete(step)
        self._metrics.pop(step, None)
        self._scalars.pop(step, None)

    def _keep_elsewhere(self, root: Root, step: int, folder: str) -> None:
        foreign = root.foreign().get(step)
        name = self._format.build_name(step) if foreign is None else os.path.basename(foreign)
        durable.make_directories(folder)
        target = os.path.join(folder, name)
        if os.path.lexists(target):
            durable.remove(target)
        if foreign is not None:
            durable.move(foreign, target)
            return
        prefix, digits = naming(self._format)
        root.store.export(step, folder, layout="v0", zarr=2, on_unsupported="skip",
                          step_prefix=prefix[:-1] or None, step_digits=digits if digits > 1 else 0)

    # ---- life ----

    @property
    def leads(self) -> bool:
        """True if this process changes the directory for all."""
        return self._open().leads

    def wait_for_view(self) -> None:
        """Waits until the directory shows all steps."""
        if self._root is not None and not self._read_only:
            self._root.wait_for_view()

    def wait_for_all(self, what: str) -> None:
        """Waits until all processes are here. `what`: they do, for messages."""
        self._open().gather(what)

    @contextlib.contextmanager
    def other(self, directory: Any) -> Iterator[Steps]:
        """These, or those of another directory for reading."""
        if directory is None:
            yield self
            return
        opened = Steps(os.fspath(directory), orbax.CheckpointManagerOptions(
            read_only=True, step_name_format=self._format,
            single_host_load_and_broadcast=self._options.single_host_load_and_broadcast))
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
