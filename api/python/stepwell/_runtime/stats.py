# SPDX-License-Identifier: Apache-2.0
"""The results of `Store.stats`, `verify` and `reclaim`. Names ending in `_bytes` are bytes, in `_s`
seconds."""

from __future__ import annotations

from typing import (Any, NamedTuple, TypedDict, TypeVar, cast, get_args, get_type_hints,
                    is_typeddict)

from .. import _stepwell

T = TypeVar("T", bound=tuple[Any, ...])
D = TypeVar("D")


def named(kind: type[T], report: object) -> T:
    """A report of the engine as the named tuple that users get."""
    return kind(*[getattr(report, field) for field in kind._fields])  # type: ignore[attr-defined]


def dict_of(kind: type[D], report: object, **more: object) -> D:
    """A report of the engine as the dict that users get. `more`: what the report itself lacks."""
    return cast(D, {name: more[name] if name in more else _converted(hint, getattr(report, name))
                    for name, hint in get_type_hints(kind).items()})


def _converted(hint: Any, value: Any) -> Any:
    if is_typeddict(hint):
        return dict_of(hint, value)
    of = next(iter(get_args(hint)), None)
    return [dict_of(of, each) for each in value] if of and is_typeddict(of) else value


class StepSummary(NamedTuple):
    """A committed step, as processes tell each other of it."""

    step: int
    commit: int
    pinned: bool
    taint: str  # why it is not to be resumed from; "": it may be

    @classmethod
    def all_of(cls, core: _stepwell.Core) -> list[StepSummary]:
        return [named(cls, step) for step in core.steps()]


class LatencyStats(TypedDict):
    """Durations of one kind of operation since the store was opened, in seconds. Percentiles are
    the upper ends of a histogram's steps, at most 12 % too high."""

    count: int
    total_s: float
    p50_s: float
    p99_s: float
    max_s: float


class StageLatencies(TypedDict):
    """The stages of a committed save.

    snapshot: what `save` kept its caller waiting.
    encode: the workers' compressing and checksumming, summed over the threads.
    write: from the first write's start to the last one's end.
    commit: the commit frame's write and flush.
    index: bringing the index up to date, after the step is durable (item deletions, too).
    durable: from the call of `save` to durable and visible; the stages overlap.
    """

    snapshot: LatencyStats
    encode: LatencyStats
    write: LatencyStats
    commit: LatencyStats
    index: LatencyStats
    durable: LatencyStats


class SpaceStats(TypedDict):
    """Accounts for the bytes of the store's directory, as the file system allocates them. The first
    group adds up to `total_bytes`; the second tells parts of it again.

    live_bytes: payloads of live steps.
    padding_bytes: what payloads do not fill of their blocks of 4 KiB.
    overhead_bytes: frames, their copies, and catalogs that live steps and recovery need.
    dead_bytes: of deleted steps and old catalogs: not needed, or only by readers and recovery for a
        while.
    reserved_bytes: allocated ahead: the rest of the segment that is being written, spare segments,
        and the ballast, with which a full disk does not stop a delete or an open.
    index_bytes: the index. other_bytes: the small files.

    pinned_by_readers_bytes: payloads of dead steps that a reader still holds.
    linked_bytes: of segments with another hard link.
    """

    total_bytes: int
    live_bytes: int
    padding_bytes: int
    overhead_bytes: int
    dead_bytes: int
    reserved_bytes: int
    index_bytes: int
    other_bytes: int
    pinned_by_readers_bytes: int
    linked_bytes: int


class RecoveryStats(TypedDict):
    """Reports what opening the store found: whether it was closed properly, commits recovered and
    discarded, whether the index was built anew, and damage in words."""

    clean: bool
    commits_recovered: int
    commits_rejected: int
    index_rebuilt: bool
    problems: list[str]


class LoadStats(TypedDict):
    """Counts the work of the last load: bytes and reads from the disk, stored bytes of the chunks
    that were needed, bytes given out, chunks."""

    bytes_read: int
    bytes_needed: int
    bytes_out: int
    reads: int
    chunks: int


class ViewStats(TypedDict):
    """Numbers about a view of the store: its directory (path), steps shown in it, of these held
    ones (deleted, but a reader pins them), not_shown ones (Orbax cannot hold them); since it was
    opened: checkpoints made and removed, errors, which are tried again, and the last_error or the
    reason why a step is not shown. following: it is neither closed nor was its directory taken
    away."""

    path: str
    shown: int
    held: int
    not_shown: int
    made: int
    removed: int
    errors: int
    last_error: str
    following: bool


class VerificationStats(TypedDict):
    """What `Store.verify_in_background` has done since it was called first: steps that were
    verified, bytes that were read for it, and which steps are damaged, ascending. running: whether
    it goes on."""

    running: bool
    steps: int
    bytes: int
    damaged: list[int]


class StoreStats(TypedDict):
    """Numbers about a store.

    Now: steps, pinned_steps, segments (the log's files) and their allocated segment_bytes, space,
    memory of saves in flight (staging_bytes, and its bound staging_bytes_max), saves_in_flight, and
    in words: disk, index, and old_pins, readers that keep space; and of each of its views.

    Since it was opened: saves committed and saves_failed, bytes_saved (of the states),
    bytes_written (to segments), syncs, what reclaim did (bytes_moved, bytes_punched,
    segments_removed, segments_recycled), latency by stage.

    recovery: what opening found. last_load: what the last load of this object read. verification:
    what `verify_in_background` has done.
    """

    steps: int
    pinned_steps: int
    segments: int
    segment_bytes: int
    space: SpaceStats
    staging_bytes: int
    staging_bytes_max: int
    saves_in_flight: int
    saves: int
    saves_failed: int
    bytes_saved: int
    bytes_written: int
    syncs: int
    bytes_moved: int
    bytes_punched: int
    segments_removed: int
    segments_recycled: int
    latency: StageLatencies
    disk: str
    index: str
    old_pins: list[str]
    views: list[ViewStats]
    recovery: RecoveryStats
    last_load: LoadStats
    verification: VerificationStats


class VerifyProblem(NamedTuple):
    """One damaged place: the step and the leaf that it concerns (None and "" for more than a single
    one), the file and the offset in bytes. `unchecked`: not damage, but not read either, because a
    disk or the operating system failed; verify again."""

    step: int | None
    path: str
    file: str
    offset: int
    message: str
    unchecked: bool = False


class VerifyReport(NamedTuple):
    """Reports what `Store.verify` read and found; `bytes` counts the bytes that it read."""

    steps: int
    leaves: int
    chunks: int
    bytes: int
    problems: list[VerifyProblem]

    @property
    def ok(self) -> bool:
        return not self.problems


class RepairReport(NamedTuple):
    """Reports what `Store.repair` found and did.

    steps_rewritten: steps of which a damaged record was written anew, from its second copy or
        the index.
    losses: records that are gone for good, in words. losses_accepted: whether they are no error
        any more.
    """

    steps_rewritten: list[int]
    losses: list[str]
    losses_accepted: bool


class ReclaimReport(NamedTuple):
    """Reports a `Store.reclaim`.

    bytes_before, bytes_after: allocated by the log's files.
    segments_removed; segments_recycled: files kept for the next segments.
    bytes_punched: given back inside files. bytes_moved: live payloads copied to free the rest.
    bytes_pinned_by_readers, bytes_linked: dead, but a reader may be reading them, or the file has
        another hard link.
    """

    bytes_before: int
    bytes_after: int
    segments_removed: int
    segments_recycled: int
    bytes_punched: int
    bytes_moved: int
    bytes_pinned_by_readers: int
    bytes_linked: int
