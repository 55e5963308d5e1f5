# SPDX-License-Identifier: Apache-2.0
"""The house rules for documents: check_documents.py [ROOT].

Markdown keeps to 100 columns and names the subject of a sentence (a process, a caller, no "who" or
"nobody"). Its links and their anchors exist, and so does what code and documents cite:
`DESIGN.md, "Readers"` and `FORMAT.md, section 4` name a section. The tests that DESIGN.md's tables
name are there. The guarantees have the same numbers and names in DESIGN.md, which names a test for
each, in the guide for operators, and in the list of planted bugs. Prints one line for each breach
and exits 1 when there is one. Tested by test_check_documents.py.
"""

import pathlib
import re
import sys
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_layers  # noqa: E402

LINE_MAX = 100
LINK = re.compile(r"\[[^\[\]]*\]\(([^()\s]+)\)")
SNIPPET = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
# A paragraph that begins in bold or italics has a name that may be cited: "**Copies.** Chain …".
RUN_IN = re.compile(r"^(?:- |\d\. )?(?:\*\*|\*)([A-Z][^*]+?)[.:]?(?:\*\*|\*)", re.MULTILINE)
COMMENT = re.compile(r"\s*\n[ \t]*(?://|#|\*)*[ \t]*")
CITED = re.compile(r'(?<![\w/.-])((?:\.\./|\w+/)*[A-Z]+\.md)`?,? (?:section )?"([^"]+)"')
CITED_BEHIND = re.compile(r'section "([^"]+)" of `?((?:\.\./|\w+/)*[A-Z]+\.md)')
CITED_NUMBERS = re.compile(r"((?:\.\./|\w+/)*[A-Z]+\.md)`?,? sections? (\d+)(?: to (\d+))?")
VAGUE = re.compile(r"\b(?:who|whoever|whom|nobody|somebody)\b", re.IGNORECASE)
RULE = re.compile(r"\([^()]*\brules? \d+[^()]*\)")
# In the last cell of a table: a file or a folder of tests; a further file of the folder named last;
# a test, or its suite; a mutant.
TEST_PATH = re.compile(r"(?:tests|fuzz)/[\w/.]+\w")
TEST_FILE = re.compile(r"(?:fuzz|test)_\w+|\w+_(?:test|soak)")
TEST_NAME = re.compile(r"([A-Z]\w*Test|Damage[A-Z]\w+)(?:\.(\w+))?")
MUTANTS = re.compile(r"\bmutants? ((?:\w+(?:, )?)+)")
# In DESIGN.md and the guide: "| G1 | whole steps | … |". In the list of planted bugs, which
# has some of them: "| G1 whole steps, G2 atomic changes | … |".
GUARANTEE = re.compile(r"^\| (G\d+) \| ([^|]+) \|", re.MULTILINE)
BROKEN = re.compile(r"(?<=[|,]) (G\d+) ([^|,]+?)(?=,| \|)")
OPERATIONS, PLANTED = "api/docs/pages/operations.md", "tests/sim/README.md"
KNOWN = {"DESIGN.md": "db/DESIGN.md", "FORMAT.md": "format/FORMAT.md"}


def prose(text: str) -> list[str]:
    """The lines; those of fenced blocks and of tables are empty."""
    lines, fenced = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        lines.append("" if fenced or fence or line.lstrip().startswith("|") else line)
        fenced = fenced != fence
    return lines


def sections(document: pathlib.Path, root: pathlib.Path) -> list[str]:
    """Its headings, and those of what it includes."""
    text = document.read_text(encoding="utf-8")
    found = HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for name in SNIPPET.findall(text):
        found += sections(root / name, root)
    return [heading.replace("`", "") for heading in found]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def check_prose(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(prose(text), 1):
        for word in VAGUE.findall(line):
            yield f"{name}:{number}: {word}: say which process, caller or reader"
        if len(line) > LINE_MAX:
            yield f"{name}:{number}: {len(line)} columns, more than {LINE_MAX}"


def check_links(path: pathlib.Path, name: str, text: str, root: pathlib.Path) -> Iterator[str]:
    lines = text.splitlines()
    outside_code = [line if line.startswith("|") or kept else ""
                    for line, kept in zip(lines, prose(text), strict=True)]
    for number, line in enumerate(outside_code, 1):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue  # another site
            file, _, fragment = target.partition("#")
            there = path.parent / file if file else path
            if not there.exists():
                yield f"{name}:{number}: {target}: there is no such file"
            elif fragment and fragment not in map(anchor, sections(there, root)):
                yield f"{name}:{number}: {target}: there is no such section"


def cited_document(name: str, path: pathlib.Path, root: pathlib.Path) -> pathlib.Path | None:
    """Returns the document that `README.md` means there: that of the folder, or of one above."""
    if name in KNOWN and (root / KNOWN[name]).is_file():
        return root / KNOWN[name]
    for folder in [path.parent, *path.parent.parents]:
        if (folder / name).is_file():
            return folder / name
        if folder == root:
            break
    return None


def check_citations(path: pathlib.Path, name: str, text: str, root: pathlib.Path) -> Iterator[str]:
    joined = COMMENT.sub(" ", text)  # a citation may go on in the next line of a comment
    named = [(document, section) for document, section in CITED.findall(joined)]
    named += [(document, section) for section, document in CITED_BEHIND.findall(joined)]
    for document, section in named:
        found = cited_document(document, path, root)
        whole = "" if found is None else found.read_text(encoding="utf-8")
        titles = {re.sub(r"^\d+\. ", "", title) for title in HEADING.findall(whole)}
        if section not in titles | set(RUN_IN.findall(whole)):
            yield f'{name}: {document} has no section "{section}"'
    for document, first, last in CITED_NUMBERS.findall(joined):
        found = cited_document(document, path, root)
        whole = "" if found is None else found.read_text(encoding="utf-8")
        for number in {first, last or first}:
            if not re.search(rf"^#+ {number}\. ", whole, re.MULTILINE):
                yield f"{name}: {document} has no section {number}"
    for rule in RULE.findall(joined):
        yield f"{name}: {rule} cites a list that is not here"


def there_is(root: pathlib.Path, path: str) -> bool:
    return any((root / (path + suffix)).exists() for suffix in ("", ".cc", ".py"))


def missing_tests(cell: str, root: pathlib.Path, sources: str) -> Iterator[str]:
    """Returns the tests that a cell like `tests/db/kill_test, nth_test; StoreTest.Name` names and
    that are not there."""
    for names in MUTANTS.findall(cell):
        for name in filter(None, names.split(", ")):
            if not (root / f"tests/sim/mutants/{name}.mutant").is_file():
                yield f"mutant {name}"
    folder = ""
    for word in re.findall(r"[\w./]+", MUTANTS.sub("", cell)):
        word = word.rstrip(".")
        if TEST_PATH.fullmatch(word):
            folder = word if (root / word).is_dir() else word.rpartition("/")[0]
            if not there_is(root, word):
                yield word
        elif TEST_FILE.fullmatch(word):
            path = f"fuzz/{word}" if word.startswith("fuzz_") else f"{folder}/{word}"
            if not there_is(root, path):
                yield path
        elif name := TEST_NAME.fullmatch(word):
            suite, test = name.groups()
            pattern = rf"\bTEST(?:_\w)?\({suite}, {test or ''}" + (r"\)" if test else "")
            if not re.search(pattern, sources):
                yield word


def check_guards(name: str, text: str, root: pathlib.Path) -> Iterator[str]:
    """Checks the last cell of each row of a table, where that is one of tests."""
    rows = [(number, line) for number, line in enumerate(text.splitlines(), 1)
            if line.startswith("| ") and re.search(r"tests/|fuzz_|Test\b", line)]
    if not rows:
        return
    sources = "\n".join(path.read_text(encoding="utf-8")
                        for path in sorted((root / "tests").rglob("*_test.cc")))
    for number, line in rows:
        for missing in missing_tests(line.rstrip(" |").rpartition("|")[2], root, sources):
            yield f"{name}:{number}: {missing}: there is no such test"


def check_guarantees(root: pathlib.Path) -> Iterator[str]:
    """Compares the lists of guarantees. A page that is not there is the business of links to it."""
    texts = {name: (root / name).read_text(encoding="utf-8")
             for name in (KNOWN["DESIGN.md"], OPERATIONS, PLANTED) if (root / name).is_file()}
    design = texts.get(KNOWN["DESIGN.md"], "")
    wanted = GUARANTEE.findall(design)
    for number, (label, _) in enumerate(wanted, 1):
        if label != f"G{number}":
            yield f"{KNOWN['DESIGN.md']}: {label} is where G{number} belongs"
    for line in design.splitlines():
        cell = line.rstrip(" |").rpartition("|")[2]
        named = GUARANTEE.match(line)
        if named and not any(kind.search(cell) for kind in (TEST_PATH, TEST_FILE, TEST_NAME)):
            yield f"{KNOWN['DESIGN.md']}: no test guards {named[1]}"
    if OPERATIONS in texts:
        stated = GUARANTEE.findall(texts[OPERATIONS])
        for label, name in wanted:
            if (label, name) not in stated:
                yield f'{OPERATIONS}: {label} "{name}" of DESIGN.md is missing'
        for label, name in stated:
            if (label, name) not in wanted:
                yield f'{OPERATIONS}: DESIGN.md has no {label} "{name}"'
    for row in re.findall(r"^\| G\d+ .*", texts.get(PLANTED, ""), re.MULTILINE):
        for label, name in BROKEN.findall(row.rsplit("|", 2)[0] + "|"):
            if (label, name) not in wanted:
                yield f'{PLANTED}: DESIGN.md has no {label} "{name}"'


def check(root: pathlib.Path) -> list[str]:
    problems = list(check_guarantees(root))
    for path in check_layers.source_files(root):
        name = path.relative_to(root).as_posix()
        text = check_layers.read_text(path)
        if text is None or "check_documents" in name:
            continue
        if path.suffix == ".md":
            problems += check_prose(name, text)
            problems += check_links(path, name, text, root)
        if name == KNOWN["DESIGN.md"]:
            problems += check_guards(name, text, root)
        problems += check_citations(path, name, text, root)
    return problems


def main() -> int:
    problems = check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
    print("\n".join(problems) if problems else "the documents hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
