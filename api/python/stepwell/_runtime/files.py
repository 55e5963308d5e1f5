# SPDX-License-Identifier: Apache-2.0
"""What makes names of files durable."""

from __future__ import annotations

import os


def sync_folder(path: str) -> None:
    """Makes the names in a directory durable: after a rename, or a new file. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
