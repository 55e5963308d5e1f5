# SPDX-License-Identifier: Apache-2.0
"""Makes the states of a directory that a power cut or a kill leaves, from the log of
stepwell_record_files.

The rules are those of the simulated disk (tests/sim/support/sim_disk.h): bytes are durable when
their file was synced, names when their directory was; of the rest nothing, all, a part or torn
pieces may be there. A rename is never half done, and takes along what was done before to its two
directories once one of them is synced.
"""

from __future__ import annotations

import enum
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

PAGE, SECTOR = 4096, 512
_ZEROS = bytes(PAGE)
_HEADER = struct.Struct("<IIIIQQQ")
ROOT = 1


class Op(enum.IntEnum):
    CREATE = 1
    MAKE_DIRECTORY = 2
    SYMLINK = 3
    LINK = 4
    UNLINK = 5
    REMOVE_DIRECTORY = 6
    RENAME = 7
    WRITE = 8
    TRUNCATE = 9
    PUNCH = 10
    SYNC = 11
    SYNC_DIRECTORY = 12
    MODE = 13
    MARK = 14


@dataclass(frozen=True)
class Record:
    op: Op
    a: int
    b: int
    c: int
    name: str
    other: str
    data: bytes


def read_log(path: str) -> Iterator[Record]:
    with open(path, "rb") as file:
        log = file.read()
    at = 0
    while at + _HEADER.size <= len(log):
        op, name, other, data, a, b, c = _HEADER.unpack_from(log, at)
        at += _HEADER.size
        ends = [at + name, at + name + other, at + name + other + data]
        yield Record(Op(op), a, b, c, os.fsdecode(log[at:ends[0]]),
                     os.fsdecode(log[ends[0]:ends[1]]), log[ends[1]:ends[2]])
        at = ends[2]


class Content:
    """A file's bytes: pages that are not all zeros, shared with copies."""

    def __init__(self, size: int = 0, pages: dict[int, bytes] | None = None) -> None:
        self.size = size
        self.pages = pages if pages is not None else {}

    def copy(self) -> Content:
        return Content(self.size, dict(self.pages))

    def write(self, offset: int, data: bytes) -> None:
        self.size = max(self.size, offset + len(data))
        at = 0
        while at < len(data):
            page, start = divmod(offset + at, PAGE)
            piece = data[at:at + PAGE - start]
            at += len(piece)
            if len(piece) < PAGE:
                old = self.pages.get(page, _ZEROS)
                piece = old[:start] + piece + old[start + len(piece):]
            if piece == _ZEROS:
                self.pages.pop(page, None)
            else:
                self.pages[page] = piece

    def zero(self, offset: int, length: int) -> None:
        size, end = self.size, min(offset + length, self.size)
        touched = range(offset // PAGE, -(-end // PAGE))
        for page in [page for page in self.pages if page in touched]:
            start, stop = max(offset, page * PAGE), min(end, (page + 1) * PAGE)
            self.write(start, bytes(stop - start))
        self.size = size

    def resize(self, size: int) -> None:
        if size < self.size:
            self.zero(size, self.size - size)
        self.size = size

    def sector(self, number: int) -> bytes:
        start = number * SECTOR % PAGE
        return self.pages.get(number * SECTOR // PAGE, _ZEROS)[start:start + SECTOR]

    def key(self) -> int:
        return hash((self.size, frozenset(self.pages.items())))


Change = tuple[Op, int, bytes | int]  # of a file: what, where, and the data or how much


def _apply(content: Content, change: Change) -> None:
    op, where, what = change
    if op == Op.WRITE:
        assert isinstance(what, bytes)
        content.write(where, what)
    elif op == Op.PUNCH:
        assert isinstance(what, int)
        content.zero(where, what)
    else:
        content.resize(where)


@dataclass
class Inode:
    number: int
    kind: str  # "file", "folder", "link"
    mode: int
    where: str  # its first path, for messages
    target: bytes = b""
    live: Content = field(default_factory=Content)
    durable: Content = field(default_factory=Content)
    durable_mode: int = 0
    pending: list[Change] = field(default_factory=list)
    entries: dict[str, int] = field(default_factory=dict)
    durable_entries: dict[str, int] = field(default_factory=dict)


NameChange = tuple[int, str, int | None]  # folder, name, what it means now


class Loss(enum.Enum):
    """The fate of what was not synced."""

    ALL = "all of it is lost"
    DATA = "all names are there, and no bytes"
    NAMES = "all bytes are there, and no names"
    NOTHING = "nothing is lost: a kill"
    PREFIX = "the first names, and of each file something"
    PIECES = "any names, and of each file something"


@dataclass
class Image:
    entries: dict[int, dict[str, int]]  # of each folder that can be reached
    contents: dict[int, Content]
    inodes: dict[int, Inode]
    modes: dict[int, int]
    after_boot: bool = False  # the machine has started anew

    def key(self) -> int:
        """Equal where the trees are."""
        numbers: dict[int, int] = {}
        parts: list[object] = []

        def walk(folder: int) -> None:
            for name, number in sorted(self.entries[folder].items()):
                known = numbers.setdefault(number, len(numbers))
                inode = self.inodes[number]
                parts.append((name, known, inode.kind, self.modes[number]))
                if inode.kind == "folder":
                    walk(number)
                    parts.append(None)
                else:
                    parts.append(inode.target if inode.kind == "link"
                                 else self.contents[number].key())

        walk(ROOT)
        return hash((self.after_boot, *parts))

    def write(self, path: str) -> None:
        """Makes the tree as the empty directory `path`."""
        made: dict[int, str] = {}

        def walk(folder: int, path: str) -> None:
            for name, number in self.entries[folder].items():
                inode, there = self.inodes[number], os.path.join(path, name)
                if inode.kind == "folder":
                    os.mkdir(there)
                    walk(number, there)
                    os.chmod(there, self.modes[number])
                elif inode.kind == "link":
                    os.symlink(inode.target, there)
                elif number in made:
                    os.link(made[number], there)
                else:
                    made[number] = there
                    self._write_file(there, number)

        walk(ROOT, path)

    def _write_file(self, path: str, number: int) -> None:
        content = self.contents[number]
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(file, self.modes[number])
            for page, data in content.pages.items():
                os.pwrite(file, data, page * PAGE)
            os.ftruncate(file, content.size)
        finally:
            os.close(file)


class Machine:
    """The directory while the log is played: what programs see, and what is durable of it."""

    def __init__(self) -> None:
        self.inodes = {ROOT: Inode(ROOT, "folder", 0o700, "", durable_mode=0o700)}
        self.pending: list[list[NameChange]] = []

    def play(self, record: Record) -> None:
        op = record.op
        if op in (Op.CREATE, Op.MAKE_DIRECTORY, Op.SYMLINK):
            kind = {Op.CREATE: "file", Op.MAKE_DIRECTORY: "folder", Op.SYMLINK: "link"}[op]
            where = f"{self.inodes[record.a].where}/{record.name}"
            self.inodes[record.b] = Inode(record.b, kind, record.c, where, record.data,
                                          durable_mode=record.c)
            self._rename([(record.a, record.name, record.b)])
        elif op == Op.LINK:
            self._rename([(record.a, record.name, record.b)])
        elif op in (Op.UNLINK, Op.REMOVE_DIRECTORY):
            self._rename([(record.a, record.name, None)])
        elif op == Op.RENAME:
            moved = self.inodes[record.a].entries[record.name]
            replaced = self.inodes[record.b].entries.get(record.other) if record.c else None
            self._rename([(record.a, record.name, replaced), (record.b, record.other, moved)])
        elif op in (Op.WRITE, Op.TRUNCATE, Op.PUNCH):
            change: Change = (op, record.b, record.data if op == Op.WRITE else record.c)
            inode = self.inodes[record.a]
            _apply(inode.live, change)
            inode.pending.append(change)
        elif op == Op.SYNC:
            self._sync(self.inodes[record.a])
        elif op == Op.SYNC_DIRECTORY:
            self._sync_names(record.a)
        elif op == Op.MODE:
            self.inodes[record.a].mode = record.c

    def sync(self) -> None:
        """Syncs as sync(1) does."""
        for inode in self.inodes.values():
            self._sync(inode)
        for change in [change for names in self.pending for change in names]:
            _set_name(self.inodes[change[0]].durable_entries, change)
        self.pending.clear()

    def _sync(self, inode: Inode) -> None:
        if inode.pending:
            inode.durable = inode.live.copy()
            inode.pending.clear()
        inode.durable_mode = inode.mode

    def _rename(self, changes: list[NameChange]) -> None:
        for change in changes:
            _set_name(self.inodes[change[0]].entries, change)
        self.pending.append(changes)

    def _sync_names(self, folder: int) -> None:
        self.inodes[folder].durable_mode = self.inodes[folder].mode
        taken, left = {folder}, []
        for changes in reversed(self.pending):
            if taken.isdisjoint(change[0] for change in changes):
                left.append(changes)
            else:
                taken.update(change[0] for change in changes)
        left.reverse()
        kept = {id(changes) for changes in left}
        for changes in self.pending:
            if id(changes) not in kept:
                for change in changes:
                    _set_name(self.inodes[change[0]].durable_entries, change)
        self.pending = left

    def where(self, record: Record) -> str:
        """The path that a record is about, as it was made first."""
        inode = self.inodes.get(record.a)
        return f"{inode.where if inode else ''}/{record.name}" if record.name else (
            inode.where if inode else "")

    def image(self, loss: Loss, chance: random.Random) -> Image:
        """Makes the directory that a crash now leaves."""
        if loss == Loss.NOTHING:
            changes = self.pending
        else:
            changes = self._kept_names(loss, chance)
        entries: dict[int, dict[str, int]] = {}
        for change in [change for names in changes for change in names]:
            folder = entries.setdefault(change[0],
                                        dict(self.inodes[change[0]].durable_entries))
            _set_name(folder, change)
        image = Image({}, {}, self.inodes, {}, loss != Loss.NOTHING)

        def walk(number: int) -> None:
            inode = self.inodes[number]
            lost = loss in (Loss.ALL, Loss.DATA)
            if inode.kind == "folder":
                if number not in image.entries:
                    image.modes[number] = inode.durable_mode if lost else inode.mode
                    image.entries[number] = entries.get(number, inode.durable_entries)
                    for each in list(image.entries[number].values()):
                        walk(each)
            elif number not in image.contents:
                image.modes[number] = inode.durable_mode if lost else inode.mode
                image.contents[number] = self._content(inode, loss, chance)

        walk(ROOT)
        return image

    def _kept_names(self, loss: Loss, chance: random.Random) -> list[list[NameChange]]:
        if loss in (Loss.ALL, Loss.NAMES):
            return []
        if loss == Loss.DATA:
            return self.pending
        if loss == Loss.PREFIX:
            return self.pending[:chance.randint(0, len(self.pending))]
        kept, odds = [], chance.choice([0.1, 0.5, 0.9])
        missed: set[int] = set()  # folders have one name: later ones need the earlier ones
        for changes in self.pending:
            folders = {number for change in changes for number in (
                change[2], self.inodes[change[0]].entries.get(change[1]))
                if number is not None and self.inodes[number].kind == "folder"}
            if chance.random() < odds and missed.isdisjoint(folders):
                kept.append(changes)
            else:
                missed |= folders
        return kept

    def _content(self, inode: Inode, loss: Loss, chance: random.Random) -> Content:
        if not inode.pending or loss in (Loss.NOTHING, Loss.NAMES):
            return inode.live
        how = "lost" if loss in (Loss.ALL, Loss.DATA) else chance.choice(
            ["lost", "kept", "prefix", "sectors", "sectors"])
        if how in ("lost", "kept"):
            return inode.durable if how == "lost" else inode.live
        versions = [inode.durable]
        for change in inode.pending:
            versions.append(versions[-1].copy())
            _apply(versions[-1], change)
        return chance.choice(versions) if how == "prefix" else _torn(versions, chance)


def _set_name(entries: dict[str, int], change: NameChange) -> None:
    if change[2] is None:
        entries.pop(change[1], None)
    else:
        entries[change[1]] = change[2]


def _torn(versions: list[Content], chance: random.Random) -> Content:
    """Each sector as it was at some time, a few with its end from another or with garbage."""
    content = versions[0].copy()
    pages = {page for version in versions for page in version.pages}
    content.size = max(version.size for version in versions)
    for sector in [page * (PAGE // SECTOR) + i for page in pages for i in range(PAGE // SECTOR)]:
        states = list(dict.fromkeys(version.sector(sector) for version in versions))
        if len(states) == 1:
            continue
        state = chance.choice(states)
        if chance.random() < 0.2:
            other, cut = chance.choice(states), chance.randrange(SECTOR)
            state = state[:cut] + other[cut:]
        elif chance.random() < 0.05:
            first = next(i for i in range(SECTOR) if len({each[i] for each in states}) > 1)
            state = state[:first] + chance.randbytes(SECTOR - first)
        content.write(sector * SECTOR, state)
    content.resize(chance.choice(versions).size)
    return content
