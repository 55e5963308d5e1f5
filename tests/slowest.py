# SPDX-License-Identifier: Apache-2.0
"""The twenty slowest tests of JUnit files, as ctest writes them: `slowest.py FILE...`."""

from __future__ import annotations

import pathlib
import sys
import xml.etree.ElementTree

COUNT = 20


def main(paths: list[str]) -> None:
    times = []
    for path in filter(pathlib.Path.exists, map(pathlib.Path, paths)):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            times.append((float(case.get("time", 0)), case.get("name", "")))
    for seconds, name in sorted(times, reverse=True)[:COUNT]:
        print(f"{seconds:7.1f} s  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
