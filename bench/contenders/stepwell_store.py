# SPDX-License-Identifier: Apache-2.0
"""Stepwell, with its defaults."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import states
import stepwell
from contenders.base import Contender


class Stepwell(Contender):
    key = "stepwell"
    name = "Stepwell"
    package = "stepwell"
    import_line = "import stepwell"
    durable = True
    meshes = True
    opens_once = True

    def __init__(self, directory: pathlib.Path, keep: int = 1, **options: Any) -> None:
        super().__init__(directory, keep)
        self._options = options
        self._writer: stepwell.Store | None = None

    def writer(self) -> stepwell.Store:
        """Opened by the first save, so that a process that only restores has none."""
        if self._writer is None:
            self._writer = stepwell.open(
                self.directory / "store", keep=stepwell.policy.LatestN(self.keep), **self._options)
        return self._writer

    def reader(self) -> stepwell.Store:
        return stepwell.open(self.directory / "store", mode="r")

    def begin(self, state: Any) -> Any:
        return self.writer().save(self.step, state)

    def finish(self, pending: Any) -> None:
        pending.result()

    def restore(self, like: Any) -> Any:
        # Through a new reader, as after a restart; opening counts.
        with self.reader() as store:
            # Without `like` arrays come as NumPy's, which is what is wanted then.
            return store.load(like=like) if states.is_jax(like) else store.load()

    def load_part(self, name: str, like: Any) -> Any:
        with self.reader() as store:
            if states.is_jax(like):
                return store.load(path=name, like=like)
            return store.load(path=name)

    @contextlib.contextmanager
    def open_leaf(self, like: dict[str, Any]) -> Iterator[Callable[[str], Any]]:
        with self.reader() as store:
            yield lambda name: store.load(self.step, name)

    def tidy(self) -> None:
        pass  # LatestN does it

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
