# SPDX-License-Identifier: Apache-2.0
"""Runs bench/run for each recorded file, and puts the figures into README.md and the page
Numbers."""

import argparse
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DOCUMENTS = (HERE.parent / "README.md", HERE.parent / "api/docs/pages/numbers.md")
CHART = HERE.parent / "api/docs/pages/chart.svg"

# Of each file: what bench/run is to measure. The theme publish needs others' encoders, so
# recorded_publish.json is made by hand (README.md here).
RUNS = {
    "recorded": ("--rounds", "3", "--rows", "full,leaves,commit,part,leaf,steps,start,orbax,mesh,"
                 "space,memory", "--contenders", "stepwell,orbax-v1,orbax-v0,safetensors,equinox"),
    "recorded_versions": ("--rounds", "2", "--rows", "unchanged,delta,statistics,history,push,deep,"
                          "many", "--contenders", "stepwell,orbax-v1,safetensors"),
    "recorded_waits": ("--rounds", "2", "--rows", "one,sizes,beside,tiny,report", "--contenders",
                       "stepwell,orbax-v1,safetensors"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/record", description=__doc__)
    parser.add_argument("--only", default=",".join(RUNS), metavar="NAME,…",
                        help=f"which files, of: {', '.join(RUNS)}")
    parser.add_argument("--dir", default=".", help="where to write: the disk to measure")
    parser.add_argument("--documents", action="store_true", help="measure nothing")
    given = parser.parse_args()
    for name in () if given.documents else given.only.split(","):
        file = HERE / f"{name}.json"
        subprocess.run([sys.executable, HERE / "run.py", *RUNS[name], "--dir", given.dir, "--json",
                        file], stdout=subprocess.DEVNULL, check=True)
    for file in sorted(HERE.glob("recorded*.json")):
        if file.name != "recorded_fine_tuning.json":
            show(file)
    subprocess.run([sys.executable, HERE / "run.py", "--from", HERE / "recorded.json", "--svg",
                    CHART], stdout=subprocess.DEVNULL, check=True)


def show(file: pathlib.Path) -> None:
    """Puts the figures of a file into the tables that have its rows."""
    printed = subprocess.run([sys.executable, HERE / "run.py", "--from", file], check=True,
                             capture_output=True, text=True).stdout
    found = table(printed.split("For the README at the top:")[1])
    for document in DOCUMENTS:
        lines, header = [], []
        for line in document.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            header = [] if not cells else header or cells
            if cells and cells[0] in found:
                row = found[cells[0]]
                line = f"| {' | '.join([cells[0], *(row[each] for each in header[1:])])} |"
                line = re.sub(r"  +", " ", line)
            lines.append(line)
        document.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(text: str) -> dict[str, dict[str, str]]:
    """Cells by row and column."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in text.splitlines() if line.startswith("|")]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


main()
