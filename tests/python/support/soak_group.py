# SPDX-License-Identifier: Apache-2.0
"""Four processes save together; one of them is killed somewhere in the protocol, again and again.

    PYTHONPATH=<build>/python python soak_group.py DIR FIRST:LAST [--local]
                                                                [--record FILE]

Each number is one kill: which process, where, in which save. After it all processes open the store
again: they must agree on the steps, every step must be whole, and the next save must succeed. Then
a process alone verifies all checksums; with --local, where each process has a disk of its own, each
verifies its part. An error names its number and is status 1; a range that was
done is a line in FILE, so that the next range can go on. test_group.py has the short form.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import random
import shutil
import sys
import time

import stepwell
from group_runs import run

PROCESSES = 4
# (point, whether only process 0 gets there): group_process.POINTS
POINTS = [("before_prepare", False), ("begun", False), ("before_vote", False),
          ("after_vote", False), ("before_decide", False), ("after_decide", False),
          ("after_broadcast", True)]


def one(folder: pathlib.Path, number: int, local: bool, counts: collections.Counter[str]) -> None:
    chance = random.Random(number)
    point, leader_only = POINTS[number % len(POINTS)]
    victim = 0 if leader_only or chance.random() < 0.3 else chance.randrange(1, PROCESSES)
    saves = chance.randrange(1, 4)  # before the one that is cut off
    roots = [folder / str(i) / "store" if local else folder for i in range(PROCESSES)]
    for root in roots if local else []:
        root.parent.mkdir(parents=True)
    opened = ["open", {"keep": 3, "disks": "local" if local else "shared"}]
    acts = [opened, *[["save", {"step": step}] for step in range(1, saves + 2)]]
    cut = saves + 1
    died = run(roots, acts, PROCESSES, kill=[cut, victim, point], timeout=5)
    assert died[victim].status == -9, died[victim].output[-2000:]
    told = []
    for process, said in enumerate(died):
        if process == victim or len(said.lines) <= cut:
            counts["ended by JAX"] += process != victim
            continue
        line = said.lines[cut]
        if "error" in line:
            assert line["error"] in ("PeerError", "OutcomeUnknownError"), line
            counts[line["error"]] += 1
            told.append(line["error"] == "PeerError" and "was given up" in line["text"])
        else:
            counts["told of success"] += 1
            told.append(None)
    after = run(roots, [opened, ["check", {"step": saves}],
                        ["save", {"step": 99}], ["steps", {}], ["check", {"step": 99}],
                        ["verify", {}], ["close", {}]], PROCESSES)
    found = after[0].gave(0)
    old = list(range(1, saves + 1))
    whole = [*old, saves + 1]
    assert found in (old[-3:], whole[-3:]), (found, old)
    committed = saves + 1 in found
    counts["committed" if committed else "not committed"] += 1
    assert committed or None not in told  # nobody was told of a step that is not there
    assert not committed or True not in told  # nor that one was given up which is
    for said in after:
        assert said.gave(0) == found
        assert [said.gave(i) for i in (1, 2, 4)] == ["equal", 99, "equal"]
        assert said.gave(3) == [*found, 99][-3:]
        assert said.gave(5)[1] == []
    if not local:
        with stepwell.open(folder, "r") as store:
            assert store.verify().problems == []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("numbers", metavar="FIRST:LAST")
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--record", type=pathlib.Path)
    arguments = parser.parse_args()
    first, last = map(int, arguments.numbers.split(":"))
    counts: collections.Counter[str] = collections.Counter()
    begin = time.monotonic()
    for number in range(first, last):
        shutil.rmtree(arguments.folder, ignore_errors=True)
        try:
            one(arguments.folder, number, arguments.local, counts)
        except Exception as error:
            print(f"number {number}: {POINTS[number % len(POINTS)][0]}", file=sys.stderr)
            raise error
    local = " --local" if arguments.local else ""
    line = (f"| {time.strftime('%Y-%m-%d')} | {first}:{last}{local} | "
            + ", ".join([f"{count} {what}" for what, count in sorted(counts.items())])
            + f" | {time.monotonic() - begin:.0f} s |")
    print(line)
    if arguments.record:
        with arguments.record.open("a") as record:
            record.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
