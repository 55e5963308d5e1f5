# SPDX-License-Identifier: Apache-2.0
"""Plants one breach of each house rule and sees it caught; a clean tree has none."""

import pathlib

import check_layers
import pytest

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = SPDX + "#pragma once\n"


@pytest.fixture
def house(tmp_path: pathlib.Path) -> pathlib.Path:
    for folder in ("io", "format", "db", "api/cli", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "io/status.h").write_text(HEADER)
    (tmp_path / "format/key.h").write_text(HEADER + '#include "io/status.h"\n')
    includes = '#include "format/key.h"\n#include "io/status.h"\n'
    (tmp_path / "db/store.cc").write_text(SPDX + includes)
    (tmp_path / "db/CMakeLists.txt").write_text("add_library(stepwell_db store.cc)\n")
    return tmp_path


def test_a_clean_house_has_no_problems(house: pathlib.Path) -> None:
    assert check_layers.check(house) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("io/a.h", HEADER + '#include "db/store.h"\n', "io/ may not include db/store.h"),
        ("format/a.h", HEADER + '#include "db/store.h"\n', "format/ may not include"),
        ("db/a.h", HEADER + '#include "api/x.h"\n', "db/ may not include"),
        ("db/a.h", HEADER + '#include "tests/sim/disk.h"\n', "product code includes"),
        ("format/a.h", HEADER + '#include "io/disk.h"\n', "only io's vocabulary"),
        ("format/a.h", HEADER + "#include <thread>\n", "format/ is pure"),
        ("io/a.h", HEADER + "#include <rocksdb/db.h>\n", "may include RocksDB"),
        ("db/a.h", HEADER + "#include <Python.h>\n", "only api/python/"),
        ("api/cli/a.h", HEADER + '#include "db/b.h"\n', "stands on <stepwell/...> alone"),
        ("api/cli/a.h", HEADER + "#include <io/status.h>\n", "stands on <stepwell/...> alone"),
        ("api/cli/a.h", HEADER + '#include "api/cpp/core.h"\n', "not on api/cpp/core.h"),
        ("db/a.h", HEADER + "std::mutex m;\n", "take a lock of io/mutex.h"),
        ("db/a.h", HEADER + "std::condition_variable c;\n", "take a lock of io/mutex.h"),
        ("api/cli/a.h", HEADER + "std::lock_guard<M> l(m);\n", "take a lock of io/mutex.h"),
        ("db/a.h", HEADER + '#include "b.h"\n', "write includes from the top"),
        ("db/a.h", "#pragma once\n", "must have SPDX"),
        ("db/a.h", SPDX, "no #pragma once"),
        ("db/a.h", HEADER + "// " + "x" * 98 + "\n", "101 columns"),
        ("db/a.h", HEADER + "int a; \n", "blanks at the end"),
        ("db/a.h", HEADER + "// " + "TO" + "DO: later\n", "without an issue"),
        ("db/a.h", HEADER + "// see " + "/ho" + "me/someone/x\n", "a path of one machine"),
        ("db/a.h", HEADER + "\n" * 500, "more than 500"),
        ("tests/a.h", HEADER + "\n" * 500, "more than 500"),
        ("db/lost_test.cc", SPDX, "no CMakeLists.txt has it"),
    ],
)
def test_a_breach_is_caught(house: pathlib.Path, name: str, text: str, message: str) -> None:
    (house / "db/b.h").write_text(HEADER)
    (house / name).write_text(text)
    problems = check_layers.check(house)
    assert len(problems) == 1, problems
    assert message in problems[0]
    assert name in problems[0]


def test_files_that_are_long_on_the_whole_are_caught(house: pathlib.Path) -> None:
    for name in ("a", "b", "c", "d"):
        (house / f"db/{name}.h").write_text(HEADER + "\n" * 130)
    problems = check_layers.check(house)
    assert len(problems) == 1
    assert "more than 120" in problems[0]


ROOMS = """stepwell_room(ground SOURCES layout.cc)
stepwell_room(log NEEDS ground
  SOURCES
    log/lock.cc)
stepwell_room(read NEEDS log
  SOURCES
    read/pieces.cc)
"""


@pytest.mark.parametrize(
    ("rooms", "name", "included", "message"),
    [
        (ROOMS, "db/read/a.h", "", ""),
        (ROOMS, "db/log/a.h", "db/read/pieces.h", "the room log may not include db/read/pieces.h"),
        (ROOMS, "db/layout.h", "db/log/lock.h", "the ground of db/ may not include db/log/lock.h"),
        (ROOMS, "db/cellar/a.h", "db/layout.h", "has no room cellar"),
        (ROOMS.replace("NEEDS ground", "NEEDS read"), "db/log/a.h", "db/read/pieces.h",
         "log needs read, which is not declared before it"),
        (ROOMS + "stepwell_room(mesh NEEDS log)", "db/mesh/a.h", "db/layout.h",
         "mesh needs log but includes nothing of it"),
    ],
)  # fmt: skip
def test_rooms(
    house: pathlib.Path, rooms: str, name: str, included: str, message: str
) -> None:
    for room in ("log", "read", "mesh", "cellar"):
        (house / "db" / room).mkdir()
    (house / "db/CMakeLists.txt").write_text("add_library(stepwell_db store.cc)\n" + rooms)
    (house / "db/layout.h").write_text(HEADER)
    (house / "db/log/lock.h").write_text(HEADER + '#include "db/layout.h"\n')
    (house / "db/read/pieces.h").write_text(HEADER + '#include "db/log/lock.h"\n')
    line = f'#include "{included}"\n' if included else ""
    (house / name).write_text(HEADER + line)
    problems = check_layers.check(house)
    assert len(problems) == (1 if message else 0), problems
    assert all(message in problem for problem in problems)


PYTHON_ROOMS = '[tool.stepwell]\nrooms = ["_low", "door", "stepwell"]\n'
UP = "line {}: imports stepwell.door, of a room above"
# The declared rooms, what door.py, _low/low.py and _low/below.py hold, and the breach.
PYTHON_IMPORTS = [
    (PYTHON_ROOMS, "import stepwell._low.low", "from . import below", "", ""),
    (PYTHON_ROOMS, "from ._low import low", "from .. import _stepwell", "", ""),
    (PYTHON_ROOMS, "x = 1", "import stepwell.door", "", UP.format(2)),
    (PYTHON_ROOMS, "x = 1", "def f():\n    from .. import door", "", UP.format(3)),
    (PYTHON_ROOMS, "x = 1", "class C:\n    def f(self):\n        import stepwell.door", "",
     UP.format(4)),
    (PYTHON_ROOMS, "x = 1", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
     "    from ..door import x", "", UP.format(4)),
    (PYTHON_ROOMS, "x = 1", "", "import typing\ndef f():\n    if typing.TYPE_CHECKING:\n"
     "        from ..door import x", UP.format(5)),
    (PYTHON_ROOMS, "x = 1", "from .. import x", "", "imports stepwell, of a room above"),
    (PYTHON_ROOMS.replace('"door", ', ""), "x = 1", "", "", "does not list the room door"),
    (PYTHON_ROOMS.replace("door", 'attic", "door'), "x = 1", "", "", "not there, attic"),
    (PYTHON_ROOMS, "from .door import x", "", "", "circle of imports: stepwell.door -> stepwell.d"),
    (PYTHON_ROOMS, "x = 1", "from . import below", "def f():\n    from .low import x",
     "a circle of imports: stepwell._low.below -> stepwell._low.low -> stepwell._low.below"),
]  # fmt: skip


@pytest.mark.parametrize(("rooms", "door", "low", "below", "message"), PYTHON_IMPORTS)
def test_python_imports(
    house: pathlib.Path, rooms: str, door: str, low: str, below: str, message: str
) -> None:
    package = house / "api/python/stepwell"
    (package / "_low").mkdir(parents=True)
    (house / "pyproject.toml").write_text(rooms)
    head = "# SPDX-License-Identifier: Apache-2.0\n"
    for name, text in (("__init__", ""), ("door", door), ("_low/__init__", ""), ("_low/low", low),
                       ("_low/below", below)):  # fmt: skip
        (package / f"{name}.py").write_text(head + text + "\n")
    problems = check_layers.check(house)
    assert len(problems) == (1 if message else 0), problems
    assert all(message in problem for problem in problems)


def test_a_test_commented_out_of_the_build_is_caught(house: pathlib.Path) -> None:
    (house / "db/crash_test.cc").write_text(SPDX)
    (house / "db/CMakeLists.txt").write_text("add_library(stepwell_db store.cc)\n# crash_test.cc\n")
    assert any("db/crash_test.cc: no CMakeLists.txt" in p for p in check_layers.check(house))


def test_a_marked_task_with_an_issue_is_fine(house: pathlib.Path) -> None:
    (house / "db/a.h").write_text(HEADER + "// " + "TO" + "DO(#12): later\n")
    assert check_layers.check(house) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.replace('a', 'b')\n",
        "import shutil\nkeep = shutil.rmtree\n",
        "from shutil import copytree\n",
        "import tempfile\nwith tempfile.TemporaryDirectory(): pass\n",
    ],
)
def test_a_door_beside_the_door_is_caught(house: pathlib.Path, text: str) -> None:
    package = house / "api/python/stepwell/_runtime"
    package.mkdir(parents=True)
    (house / "pyproject.toml").write_text('[tool.stepwell]\nrooms = ["_runtime"]\n')
    spdx = SPDX.replace("//", "#")
    (package / "durable.py").write_text(spdx + text)
    assert check_layers.check(house) == []
    (package / "other.py").write_text(spdx + text)
    (problem,) = check_layers.check(house)
    assert "other.py" in problem and "is for" in problem
