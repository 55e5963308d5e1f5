# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other libraries as stores of their own, for as long as they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .._lifetime import OpenStore
from .._runtime import durable
from .checkpoint_import import import_checkpoint

S = TypeVar("S", bound=OpenStore)


@contextlib.contextmanager
def imported(open_alone: Callable[[str], S], path: str | os.PathLike[str], step: int = 0,
             items: Iterable[str] | None = None) -> Iterator[S]:
    """A store in the system's temporary folder that has the checkpoint `path` as `step`; it goes
    with the block, or is removed later where the process is killed. `open_alone`: opens it by this
    process alone, whatever others there are. Raises what `Store.import_checkpoint` raises."""
    with (durable.scratch("stepwell-import-") as folder,
          open_alone(os.path.join(folder, "store")) as store):
        import_checkpoint(store, path, step, items=items).result()
        yield store
