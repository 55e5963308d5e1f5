# SPDX-License-Identifier: Apache-2.0
"""The process behind these tests (net.py): pytest's own has used JAX, and must not fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def ask() -> Iterator[Ask]:
    """Asks for something; what was done of it, and what is wrong. In memory where there is some:
    thousands of small files are written, and none of them is to last."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="stepwell-crash-", dir=memory)
    with subprocess.Popen([sys.executable, str(Path(__file__).with_name("net.py")), folder],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL,
                          env={**os.environ, "JAX_PLATFORMS": "cpu"}) as net:
        assert net.stdin is not None and net.stdout is not None

        def ask(do: str, **request: Any) -> dict[str, Any]:
            assert net.stdin is not None and net.stdout is not None
            net.stdin.write(json.dumps({"do": do, **request}) + "\n")
            net.stdin.flush()
            line = net.stdout.readline()
            assert line, f"the process behind the tests died: {net.poll()}"
            answer: dict[str, Any] = json.loads(line)
            return answer

        yield ask
        net.stdin.close()
