# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of a guide, and how they run: guide_blocks.py GUIDE [29500=PORT ...].

Run as a program in a directory, it does what the guide says, from top to bottom: blocks with a
title become files, Python blocks run in one interpreter, the `$` lines of a console block in one
shell. A block below `<!-- not run: why -->` is passed over.
"""

import dataclasses
import pathlib
import re
import subprocess
import sys

FENCE = re.compile(r"```(\w*)(?: title=\"([^\"]+)\")?$")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->$")


@dataclasses.dataclass
class Block:
    line: int  # of its first line, from 1
    language: str
    title: str  # the file that it is, or ""
    text: str
    not_run: str  # why, or ""


def blocks(guide: pathlib.Path) -> list[Block]:
    found: list[Block] = []
    inside, reason = False, ""
    for number, line in enumerate(guide.read_text(encoding="utf-8").splitlines(), 1):
        if inside and line == "```":
            inside = False
        elif inside:
            found[-1].text += line + "\n"
        elif line.startswith("```"):
            opened = FENCE.match(line)
            assert opened, f"{guide.name}:{number}: {line}"
            found.append(Block(number + 1, opened[1], opened[2] or "", "", reason))
            inside = True
        else:
            marked = NOT_RUN.match(line)
            reason = marked[1] if marked else ""
    return found


def run(guide: pathlib.Path, instead: dict[str, str]) -> None:
    names = {"__name__": "__main__"}
    for block in blocks(guide):
        text = block.text
        for old, new in instead.items():
            text = text.replace(old, new)
        where = f"{guide.name}:{block.line}"
        if block.not_run:
            continue
        if block.title:
            pathlib.Path(block.title).write_text(text, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + text, where, "exec"), names)
        else:
            assert block.language == "console", f"{where}: nothing runs {block.language}"
            commands = [line.removeprefix("$ ") for line in text.splitlines()]
            assert len(commands) == text.count("$ "), f"{where}: a line without $"
            shell = subprocess.run(["bash", "-c", "\n".join(["set -e", *commands])], check=False)
            assert shell.returncode == 0, f"{where}: exit status {shell.returncode}"


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]), dict(word.split("=") for word in sys.argv[2:]))
