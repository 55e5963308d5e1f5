# SPDX-License-Identifier: Apache-2.0
"""Places of files: local ones only; and what makes names durable."""

from __future__ import annotations

import os
import re

from ..errors import InvalidArgumentError

# Path("gs://bucket/run") of pathlib is "gs:/bucket/run".
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://|"
                  "(?:gs|gcs|s3|s3a|az|azure|abfss?|adl|r2|hdfs|https?|file|memory):/")


def local_path(path: str | bytes | os.PathLike[str]) -> str:
    """The absolute path of a file or directory. InvalidArgumentError for a URL, of which
    os.path.abspath would make a directory named after the scheme."""
    name = os.fsdecode(path)
    if _URL.match(name):
        raise InvalidArgumentError(
            f"{name!r} is a URL; stores, checkpoints and views are directories on a local disk. "
            "Copy steps to and from object stores with `Store.push` and `Store.pull`")
    return os.path.abspath(name)


def remove_tree(path: str) -> None:
    """Removes what it can of a directory and of all that is in it."""
    import shutil  # imports every compressor of Python: not at `import stepwell`

    shutil.rmtree(path, ignore_errors=True)


def sync_folder(path: str) -> None:
    """Makes the names in a directory durable: after a rename, or a new file. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
