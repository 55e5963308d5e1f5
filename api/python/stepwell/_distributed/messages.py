# SPDX-License-Identifier: Apache-2.0
"""Defines the messages between processes of a run: every message, and its one encoding.

A message travels as `VERSION JSON`; an object in the JSON is a message by the name in "$message",
which no object of users' data has: their JSON travels as text. Long messages are compressed.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast, dataclass_transform

from .. import errors
from ..errors import Error, OutcomeUnknownError, PeerError

VERSION = 5

M = TypeVar("M")
_KINDS: dict[str, type] = {}
_NAME = "$message"


@dataclass_transform(frozen_default=True)
def _message(kind: type[M]) -> type[M]:
    made = dataclass(frozen=True)(kind)
    _KINDS[kind.__name__] = made
    return made


@_message
class Failure:
    """An error of one process, for the others."""

    text: str
    kind: str = ""  # the name of its class; "" for what process 0 finds
    processes: Sequence[int] = ()

    @staticmethod
    def of(error: BaseException, processes: Sequence[int] = ()) -> Failure:
        return Failure(str(error) or type(error).__name__, type(error).__name__, processes)

    def error(self) -> Error:
        """To raise here: of the same class where that is one of ours."""
        names = ", ".join([f"process {process}" for process in self.processes])
        text = f"{names}: {self.text}" if names and self.kind else self.text
        kind = getattr(errors, self.kind, PeerError)
        if kind is OutcomeUnknownError:
            return OutcomeUnknownError(text, self.processes)
        if not issubclass(kind, Error) or issubclass(kind, PeerError):
            return PeerError(text, self.processes)
        return cast(Error, kind(text))


@_message
class Value:
    """Anything of JSON that needs no names."""

    value: Any = None


@_message
class PathReport:
    """The state that a process finds at its path."""

    path: str
    name: str
    disks: str
    is_store: bool
    parts: list[str]


@_message
class RootReport:
    """The root that process 0 has opened."""

    id: str = ""
    path: str = ""
    members: Sequence[int] = ()  # the parts of its steps


@_message
class PartState:
    part: int
    decision_number: int


@_message
class PartReport:
    """The parts that a process has opened, and whether it sees the root's files."""

    parts: list[PartState]
    sees_root: bool


@_message
class Verdicts:
    """The outcome of every step of many processes."""

    run: str = ""
    decision_number: int = 0
    summaries: int = 0  # in how many values the list of steps is
    committed: Sequence[tuple[int, str, int]] = ()  # step, save id, index of its parts in `sets`
    sets: Sequence[Sequence[int]] = ()


@_message
class Proposal:
    """The values that must be the same on all processes."""

    kind: str  # "save", "import", "delete", "pin", "unpin", "taint", "rollback", "snapshot"
    step: int | None = None
    steps: Sequence[int] = ()
    items: Sequence[str] = ()
    if_exists: str | None = None
    why: str | None = None  # of a taint

    def __str__(self) -> str:
        return f"{self.kind} {self.step if self.steps == () else self.steps}"


@_message
class StepVote:
    """A process's account of a step."""

    parts: list[tuple[int, str]]  # part, save id
    stored_bytes: int
    owned_bytes: int
    # Arrays of which a part has all, with it: StepTree.encoded_records, in hexadecimal digits.
    alone: list[tuple[int, str, str]]


@_message
class Vote:
    proposal: Proposal
    fingerprint: str  # of the tree that is saved
    failure: Failure | None
    skipped: bool
    contents: str  # a StepVote, packed
    meshes: Sequence[Sequence[Any]]  # of a save: process_slice.Part's


@_message
class StepNews:
    """The changes in the list of steps."""

    gone: list[int]
    new: list[Any]  # summaries


@_message
class Decision:
    """The decision of process 0; a commit unless it failed."""

    failure: Failure | None = None
    unknown: bool = False  # whether it is committed
    skipped: bool = False
    dead: Sequence[int] = ()  # steps that the commit has ended
    decision_number: int = 0
    # Steps deleted, with items deleted, or tainted by a rollback.
    changed: list[int] = field(default_factory=list)
    news: StepNews | None = None
    contents: int = 0  # in how many values the StepContents are


@_message
class CheckpointVote:
    """A process's account of a checkpoint to import; `step` None: it sees nothing."""

    path: str
    step: int | None = None
    digest: str = ""  # "" where the step is skipped
    items: Sequence[str] = ()


@_message
class StepContents:
    """The contents of a step, of all parts."""

    commit: int
    time_ns: int
    pinned: bool
    taint: str
    metadata_json: str
    metrics_json: str
    logical_bytes: int
    stored_bytes: int
    owned_bytes: int
    items: list[str]  # names
    save_id: str
    records: list[tuple[str, str]]  # StepTree.encoded_records, in hexadecimal digits, by key
    alone: list[tuple[int, int]]  # leaves that one part has, which is not part 0: leaf, part
    partial: list[int]  # leaves of which parts have pieces


@_message
class Wants:
    """The boxes of leaves that a process wants; and, once, those that it has."""

    wants: list[Any]
    owned: list[Any] | None


@_message
class ExportShare:
    """`sizes`: in bytes, of what a process sends to each process."""

    sizes: list[int]
    parts: Sequence[tuple[int, int]] = ()  # that it has, and how many bytes their records take
    mark: str = ""  # a directory that process 0 has made


def _fields(message: object) -> dict[str, Any]:
    return {_NAME: type(message).__name__, **vars(message)}


def _made(fields: dict[str, Any]) -> Any:
    return _KINDS[fields.pop(_NAME)](**fields) if _NAME in fields else fields


def encode(message: object) -> str:
    return f"{VERSION} {json.dumps(message, default=_fields)}"


def decode(text: str, kind: type[M], process: int, what: str) -> M:
    """The message of `process`, or the error that it sent instead."""
    version, _, body = text.partition(" ")
    if version != str(VERSION):
        raise PeerError(f"process {process} speaks version {version!r} of Stepwell's messages, "
                        f"this one {VERSION}: install one Stepwell for all", [process])
    message = json.loads(body, object_hook=_made)
    if isinstance(message, Failure) and kind is not Failure:
        raise replace(message, processes=[process]).error()
    if not isinstance(message, kind):
        raise PeerError(f"process {process} does something else than {what}", [process])
    return message


def pack(message: object) -> bytes:
    return zlib.compress(encode(message).encode(), 1)


def unpack(data: bytes, kind: type[M], process: int, what: str) -> M:
    return decode(zlib.decompress(data).decode(), kind, process, what)


def pack_text(message: object) -> str:
    """For JAX's coordination service, whose values are text."""
    return base64.b85encode(pack(message)).decode()


def unpack_text(text: str, kind: type[M], process: int, what: str) -> M:
    return unpack(base64.b85decode(text), kind, process, what)
