# SPDX-License-Identifier: Apache-2.0
"""Runs of several processes (group_process.py), started and read."""

import json
import pathlib
import socket
from dataclasses import dataclass
from typing import Any

import forks

SCRIPT = pathlib.Path(__file__).with_name("group_process.py")


@dataclass
class Said:
    """The output of one process."""

    status: int  # exit status; negative: the signal
    lines: list[dict[str, Any]]
    output: str

    def gave(self, number: int) -> Any:
        line = self.lines[number]
        assert "error" not in line, (line, self.output[-2000:])
        return line["gave"]


def start(script: pathlib.Path, processes: int, devices: int, *arguments: str
          ) -> list[forks.Child]:
    """`devices`: of all processes together."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [forks.start(script, number, processes, port, devices // processes, *arguments)
            for number in range(processes)]


def machines(folder: pathlib.Path, *of_process: int) -> list[pathlib.Path]:
    """The path of a store on the machine of each process."""
    for number in of_process:
        (folder / f"machine_{number}").mkdir(exist_ok=True, parents=True)
    return [folder / f"machine_{number}" / "store" for number in of_process]


def run(root: pathlib.Path | list[pathlib.Path], acts: list[list[Any]], processes: int = 2,
        devices: int = 4, kill: list[Any] | None = None, timeout: float = 60.0,
        posix: bool = False) -> list[Said]:
    """`root`: where the store is, for all processes or for each. `posix`: without io_uring."""
    roots = [str(path) for path in (root if isinstance(root, list) else [root] * processes)]
    plan = json.dumps({"roots": roots, "acts": acts, "kill": kill, "timeout": timeout,
                       "posix": posix})
    said = []
    for child in start(SCRIPT, processes, devices, plan):
        out, err = child.communicate(timeout=300)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        said.append(Said(child.wait(), lines, out + err))
    return said


def run_matrix(folder: pathlib.Path | str, processes: int, begin: int, end: int
               ) -> list[dict[str, int]]:
    """Random arrays on random meshes of 8 devices; what each process counted. `folder`: with "{}"
    in it for a process's number, each has a disk of its own."""
    children = start(SCRIPT.with_name("group_matrix.py"), processes, 8, str(folder),
                     f"{begin}:{end}")
    outputs = [child.communicate(timeout=3000) for child in children]
    for child, (out, err) in zip(children, outputs, strict=True):
        assert child.returncode == 0, (out + err)[-3000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]
