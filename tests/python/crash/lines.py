# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at the n-th line that a call runs of some files."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


def interrupt_at(line: int, files: Collection[str], call: Callable[[], Any]) -> tuple[bool, int]:
    """Returns whether the call was interrupted there, and how many lines of the files it ran on
    this thread."""
    seen = 0
    main = threading.get_ident()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files or threading.get_ident() != main:
            return None
        # A real one does not come between the body of `with` and its __exit__.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith("with "):
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True, seen
    finally:
        sys.settrace(None)
    return False, seen
