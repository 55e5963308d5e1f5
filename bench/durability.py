# SPDX-License-Identifier: Apache-2.0
"""Measures what is left after a power cut, and what a flipped bit does; see README.md here.

A power cut is the file system's own shutdown without a flush of its log (FS_IOC_SHUTDOWN), while
the program that saved is stopped: everything that it has not made durable is lost, as when the
machine loses power. A flip is one bit of the file that has most of the checkpoint's bytes (and
most that are not zero: files may be larger than what is in them).
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import savers
import states

STEPS = 3
STATE_BYTES = 24 << 20
FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_LOG_FLUSH = 2
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
RIGHT, REFUSED, WRONG = "right", "refused", "WRONG"


def state_of(step: int) -> Any:
    return states.make_state(STATE_BYTES, seed=step)


def look(key: str, path: pathlib.Path, step: int, wanted: Any) -> str:
    try:
        got = savers.SAVERS[key].load(path, step, states.tree_map(states.empty_like, wanted))
        states.expect_equal(got, wanted)
    except states.WrongBytes:
        return WRONG
    except Exception:  # whatever a library raises: it did not pass wrong bytes on
        return REFUSED
    return RIGHT


# ---- in processes of their own ------------------------------------------------------------------

def child_save(key: str, path: pathlib.Path, steps: int) -> None:
    for step in range(1, steps + 1):
        savers.SAVERS[key].save(path, step, state_of(step))
        print(step, flush=True)
    sys.stdin.read()  # with everything open, as in a training program
    savers.close()


def child_look(key: str, path: pathlib.Path, steps: int) -> None:
    for step in range(1, steps + 1):
        print(look(key, path, step, state_of(step)), flush=True)


def child_flip(key: str, path: pathlib.Path, flips: int, first: int) -> None:
    wanted = state_of(1)
    file = max((file for file in path.rglob("*") if file.is_file()),
               key=lambda file: np.count_nonzero(np.fromfile(file, np.uint8)))
    size = file.stat().st_size
    # Without this, a library that loads nothing at all would refuse each flip.
    if look(key, path, 1, wanted) != RIGHT:
        raise SystemExit(f"{key} does not load what it saved")
    for i in range(first, flips):
        at = random.Random(i).randrange(8 * size)
        with flipped(file, at):
            print(look(key, path, 1, wanted), flush=True)


@contextlib.contextmanager
def flipped(file: pathlib.Path, bit: int) -> Iterator[None]:
    mode = file.stat().st_mode
    file.chmod(0o600)

    def flip() -> None:
        with file.open("r+b") as stream:
            stream.seek(bit // 8)
            byte = stream.read(1)[0]
            stream.seek(bit // 8)
            stream.write(bytes([byte ^ 1 << bit % 8]))

    flip()
    try:
        yield
    finally:
        flip()
        file.chmod(mode)


class Child:
    def __init__(self, options: argparse.Namespace, act: str, key: str, path: pathlib.Path,
                 *numbers: int) -> None:
        python = options.torch if key in savers.TORCH else sys.executable
        self.process = subprocess.Popen(
            [python, __file__, "--act", act, key, str(path), *map(str, numbers)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


# ---- the two experiments ------------------------------------------------------------------------

@contextlib.contextmanager
def mounted(kind: str, directory: pathlib.Path) -> Iterator[pathlib.Path]:
    image, point = directory / "image", directory / "mounted"
    with image.open("wb") as file:
        file.truncate(600 << 20)
    subprocess.run([*MAKE[kind], str(image)], check=True, stdout=subprocess.DEVNULL)
    point.mkdir()
    mount(image, point)
    try:
        yield point
    finally:
        unmount(point)
        point.rmdir()
        image.unlink()


def mount(image: pathlib.Path, point: pathlib.Path) -> None:
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)


def unmount(point: pathlib.Path) -> None:
    for _ in range(100):  # the kernel lets go of a killed process's files a little later
        if subprocess.run(["umount", str(point)], stderr=subprocess.DEVNULL, check=False
                          ).returncode == 0:
            return
        time.sleep(0.1)
    raise SystemExit(f"{point} stays busy")


def cut_power(options: argparse.Namespace, key: str, kind: str) -> Counter[str]:
    """Returns the outcomes of STEPS steps whose saves had returned before a power cut."""
    with (tempfile.TemporaryDirectory(dir=options.dir) as directory,
          mounted(kind, pathlib.Path(directory)) as point):
        path = point / "checkpoints"
        path.mkdir()
        # Made long ago: only what is saved from here on is at stake.
        with open_directory(point) as descriptor:
            os.fsync(descriptor)
        child = Child(options, "save", key, path, STEPS)
        said = 0
        for line in child.lines():
            said = int(line)
            if said == STEPS:
                break
        if said < STEPS:
            child.end()
            raise SystemExit(f"{key} cannot save on {kind}")
        os.kill(child.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.process.pid, os.WSTOPPED)
        with open_directory(point) as descriptor:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
        child.end()
        unmount(point)
        mount(pathlib.Path(directory) / "image", point)
        looker = Child(options, "look", key, path, STEPS)
        found = list(looker.lines())
        looker.end()
        return Counter(found + [REFUSED] * (STEPS - len(found)))  # it died


@contextlib.contextmanager
def open_directory(path: pathlib.Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def flip_bits(options: argparse.Namespace, key: str) -> Counter[str]:
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        path = pathlib.Path(directory) / "checkpoints"
        path.mkdir()
        saver = Child(options, "save", key, path, 1)
        assert list(saver.process.stdout.readline().split()) == ["1"]  # type: ignore[union-attr]
        saver.process.communicate()  # it ends as programs do
        found: list[str] = []
        while len(found) < options.flips:
            before = len(found)
            child = Child(options, "flip", key, path, options.flips, before)
            found += child.lines()
            child.end()
            if not found:
                raise SystemExit(f"{key} does not load what it saved")
            if child.process.returncode != 0 and len(found) < options.flips:
                found.append(REFUSED)  # it died of that flip
        return Counter(found)


def table(options: argparse.Namespace, results: dict[str, dict[str, Counter[str]]]) -> str:
    kinds = options.file_systems
    head = ["", *(f"{STEPS * options.cuts} steps said to be saved, power cut, {kind}"
                  for kind in kinds), f"{options.flips} flipped bits"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for key, found in results.items():
        cells = [savers.SAVERS[key].name]
        for kind in kinds:
            count = found[kind]
            cells.append(f"{count[RIGHT]} there, {count[REFUSED]} lost"
                         + (f", **{count[WRONG]} wrong**" if count[WRONG] else ""))
        flips = found["flips"]
        cells.append(f"{flips[REFUSED]} refused, {flips[RIGHT]} harmless, "
                     + (f"**{flips[WRONG]} silently wrong**" if flips[WRONG] else "0 wrong"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/durability",
                                     description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=5, help="of each, on each file system")
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--file-systems", type=lambda text: text.split(","), default=list(MAKE),
                        metavar="NAME,…", help=", ".join(MAKE))
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,…",
                        help=", ".join(savers.SAVERS))
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path.cwd(),
                        help="where the images and checkpoints lie meanwhile (default: here)")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--json", type=pathlib.Path, help="write the counts there, too")
    parser.add_argument("--act", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.act:
        act, key, path, *numbers = options.act
        {"save": child_save, "look": child_look, "flip": child_flip}[act](
            key, pathlib.Path(path), *map(int, numbers))
        return
    if os.geteuid() != 0:
        raise SystemExit("bench/durability mounts file systems of its own: run it as root")
    keys = options.only or [key for key in savers.SAVERS
                            if options.torch or key not in savers.TORCH]
    results: dict[str, dict[str, Counter[str]]] = {}
    for key in keys:
        results[key] = {kind: sum((cut_power(options, key, kind) for _ in range(options.cuts)),
                                  Counter()) for kind in options.file_systems}
        results[key]["flips"] = flip_bits(options, key)
        print(f"{key}: {results[key]}", file=sys.stderr, flush=True)
    print(table(options, results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
