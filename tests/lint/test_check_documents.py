# SPDX-License-Identifier: Apache-2.0
"""Plants one breach of each rule for documents and sees it caught; a clean tree has none."""

import pathlib

import check_documents
import pytest

DESIGN = """# The protocol

## Readers

**Two copies.** Frames are written twice.

## 3. Recovery
"""


@pytest.fixture
def house(tmp_path: pathlib.Path) -> pathlib.Path:
    for folder in ("io", "format", "db", "api", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "db/DESIGN.md").write_text(DESIGN)
    (tmp_path / "db/README.md").write_text("# db\n\n## Rooms\n\n## What it's, and `more`\n")
    for name in ("tests/db/kill_test.cc", "tests/db/soak/crash_soak.cc",
                 "tests/sim/mutants/x.mutant", "tests/python/test_group.py", "fuzz/fuzz_store.cc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("TEST_F(KillTest, LosesNothing) {}\n")
    return tmp_path


GUARDS = """| G1 | durable | tests/db/kill_test; tests/db/soak/crash_soak |
| G2 | more | tests/db (KillTest, KillTest.LosesNothing; mutants x), tests/python/test_group; \
fuzz_store |
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "See [readers](db/DESIGN.md#readers), [db](db) and [x](https://x.y/#z).\n"),
        ("README.md", "[more](db/README.md#what-its-and-more)\n\n```\n" + "x" * 120 + "\n```\n"),
        ("README.md", "| " + "x" * 120 + " |\n"),
        ("api/page.md", "--8<-- \"db/DESIGN.md\"\n\n[one](#readers), [its](page.md#readers)\n"),
        ("README.md", "Write `[a](b)`, or\n\n```\n[a](b)\n```\n"),
        ("io/a.h", "// What readers do (DESIGN.md,\n// \"Readers\").\n"),
        ("io/a.h", "// See section \"Two copies\" of DESIGN.md, and DESIGN.md section 3.\n"),
        ("db/a.h", "// Rooms are in README.md, \"Rooms\".\n"),
    ],
)
def test_a_clean_house_has_no_problems(house: pathlib.Path, name: str, text: str) -> None:
    (house / name).write_text(text)
    assert check_documents.check(house) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("README.md", "x" * 101 + "\n", "README.md:1: 101 columns"),
        ("README.md", "Nobody reads it.\n", "Nobody: say which"),
        ("README.md", "[x](db/NONE.md)\n", "db/NONE.md: there is no such file"),
        ("README.md", "[x](db/DESIGN.md#writers)\n", "#writers: there is no such section"),
        ("README.md", "| [x](#writers) |\n", "#writers: there is no such section"),
        ("io/a.h", "// DESIGN.md,\n// \"Writers\"\n", 'DESIGN.md has no section "Writers"'),
        ("io/a.h", "// section \"Writers\" of DESIGN.md\n", 'has no section "Writers"'),
        ("db/a.h", "// README.md, \"Halls\"\n", 'README.md has no section "Halls"'),
        ("io/a.h", "// DESIGN.md, sections 3 to 4\n", "DESIGN.md has no section 4"),
        ("io/a.h", "// never (rule 18)\n", "(rule 18) cites a list"),
    ],
)
def test_a_breach_is_caught(house: pathlib.Path, name: str, text: str, message: str) -> None:
    (house / name).write_text(text)
    problems = check_documents.check(house)
    assert len(problems) == 1, problems
    assert message in problems[0]


def test_guards_that_are_there_are_no_breach(house: pathlib.Path) -> None:
    (house / "db/DESIGN.md").write_text(DESIGN + "\n" + GUARDS)
    assert check_documents.check(house) == []


@pytest.mark.parametrize(
    ("name", "other", "missing"),
    [
        ("tests/db/soak/crash_soak", "tests/db/crash_soak", "tests/db/crash_soak"),
        ("tests/db/kill_test;", "tests/db/kill_test, pins_test;", "tests/db/pins_test"),
        ("test_group", "test_groups", "tests/python/test_groups"),
        ("(KillTest,", "(PinTest,", "PinTest"),
        ("KillTest.LosesNothing", "KillTest.LosesAll", "KillTest.LosesAll"),
        ("mutants x", "mutants y", "mutant y"),
        ("fuzz_store", "fuzz_stores", "fuzz/fuzz_stores"),
    ],
)
def test_a_guard_that_is_gone_is_caught(
        house: pathlib.Path, name: str, other: str, missing: str) -> None:
    (house / "db/DESIGN.md").write_text(DESIGN + "\n" + GUARDS.replace(name, other, 1))
    problems = check_documents.check(house)
    assert len(problems) == 1, problems
    assert problems[0].endswith(f": {missing}: there is no such test")


STATED = {
    "db/DESIGN.md": DESIGN + "\n| G1 | durable | it stays | tests/db/kill_test |\n"
                    "| G2 | whole steps | all of it | KillTest.LosesNothing |\n",
    "api/docs/pages/operations.md": "| G1 | durable | It stays. |\n| G2 | whole steps | All. |\n",
    "tests/sim/README.md": "| G1 durable, G2 whole steps | x, y |\n| G1 durable | x |\n",
}


def write_guarantees(house: pathlib.Path, name: str = "", old: str = "",
                     new: str = "") -> list[str]:
    for path, text in STATED.items():
        (house / path).parent.mkdir(parents=True, exist_ok=True)
        assert path != name or old in text
        (house / path).write_text(text.replace(old, new, 1) if path == name else text)
    return check_documents.check(house)


def test_the_same_guarantees_everywhere_are_no_breach(house: pathlib.Path) -> None:
    assert write_guarantees(house) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "messages"),
    [
        ("api/docs/pages/operations.md", "| G2 | whole steps | All. |\n", "",
         ['G2 "whole steps" of DESIGN.md is missing']),
        ("api/docs/pages/operations.md", "whole steps", "whole",
         ['G2 "whole steps" of DESIGN.md is missing', 'DESIGN.md has no G2 "whole"']),
        ("api/docs/pages/operations.md", "All. |\n", "All. |\n| G3 | fast | Yes. |\n",
         ['DESIGN.md has no G3 "fast"']),
        ("tests/sim/README.md", "whole steps", "steps", ['DESIGN.md has no G2 "steps"']),
        ("db/DESIGN.md", "KillTest.LosesNothing", "by hand", ["no test guards G2"]),
        ("db/DESIGN.md", "tests/db/kill_test", "tests/db/life_test",
         ["tests/db/life_test: there is no such test"]),
        ("db/DESIGN.md", "| G2 |", "| G3 |",
         ["G3 is where G2 belongs", 'G3 "whole steps" of DESIGN.md is missing',
          'DESIGN.md has no G2 "whole steps"', 'DESIGN.md has no G2 "whole steps"']),
    ],
)
def test_guarantees_that_differ_are_caught(house: pathlib.Path, name: str, old: str, new: str,
                                           messages: list[str]) -> None:
    problems = write_guarantees(house, name, old, new)
    assert len(problems) == len(messages), problems
    for problem, message in zip(problems, messages, strict=True):
        assert problem.endswith(message), problems
