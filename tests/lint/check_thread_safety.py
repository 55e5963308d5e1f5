# SPDX-License-Identifier: Apache-2.0
"""Lock discipline of the Python module, by clang: check_thread_safety.py ROOT CLANG.

Builds by clang, as that of tests/check, check all the rest (CMakeLists.txt) but are without the
module. Its sources that have locks are parsed, and io/thread_annotations.h holds: what a mutex
guards is used with the mutex held, what needs it held is called so, locks are given back. Prints
clang's errors and exits 1 when there is one. Tested by test_check_thread_safety.py.
"""

import pathlib
import subprocess
import sys
import sysconfig

import nanobind

CHECKS = ["-Wno-everything", "-Wthread-safety", "-Wthread-safety-beta", "-Werror"]
MODULE = "api/python"


def flags_of(root: pathlib.Path) -> list[str]:
    includes = [root, *(root / folder / "include" for folder in ("io", "format", "db", "api"))]
    flags = ["-std=c++20", *(f"-I{path}" for path in includes)]
    for path in (sysconfig.get_path("include"), nanobind.include_dir()):
        flags += ["-isystem", str(path)]
    return flags


def has_locks(source: pathlib.Path) -> bool:
    header = source.with_suffix(".h")
    text = source.read_text(encoding="utf-8")
    text += header.read_text(encoding="utf-8") if header.is_file() else ""
    return "Mutex" in text


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    sources = [source for source in sorted((root / MODULE).glob("*.cc")) if has_locks(source)]
    if not sources:
        print(f"no sources with locks in {root / MODULE}")
        return 1
    done = [subprocess.run([sys.argv[2], "-fsyntax-only", *CHECKS, *flags_of(root), source],
                           check=False) for source in sources]
    print(f"{len(sources)} files looked at")
    return 1 if any(each.returncode for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
