# SPDX-License-Identifier: Apache-2.0
"""The twenty slowest tests of JUnit files, as ctest and pytest write them, and the images of the
simulation that they looked at: `slowest.py FILE...`. Status 1 if these are fewer than what
tests/check promises."""

from __future__ import annotations

import pathlib
import re
import sys
import xml.etree.ElementTree

COUNT = 20
IMAGES_MIN = 5000


def main(paths: list[str]) -> int:
    times, images = [], 0
    for path in filter(pathlib.Path.exists, map(pathlib.Path, paths)):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            names = dict.fromkeys((case.get("classname", ""), case.get("name", "")))
            times.append((float(case.get("time", 0)), " ".join(names)))
            said = case.findtext("system-out") or ""
            images += sum(map(int, re.findall(r"(\d+) crash images", said)))
    for seconds, name in sorted(times, reverse=True)[:COUNT]:
        print(f"{seconds:7.1f} s  {name}")
    print(f"{images} crash images of the simulation were looked at, of at least {IMAGES_MIN}")
    return 1 if images < IMAGES_MIN else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
