# SPDX-License-Identifier: Apache-2.0
"""The house rules that a program can check: check_layers.py [ROOT] [--rooms].

Include direction io <- format <- db <- api and among the rooms of db/, the program on the public
headers alone, imports of the Python package downward and in no circle, no test outside the build,
and small things. Prints one line for each breach and exits 1 when there is one.
--rooms prints the rooms, each with those that it includes and how often.
Tested by test_check_layers.py, which plants a breach of each rule.
"""

import ast
import collections
import pathlib
import re
import statistics
import sys
import tomllib
from collections.abc import Iterator

LAYERS = ["io", "format", "db", "api"]
FOLDERS = [*LAYERS, "tests", "fuzz", "bench"]
SKIPPED = {"__pycache__", "golden", "corpus"}
CODE = {".h", ".cc", ".py", ".capnp", ".cmake", ".pyi", ".sh", ""}

# format/ is pure: it may use of io/ only the vocabulary, and nothing that reaches the machine.
FORMAT_MAY_USE_OF_IO = {"io/bytes.h", "io/guard.h", "io/result.h", "io/status.h"}
IMPURE = {
    "chrono", "condition_variable", "fcntl.h", "filesystem", "fstream", "future", "iostream",
    "mutex", "random", "sys/mman.h", "sys/stat.h", "thread", "unistd.h",
}  # fmt: skip

# The program is built as a user's would be: on the installed headers and its own.
PUBLIC_HEADERS_ONLY = "api/cli/"

PYTHON_PACKAGE = "api/python/stepwell"
# The one module that makes, renames and removes files and directories above the store.
PYTHON_DOOR = f"{PYTHON_PACKAGE}/_runtime/durable.py"
BEHIND_THE_DOOR = {
    "os": {"link", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "symlink",
           "unlink"},
    "shutil": {"copytree", "move", "rmtree"},
    "tempfile": {"TemporaryDirectory", "mkdtemp"},
}
# Locks are io/mutex.h's, which clang checks (check_thread_safety.py).
LOCKS = "io/mutex.h"
STD_LOCK = re.compile(
    r"std::(?:\w*mutex|lock_guard|unique_lock|scoped_lock|shared_lock|condition_variable\w*)\b")
GROUND = "ground"  # the files of db/ itself
ROOM = re.compile(r"^stepwell_room\((\w+)(?: NEEDS ([\w ]+))?", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:home|Users|root|work|mnt)/[\w.-]")
TODO = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))")
SPDX = "SPDX-License-Identifier: Apache-2.0"

LINE_MAX = 100
FILE_LINES_MAX = 500
MEDIAN_LINES_MAX = 120  # of the product's files


def source_files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Every file of the house's folders and of the top, sorted; no build outputs."""
    for path in sorted(root.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            yield path
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.is_file() and not any(p in SKIPPED or p.startswith(".") for p in parts):
                yield path


def read_text(path: pathlib.Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None  # binary


def declared_rooms(root: pathlib.Path) -> dict[str, set[str]]:
    """The rooms of db/ and what each may include, as db/CMakeLists.txt declares them."""
    listing = root / "db" / "CMakeLists.txt"
    text = listing.read_text() if listing.is_file() else ""
    return {match[1]: set((match[2] or "").split()) for match in ROOM.finditer(text)}


def room_of(name: str) -> str | None:
    parts = name.split("/")
    if parts[0] != "db" or parts[1] == "include" or not name.endswith((".h", ".cc")):
        return None
    return parts[1] if len(parts) > 2 else GROUND


def room_includes(root: pathlib.Path) -> Iterator[tuple[str, str, str, str]]:
    """Each include that leaves a room: the place, the room, the included file, its room."""
    for path in sorted((root / "db").rglob("*")):
        name = path.relative_to(root).as_posix()
        room = room_of(name)
        if room is None:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            target = room_of(match[2]) if match else None
            if match and target is not None and target != room:
                yield f"{name}:{number}", room, match[2], target


def check_rooms(root: pathlib.Path) -> Iterator[str]:
    rooms = declared_rooms(root)
    # Each room may need only those before it: so the declarations cannot have a circle.
    known: set[str] = set()
    for room, needs in rooms.items():
        for need in sorted(needs - known):
            yield f"db/CMakeLists.txt: {room} needs {need}, which is not declared before it"
        known.add(room)
    unused = {(room, need) for room, needs in rooms.items() for need in needs - {GROUND}}
    for where, room, included, target in room_includes(root):
        unused.discard((room, target))
        if room == GROUND:
            yield f"{where}: the ground of db/ may not include {included}, which is in a room"
        elif room not in rooms:
            yield f"{where}: db/CMakeLists.txt has no room {room}"
        elif target != GROUND and target not in rooms[room]:
            yield f"{where}: the room {room} may not include {included} (db/CMakeLists.txt)"
    for room, need in sorted(unused):
        yield f"db/CMakeLists.txt: {room} needs {need} but includes nothing of it"


def print_rooms(root: pathlib.Path) -> None:
    counts = collections.Counter((room, to) for _, room, _, to in room_includes(root))
    for room in declared_rooms(root):
        to = [f"{b} ({n})" for (a, b), n in sorted(counts.items()) if a == room]
        print(f"{room:8} -> {', '.join(to) or 'nothing'}")


def python_imports(package: pathlib.Path) -> dict[str, dict[str, int]]:
    """Each module of a package: those of it that it imports, anywhere, and in which line. Compiled
    modules are none of ours."""
    modules: dict[str, pathlib.Path] = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    imports: dict[str, dict[str, int]] = {name: {} for name in modules}
    for name, path in modules.items():
        above = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                start = above[: len(above) - node.level + 1] if node.level else []
                base = ".".join([*start, *([node.module] if node.module else [])])
                compiled = [a for a in node.names if a.name == f"_{package.name}"]
                targets = [f"{base}.{a.name}" if f"{base}.{a.name}" in modules else base
                           for a in node.names if a not in compiled]  # fmt: skip
            for target in targets:
                if target in modules:
                    imports[name].setdefault(target, node.lineno)
    return imports


def check_python_rooms(root: pathlib.Path) -> Iterator[str]:
    """Imports run from a room of the package to one below it, as pyproject.toml declares them:
    also those inside a function, and those for types alone."""
    imports = python_imports(root / PYTHON_PACKAGE)
    settings = root / "pyproject.toml"
    text = settings.read_text() if settings.is_file() else ""
    rooms: list[str] = tomllib.loads(text).get("tool", {}).get("stepwell", {}).get("rooms", [])

    def room(module: str) -> str:
        return module.split(".")[1] if "." in module else module

    there = {room(module) for module in imports}
    for name in sorted(there.symmetric_difference(rooms)):
        what = "does not list the room" if name in there else "lists a room that is not there,"
        yield f"pyproject.toml: {what} {name}"
    for module, targets in imports.items():
        for target, line in targets.items():
            low, high = room(module), room(target)
            if {low, high} <= set(rooms) and rooms.index(high) > rooms.index(low):
                yield f"{PYTHON_PACKAGE}: {module}, line {line}: imports {target}, of a room above"


def check_python_imports(root: pathlib.Path) -> Iterator[str]:
    package = root / PYTHON_PACKAGE
    imports = python_imports(package)
    done: set[str] = set()
    path: list[str] = []  # each imports the next

    def visit(module: str) -> Iterator[str]:
        path.append(module)
        for target, line in imports[module].items():
            if target in path:
                circle = " -> ".join([*path[path.index(target) :], target])
                yield f"{PYTHON_PACKAGE}: {module}, line {line}: a circle of imports: {circle}"
            elif target not in done:
                yield from visit(target)
        path.pop()
        done.add(module)

    for module in imports:
        if module not in done:
            yield from visit(module)


def check_door(root: pathlib.Path) -> Iterator[str]:
    """A name changes by one rename and the sync of its directory, which nobody else gets right."""
    for path in sorted((root / PYTHON_PACKAGE).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name == PYTHON_DOOR:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            used = []
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = [(node.value.id, node.attr)]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                used = [(node.module or "", alias.name) for alias in node.names]
            for module, what in used:
                if what in BEHIND_THE_DOOR.get(module, ()):
                    yield f"{name}:{node.lineno}: {module}.{what} is for {PYTHON_DOOR} alone"


def check_includes(name: str, text: str, root: pathlib.Path) -> Iterator[str]:
    folder = name.split("/")[0]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, target = match[1] == '"', match[2]
        top = target.split("/")[0]
        where = f"{name}:{number}"
        if folder in LAYERS and top in FOLDERS and quoted:
            if top not in LAYERS:
                yield f"{where}: product code includes {target}"
            elif LAYERS.index(top) > LAYERS.index(folder):
                yield f"{where}: {folder}/ may not include {target} (io <- format <- db <- api)"
        if quoted and (root / name).parent.joinpath(target).is_file() and not (
            root / target
        ).is_file():
            yield f'{where}: write includes from the top: "{target}" is relative'
        if folder == "format":
            if top == "io" and target not in FORMAT_MAY_USE_OF_IO:
                yield f"{where}: format/ uses only io's vocabulary, not {target}"
            if target in IMPURE:
                yield f"{where}: format/ is pure: no <{target}>"
        if top == "rocksdb" and folder in LAYERS and not (
            folder == "db" or name.startswith("io/rocks_")
        ):
            yield f"{where}: only db/ and io/rocks_* may include RocksDB"
        if name.startswith(PUBLIC_HEADERS_ONLY) and top in FOLDERS and not target.startswith(
            PUBLIC_HEADERS_ONLY
        ):
            yield f"{where}: the program stands on <stepwell/...> alone, not on {target}"
        if (top == "nanobind" or target == "Python.h") and not name.startswith("api/python/"):
            yield f"{where}: only api/python/ may include {target}"


def check_locks(name: str, lines: list[str]) -> Iterator[str]:
    if name.split("/")[0] not in LAYERS or name == LOCKS:
        return
    for number, line in enumerate(lines, 1):
        for match in STD_LOCK.finditer(line):
            yield f"{name}:{number}: {match[0]}: take a lock of {LOCKS}, which the compiler checks"


def check_in_build(path: pathlib.Path, name: str, root: pathlib.Path) -> Iterator[str]:
    """A source that no CMakeLists.txt names is dead: LevelDB's crash test was, for years."""
    folder = path.parent
    while True:
        listing = folder / "CMakeLists.txt"
        if listing.is_file():
            lines = [line.split("#")[0] for line in listing.read_text().splitlines()]
            if re.search(rf"(?<![\w-]){re.escape(path.stem)}\b", "\n".join(lines)):
                return
        if folder == root:
            break
        folder = folder.parent
    yield f"{name}: no CMakeLists.txt has it in the build"


def check_file(path: pathlib.Path, root: pathlib.Path) -> Iterator[str]:
    name = path.relative_to(root).as_posix()
    text = read_text(path)
    if text is None:
        return
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            yield f"{name}:{number}: a path of one machine"
        if TODO.search(line) and path.name != "check_layers.py":
            yield f"{name}:{number}: TODO without an issue: write TODO(#12)"
    if path.suffix not in CODE or path.name == "LICENSE":
        return
    if len(lines) > FILE_LINES_MAX:
        yield f"{name}: {len(lines)} lines, more than {FILE_LINES_MAX}: split it"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_MAX:
            yield f"{name}:{number}: {len(line)} columns, more than {LINE_MAX}"
        if line != line.rstrip():
            yield f"{name}:{number}: blanks at the end of the line"
    if path.suffix in (".h", ".cc", ".py") and lines and SPDX not in "\n".join(lines[:3]):
        yield f"{name}: the first line must have {SPDX}"
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield f"{name}: no #pragma once"
    if path.suffix in (".h", ".cc"):
        yield from check_includes(name, text, root)
        yield from check_locks(name, lines)
    if path.suffix == ".cc":
        yield from check_in_build(path, name, root)


def check_median(root: pathlib.Path) -> Iterator[str]:
    files = [path for path in source_files(root)
             if path.suffix in (".h", ".cc", ".py") and path.relative_to(root).parts[0] in LAYERS]
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    median = statistics.median(lines) if lines else 0
    if median > MEDIAN_LINES_MAX:
        yield f"half of the files of {', '.join(LAYERS)} have {median} lines or more, " \
              f"more than {MEDIAN_LINES_MAX}"


def check(root: pathlib.Path) -> list[str]:
    problems = [problem for path in source_files(root) for problem in check_file(path, root)]
    return [*problems, *check_median(root), *check_rooms(root), *check_python_rooms(root),
            *check_python_imports(root), *check_door(root)]


def main() -> int:
    args = [arg for arg in sys.argv[1:] if arg != "--rooms"]
    root = pathlib.Path(args[0] if args else ".").resolve()
    if "--rooms" in sys.argv:
        print_rooms(root)
        return 0
    problems = check(root)
    print("\n".join(problems) if problems else "the house rules hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
