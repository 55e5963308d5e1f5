# SPDX-License-Identifier: Apache-2.0
"""The door for files and directories above the store: each appears, changes or goes here.

The engine does it (db/export/durable.h): by one rename or exchange, and the sync of the directory.
So a reader sees the old or the new, at any instant and after a power cut. What a killed process
left under way is found by its name and its lock, and removed. No other module of the package
renames, replaces or removes what lasts (tests/lint/check_layers.py).

Paths are str, with surrogates for bytes that are not UTF-8. Errors: CheckpointNotFoundError,
StepExistsError, LockedError (another thread or process is at it), NoSpaceError, StorageError, and
OutcomeUnknownError where the last sync failed: then a power cut may show either state.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from .. import _stepwell
from ..errors import (CheckpointNotFoundError, NoSpaceError, StepNotFoundError, StorageError)

# Names with this are never read as checkpoints: of Orbax's, and of the door's, while they are made.
TEMPORARY = ".orbax-checkpoint-tmp"
# How names begin that the door gives to what is half made or half removed.
OWN = ".stepwell-"


class Folder:
    """A directory or file that appears at `path` whole and durable, or not at all.

    Build it below `temporary`, then `commit` the part of it that is to have the path. A context
    manager. Its end removes what is not committed, and so does the end of its last reference.

    replace: what is at `path` gives way, at one instant. file_mode: permissions of files in a
    directory that is the owner's alone, as 0o600; 0: the umask decides.
    """

    def __init__(self, path: str, *, replace: bool = False, file_mode: int = 0) -> None:
        self.path = path
        self._folder = _stepwell.DurableFolder(os.fsencode(path), replace, file_mode)
        self.temporary = os.fsdecode(self._folder.temporary)

    def rename(self, source: str, target: str) -> None:
        """Gives a part of `temporary` another name there; `commit` makes that durable."""
        os.rename(os.path.join(self.temporary, source), os.path.join(self.temporary, target))

    def commit(self, inner: str) -> None:
        """Syncs all of `temporary`/`inner` and gives it the path. Once."""
        self._folder.commit(os.fsencode(inner))

    def close(self) -> None:
        """Removes what was not committed. Idempotent."""
        self._folder.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()


def remove(path: str) -> None:
    """Removes a file, or a directory with all that is in it: the name goes at once and durably.
    CheckpointNotFoundError."""
    try:
        _stepwell.remove_durably(os.fsencode(path))
    except StepNotFoundError as error:
        raise CheckpointNotFoundError(str(error)) from None


def write(path: str, data: bytes, *, mode: int = 0) -> None:
    """A small file appears, or is replaced. `mode`: its permissions; 0: the umask decides."""
    _stepwell.write_durably(os.fsencode(path), data, mode)


def move(source: str, target: str) -> None:
    """A directory or file gets another name in its file system; nothing may be there."""
    _stepwell.move_durably(os.fsencode(source), os.fsencode(target))


@contextlib.contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Gives an OSError of Python's own calls, on files of what is to have the path, the class that
    the engine's have: NoSpaceError or StorageError."""
    try:
        yield
    except OSError as error:
        if type(error) is not OSError:
            raise
        failed = (NoSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError)(
            f"{path} cannot be written: {error.strerror}")
        failed.errno = error.errno
        raise failed from None


def make_directories(path: str, mode: int = 0o777) -> None:
    """Does os.makedirs(exist_ok=True) durably."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, mode)
        if not os.path.isdir(each):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), each)
        sync_directory(os.path.dirname(each))


def sync_directory(path: str) -> None:
    """Makes the names in a directory durable."""
    _stepwell.sync_directory(os.fsencode(path))


def remove_tree(path: str) -> None:
    """Removes what it can of what does not last: half-made things, and those of tests. Never
    follows a link, raises nothing."""
    _stepwell.remove_tree(os.fsencode(path))


def is_claimed(path: str) -> bool:
    """Returns true if this module, in any process, made the temporary directory. Orbax's have
    other names."""
    return _stepwell.is_claimed(os.fsencode(path))


def sweep(folder: str, *, ours: bool = False) -> None:
    """Removes what killed processes left half made or half removed in a directory. `ours`: nobody
    else makes temporary directories there, and nobody does now; empty ones go, too."""
    _stepwell.sweep(os.fsencode(folder), ours)


def link_tree(source: str, target: str, *, skip: Callable[[str], bool] = lambda path: False,
              copied: Iterable[str] = ()) -> None:
    """Makes in a temporary directory a copy of another one, of hard links. `skip`: whether a path
    in `source` is left out. `copied`: names of files that get bytes of their own."""
    os.makedirs(target)
    for entry in os.scandir(source):
        if skip(entry.path):
            continue
        made = os.path.join(target, entry.name)
        if entry.is_dir(follow_symlinks=False):
            link_tree(entry.path, made, skip=skip, copied=copied)
        elif entry.name in copied:
            _copy(entry.path, made)
        else:
            link(entry.path, made)


def link(source: str, target: str) -> None:
    """Makes in a temporary directory another name of a file; a copy where there can be none."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not _linked(source, target):
        _copy(source, target)


def _copy(source: str, target: str) -> None:
    import shutil  # imports every compressor of Python: not at `import stepwell`

    shutil.copy2(source, target, follow_symlinks=False)


def _linked(source: str, target: str) -> bool:
    """Makes a hard link; False where the file system has none, or no more of this file."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise
    return True


# ---- scratch ------------------------------------------------------------------------------------


class Scratch:
    """A directory of one process, which goes with the last reference to this. `prefix` begins its
    name. What killed processes left under the same prefix is removed.

    folder: where it is made; None: the system's temporary folder.
    """

    def __init__(self, prefix: str, folder: str | None = None) -> None:
        import tempfile  # imports every compressor of Python: not at `import stepwell`

        self._descriptor = -1
        self._process = os.getpid()
        where = folder or tempfile.gettempdir()
        _sweep_scratch(where, prefix)
        while self._descriptor < 0:
            self.path = tempfile.mkdtemp(prefix=prefix, dir=where)
            self._descriptor = _locked(self.path)  # another process may have swept it

    def close(self) -> None:
        """Removes it. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if self._process == os.getpid():  # a forked child has the descriptor, not the directory
            remove_tree(self.path)
        os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _sweep_scratch(folder: str, prefix: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if not entry.name.startswith(prefix) or entry.stat(
                    follow_symlinks=False).st_uid != os.getuid():
                continue
            descriptor = _locked(entry.path)
            if descriptor >= 0:
                remove_tree(entry.path)
                os.close(descriptor)


def _locked(path: str) -> int:
    """A descriptor that holds the directory's lock; -1: another one has it, or it is gone."""
    descriptor = -1
    locked = False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        pass
    finally:
        if descriptor >= 0 and not locked:
            os.close(descriptor)
    return descriptor if locked else -1


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[str]:
    """A Scratch's path, for the time of the block."""
    made = Scratch(prefix)
    try:
        yield made.path
    finally:
        made.close()
