# SPDX-License-Identifier: Apache-2.0
"""README stays a page, and its figures are the recorded ones."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBERS = ROOT / "api/docs/pages/numbers.md"


def table(text: str) -> dict[str, dict[str, str]]:
    """Cells by row and column of all tables, for rows that have a name."""
    found: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            header = []
        elif not header:
            header = cells
        elif not cells[0].startswith("---"):
            found[cells[0]] = dict(zip(header[1:], cells[1:], strict=True))
    return found


def test_readme_is_a_page() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130
    example = "\n".join(lines).split("## Example")[1].split("```python\n")[1].split("```")[0]
    assert example.index("\n\nwith stepwell.open(\"demo\", mode=") > 0
    assert len(example.split("\n\nwith stepwell.open(\"demo\", mode=")[0].splitlines()) <= 12


@pytest.mark.parametrize(("file", "in_readme", "rows"), [
    ("recorded", 5, 11), ("recorded_versions", 0, 18), ("recorded_publish", 0, 6),
    ("recorded_waits", 0, 4)])
def test_the_figures_are_the_recorded_ones(file: str, in_readme: int, rows: int) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "bench/run.py"), "--from", str(ROOT / f"bench/{file}.json")],
        capture_output=True, text=True, check=True)
    recorded = table(result.stdout.split("For the README at the top:")[1])
    assert len(recorded) >= rows
    readme = table((ROOT / "README.md").read_text(encoding="utf-8"))
    numbers = table(NUMBERS.read_text(encoding="utf-8"))
    assert sum(row in recorded for row in readme) == in_readme
    assert set(recorded) <= set(numbers)
    for shown in (readme, numbers):
        for row in shown.keys() & recorded.keys():
            for column, cell in shown[row].items():
                assert cell == recorded[row][column], (row, column)


def test_every_folder_of_the_map_exists() -> None:
    guide = (ROOT / "api/docs/pages/how-it-works.md").read_text(encoding="utf-8")
    folders = re.findall(r"^    (\w+)/ {2,}", guide, re.MULTILINE)
    assert folders == ["io", "format", "db", "api", "tests", "bench", "fuzz"]
    for folder in folders:
        assert (ROOT / folder).is_dir()
        assert f"({folder}/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
