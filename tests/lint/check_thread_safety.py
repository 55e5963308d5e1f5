# SPDX-License-Identifier: Apache-2.0
"""Lock discipline, by clang: check_thread_safety.py ROOT BUILD CLANG.

Every C++ source of io/, db/ and api/ is parsed as BUILD compiles it (its unity batches and
generated headers must be there), and io/thread_annotations.h holds: what a mutex guards is used
with the mutex held, what needs it held is called so, locks are given back. Prints clang's errors
and exits 1 when there is one. Tested by test_check_thread_safety.py.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig

CHECKS = ["-Wno-everything", "-Wthread-safety", "-Wthread-safety-beta", "-Werror"]
# The program has no locks: it stands on the public headers, which have none.
SOURCE = re.compile(r"(?:io|db|api/(?!cli/))[\w./-]*\.cc")
MODULE = "api/python"
# The options of a compiler's command that clang needs to parse the same, and those with a value.
KEPT = ("-I", "-D", "-U", "-std=")
KEPT_WITH_VALUE = {"-I", "-D", "-U", "-isystem", "-include"}


def parse_flags(command: str) -> list[str]:
    words = iter(shlex.split(command)[1:])
    flags = []
    for word in words:
        if word in KEPT_WITH_VALUE:
            flags += [word, next(words)]
        elif word.startswith(KEPT):
            flags.append(word)
    return flags


def has_sources(unit: pathlib.Path, root: pathlib.Path) -> bool:
    """Returns true if a file that is compiled is a source of ours, or a batch of them."""
    names = [str(unit)]
    if "/CMakeFiles/" in str(unit):
        names = re.findall(r'^#include "([^"]+)"', unit.read_text(encoding="utf-8"), re.M)
    prefix = f"{root}/"
    return any(SOURCE.fullmatch(name.removeprefix(prefix)) for name in names)


def module_units(root: pathlib.Path, build: pathlib.Path) -> list[tuple[str, list[str]]]:
    """The module's sources that have locks, where BUILD is without it."""
    try:
        import nanobind
    except ImportError:
        print(f"{MODULE} is not looked at: no nanobind")
        return []
    includes = [root, *(root / folder / "include" for folder in ("io", "format", "db", "api"))]
    system = [sysconfig.get_path("include"), nanobind.include_dir(), build]
    flags = ["-std=c++20", *(f"-I{path}" for path in includes)]
    for path in system:
        flags += ["-isystem", str(path)]
    sources = []
    for source in sorted((root / MODULE).glob("*.cc")):
        header = source.with_suffix(".h")
        text = source.read_text(encoding="utf-8")
        text += header.read_text(encoding="utf-8") if header.is_file() else ""
        if "Mutex" in text:
            sources.append((str(source), flags))
    return sources


def find_units(root: pathlib.Path, build: pathlib.Path) -> list[tuple[str, list[str]]]:
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    units = [(entry["file"], parse_flags(entry["command"])) for entry in commands
             if has_sources(pathlib.Path(entry["file"]), root)]  # fmt: skip
    if units and not any(f"/{MODULE}/" in file for file, _ in units):
        units += module_units(root, build)
    return units


def check_unit(clang: str, file: str, flags: list[str]) -> str:
    """Clang's errors."""
    result = subprocess.run([clang, "-fsyntax-only", *CHECKS, *flags, file],
                            capture_output=True, text=True, check=False)  # fmt: skip
    return (result.stderr or f"{file}: {clang} failed\n") if result.returncode else ""


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    build = pathlib.Path(sys.argv[2]).resolve()
    units = find_units(root, build)
    if not units:
        print(f"no sources of {root} in {build}/compile_commands.json")
        return 1
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        errors = list(threads.map(lambda unit: check_unit(sys.argv[3], *unit), units))
    print("".join(errors), end="")
    print(f"{len(units)} files or batches of them looked at")
    return 1 if any(errors) else 0


if __name__ == "__main__":
    sys.exit(main())
