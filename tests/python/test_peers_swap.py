# SPDX-License-Identifier: Apache-2.0
"""Other libraries' tests get the facades (tests/peers)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

LIBRARY = {
    "lib/__init__.py": "from lib import things\nfrom lib._src.inner import Thing, work\n",
    "lib/things.py": "from lib._src.inner import Thing\n",
    "lib/_src/__init__.py": "",
    "lib/_src/inner.py": "class Thing: pass\ndef work(): return Thing()\ndef own(): return 1\n",
    "lib/thing_checks.py": "import lib as top\nfrom lib import things\nfrom lib._src import inner\n"
                         "from lib._src.inner import Thing\nimport lib._src.inner\n",
    "facade.py": "import lib\nfrom lib import things\nclass Thing(lib.Thing): pass\n"
                 "Things = [Thing]\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in LIBRARY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "peers")
    before, path = {*sys.modules}, [*sys.meta_path]
    yield tmp_path
    sys.meta_path[:] = path
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_a_test_has_the_facade_by_every_path_and_the_library_has_itself(folder: Path) -> None:
    import facade
    import lib
    import swap

    swap.install({"lib": "facade"}, "_checks$")
    import lib.thing_checks as test

    for found in (test.top.Thing, test.things.Thing, test.inner.Thing, test.Thing,
                  test.lib._src.inner.Thing):
        assert found is facade.Thing
    assert test.inner.own() == 1 and test.top.work is lib.work
    assert type(lib._src.inner.work()) is lib.Thing is not facade.Thing
    with mock.patch.object(test.inner, "Thing", 3):
        assert lib._src.inner.Thing == 3
    assert lib._src.inner.Thing is lib.Thing
