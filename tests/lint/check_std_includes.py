# SPDX-License-Identifier: Apache-2.0
"""The headers of standard names: check_std_includes.py [ROOT].

A file that uses `std::map` includes <map>, itself or through another file of the project. Unity
batches hide a header that is missing; builds without them, as those of the planted bugs, do not
have it. Prints one line for each file and exits 1 when there is one.
"""

import functools
import pathlib
import re
import sys

FOLDERS = ("io", "format", "db", "api", "tests", "fuzz", "bench")
NAMES = {
    "algorithm": "all_of any_of clamp copy count_if find find_if max min remove_if sort",
    "array": "array",
    "atomic": "atomic",
    "bit": "bit_cast countr_zero",
    "condition_variable": "condition_variable",
    "deque": "deque",
    "fstream": "ifstream ofstream",
    "functional": "function",
    "list": "list",
    "map": "map multimap",
    "memory": "make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "lock_guard mutex unique_lock",
    "numeric": "accumulate",
    "optional": "nullopt optional",
    "set": "multiset set",
    "span": "span",
    "sstream": "istringstream ostringstream stringstream",
    "string": "string to_string",
    "string_view": "string_view",
    "thread": "thread",
    "tuple": "tie tuple",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "variant": "variant visit",
    "vector": "vector",
}
HEADER_OF = {name: header for header, names in NAMES.items() for name in names.split()}
# <string> has std::string_view, too.
ALSO = {"string": {"string_view"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)
USE = re.compile(r"\bstd::(\w+)")
REMARK = re.compile(r"//[^\n]*")


def check(root: pathlib.Path) -> list[str]:
    texts = {path.relative_to(root).as_posix(): path.read_text()
             for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
             # Not what others installed, as bench/.venv-torch.
             if path.suffix in (".cc", ".h") and ".venv" not in path.relative_to(root).as_posix()}
    # Installed headers are <stepwell/…>, wherever they lie.
    ours = {name.split("/include/")[-1]: name for name in texts} | {name: name for name in texts}

    @functools.cache
    def included(name: str) -> frozenset[str]:
        """Standard headers, through all files of the project."""
        headers: set[str] = set()
        seen: set[str] = set()
        left = [name]
        while left:
            file = left.pop()
            if file in seen:
                continue
            seen.add(file)
            for header in INCLUDE.findall(texts[file]):
                if header in ours:
                    left.append(ours[header])
                else:
                    headers |= {header} | ALSO.get(header, set())
        return frozenset(headers)

    problems = []
    for name, text in texts.items():
        used = {HEADER_OF[use] for use in USE.findall(REMARK.sub("", text)) if use in HEADER_OF}
        problems += [f"{name}: includes no <{header}>, which has what it uses"
                     for header in sorted(used - included(name))]
    return problems


def main() -> int:
    problems = check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
    print("\n".join(problems) if problems else "each file has its standard headers")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
