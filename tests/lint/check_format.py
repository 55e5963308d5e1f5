# SPDX-License-Identifier: Apache-2.0
"""Fails when clang-format would change a file of C++ or JavaScript:
check_format.py ROOT CLANG_FORMAT [--fix].

Version 14 decides, on every machine: other versions lay out a few constructs differently.
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_layers  # noqa: E402


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    clang_format = sys.argv[2]
    ask = [clang_format, "--version"]
    version = subprocess.run(ask, capture_output=True, text=True, check=True)
    if " version 14." not in version.stdout:
        print(f"clang-format 14 is needed, this is: {version.stdout.strip()}")
        return 1
    files = [str(path) for path in check_layers.source_files(root)
             if path.suffix in (".h", ".cc", ".js") and path.parent.name != "vendor"]
    if not files:
        print(f"no C++ or JavaScript files below {root}")
        return 1
    mode = ["-i"] if "--fix" in sys.argv[3:] else ["--dry-run", "-Werror"]
    result = subprocess.run([clang_format, "--style=file", *mode, *files], check=False)
    print(f"{len(files)} files looked at")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
