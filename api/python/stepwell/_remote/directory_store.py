# SPDX-License-Identifier: Apache-2.0
"""A directory of this machine as an object store that is read. No symbolic link below it is
followed, as others may write there. Pushes to directories: push_directory.py."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from .._runtime.files import key_of, undisturbed

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class DirectoryStore:
    """Files below a directory. Where another directory takes its place, what is read is of one."""

    def __init__(self, root: str) -> None:
        self.url = root

    @contextlib.contextmanager
    def _folder(self, key: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory of an object, and the name that the object has there."""
        *above, name = key.split("/")
        descriptor = os.open(self.url, _FOLDER)
        try:
            for each in above:
                below = os.open(each, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _open(self, folder: int, name: str) -> int | None:
        """A descriptor of a regular file; None for what is not one. Waits for no FIFO."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                           dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                return None
            raise
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
        return None

    def size(self, key: str) -> int | None:
        def once() -> int | None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), \
                    self._folder(key) as (folder, name):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                return status.st_size if stat.S_ISREG(status.st_mode) else None
            return None

        return undisturbed(self.url, once)

    def read(self, key: str, start: int, length: int) -> bytes:
        return undisturbed(self.url, lambda: self._read(key, start, length))

    def _read(self, key: str, start: int, length: int) -> bytes:
        with self._folder(key) as (folder, name):
            file = self._open(folder, name)
            if file is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such object", key)
            with open(file, "rb") as opened:
                opened.seek(start)
                return opened.read(length)

    def list(self) -> dict[str, int]:
        """Links and other things that are not objects are there, too: the place is not empty."""
        while True:
            places: dict[str, tuple[int, int] | None] = {}
            found = self._list(places)
            if all(key_of(path) == key for path, key in places.items()):
                return found

    def _list(self, places: dict[str, tuple[int, int] | None]) -> dict[str, int]:
        """`places`: gets the directories that were listed, as they were before."""
        found: dict[str, int] = {}
        places[self.url] = key_of(self.url)
        for above, folders, names in os.walk(self.url):
            places.update({path: key_of(path) for path in [os.path.join(above, each)
                                                           for each in folders]})
            links = [each for each in folders if os.path.islink(os.path.join(above, each))]
            for name in [*names, *links]:
                path = os.path.join(above, name)
                with contextlib.suppress(FileNotFoundError):
                    found[os.path.relpath(path, self.url)] = os.lstat(path).st_size
        return found
