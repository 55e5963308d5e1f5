# SPDX-License-Identifier: Apache-2.0
"""Steps out of a pushed run: README.md, "A pushed run", has why no other step breaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

from .. import _stepwell
from .._runtime.arguments import step_number
from ..errors import CheckpointNotFoundError, CorruptionError, FormatError, StepNotFoundError
from . import run
from .object_store import open_object_store
from .run import RunStore
from .transfer import Transfers, with_context


@dataclass(frozen=True)
class DeletePushedReport:
    """Describes a `delete_pushed`.

    url: the run. step: the step that was deleted; None: only what no step needs.
    objects, size_bytes: the objects with data that went.
    """

    url: str
    step: int | None
    objects: int
    size_bytes: int


def delete_pushed(place: Any, step: SupportsIndex | None, *, prefix: str = "",
                  storage_options: Mapping[str, Any] | None = None, sweep: bool = False
                  ) -> DeletePushedReport:
    """Deletes a step from a pushed run, and the data that no other step there needs. Pushes to the
    run and pulls of other steps may go on meanwhile. Reads the beginning of each step's list.

    place, prefix, storage_options: the run, as in `Store.push`.
    step: None deletes none, and only the data that no step needs.
    sweep: also ends pushes that were cut off and never called again, whose data stays otherwise.
        No push to the run may be under way: it would fail.

    Raises CheckpointNotFoundError if `place` is not a run, StepNotFoundError, PermissionDeniedError
    and StorageError with the object and what the library said. Raises CorruptionError if the list
    of another step is damaged: this step is deleted then, but no data. Delete the damaged one, too.
    """
    number = None if step is None else step_number(step)
    with with_context("deleting"):
        bucket = run.writable(open_object_store(place, prefix, storage_options))
    with with_context(f"deleting of {bucket.url}"):
        if not run.is_run(bucket):
            raise CheckpointNotFoundError(f"{bucket.url} is not a pushed run: it has no {run.MARK}")
        if number is not None:
            there = run.listing(bucket).steps
            if number not in there:
                raise no_step(bucket.url, number, there)
        if sweep:
            for name in run.listing(bucket).markers:
                bucket.delete(run.marker_key(name))
        objects, size = delete_steps(bucket, [] if number is None else [number])
    return DeletePushedReport(bucket.url, number, objects, size)


def no_step(url: str, step: int, there: list[int]) -> StepNotFoundError:
    near = sorted(sorted(there, key=lambda each: abs(each - step))[:2])
    shown = f"; the nearest: {', '.join(map(str, near))}" if near else "; it has no steps"
    return StepNotFoundError(f"{url} has no step {step}{shown}")


def delete_steps(bucket: RunStore, steps: Iterable[int]) -> tuple[int, int]:
    """Deletes the lists of steps, those that are there, and then the data that nothing names: how
    many objects of it, and bytes. Errors as `delete_pushed`."""
    Transfers(0, None).run(lambda key: bucket.delete(key), map(run.step_key, steps))
    return remove_unnamed(bucket)


def remove_unnamed(bucket: RunStore) -> tuple[int, int]:
    """Removes the data that no list and no marker names; how many objects, and bytes.

    The order matters: first the data is listed, then the markers, then the lists. What is listed
    was named by a marker before it was there, and a marker goes only when the list is there.
    """
    data = run.listing(bucket).data
    named: set[str] = set()

    def take(key: str) -> None:
        named.update(_named_by(bucket, key))

    Transfers(0, None).run(take, map(run.marker_key, run.listing(bucket).markers))
    Transfers(0, None).run(take, map(run.step_key, run.listing(bucket).steps))
    unnamed = {name: size for name, size in data.items() if name not in named}
    Transfers(0, None).run(lambda name: bucket.delete(run.data_key(name)), unnamed)
    return len(unnamed), sum(unnamed.values())


def _named_by(bucket: RunStore, key: str) -> set[str]:
    try:
        head: _stepwell.PushedHead | None = run.read_head(bucket, key)
    except (CorruptionError, FormatError) as error:
        raise type(error)(f"{error}; it does not say what data its step needs, so no data was "
                          "deleted") from None
    return set() if head is None else {each.name for each in head.objects}
