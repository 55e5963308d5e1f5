# SPDX-License-Identifier: Apache-2.0
"""The tree that a process saves, in words. Processes compare digests; where those differ, process 0
receives the words and describes the difference."""

from __future__ import annotations

import hashlib


def digest_of(outline: list[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for line in outline:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def difference(ours: list[str], theirs: list[str], process: int) -> str:
    """The first leaf that differs, in words. Lines are "path: what"."""
    mine = dict(line.rsplit(": ", 1) for line in ours)
    other = dict(line.rsplit(": ", 1) for line in theirs)
    for path, what in mine.items():
        if path not in other:
            return f"process {process} has no {path} ({what} in process 0)"
        if other[path] != what:
            return f"{path} is {other[path]} in process {process} and {what} in process 0"
    for path, what in other.items():
        if path not in mine:
            return f"process {process} has {path} ({what}), process 0 has not"
    return f"process {process} has its leaves in another order than process 0"
