# SPDX-License-Identifier: Apache-2.0
"""Lists the pushed steps below a place, and finds the newest of them."""

import shutil
from pathlib import Path

import pytest
import stepwell
from transfers import equal, other, places, saved, small_files, state

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("kind", ["path", "URL", "obstore local", "fsspec local", "fsspec memory",
                                  "fsspec URL"])
def test_the_steps_of_a_run(saved: stepwell.Store, other: stepwell.Store, tmp_path: Path, kind: str
                            ) -> None:
    place, keywords = places(tmp_path)[kind]
    below = keywords.pop("prefix", "")

    def at(name: str) -> tuple[object, dict[str, object]]:
        if isinstance(place, (str, Path)) and not below:
            return f"{place}/{name}", keywords
        return place, {**keywords, "prefix": f"{below}/{name}" if below else name}

    root = {**keywords, **({"prefix": below} if below else {})}
    for step in (8, 10, 9):
        saved.save(step, state(), if_exists="replace").result()
        where, more = at(f"runs/{step}")
        saved.push(step, where, **more)
    found = stepwell.pushed_steps(place, **root)
    assert [each.step for each in found] == [8, 9, 10]
    assert all(each.objects > 10 and each.size_bytes > 2_000_000 for each in found)
    assert [each.url.rpartition("/")[2] for each in found] == ["8", "9", "10"]
    assert other.pull(place, **root).step == 10
    equal(other.load(10), state())
    where, more = at("runs/8")
    assert [each.step for each in stepwell.pushed_steps(where, **more)] == [8]
    assert other.pull(where, **more).step == 8


def test_places_without_pushes(store: stepwell.Store, tmp_path: Path) -> None:
    assert stepwell.pushed_steps(tmp_path / "nowhere") == []
    assert stepwell.pushed_steps("memory://nothing-at-all") == []
    (tmp_path / "some").mkdir()
    (tmp_path / "some/file").write_text("x")
    assert stepwell.pushed_steps(tmp_path) == []
    with pytest.raises(stepwell.CheckpointNotFoundError, match="not a pushed step"):
        store.pull(tmp_path / "some")
    store.save(3, state()).result()  # what a push that was killed leaves is no step
    store.push(3, tmp_path / "whole/3")
    shutil.copytree(tmp_path / "whole/3", tmp_path / "some/9.orbax-checkpoint-tmp/checkpoint")
    assert stepwell.pushed_steps(tmp_path / "some") == []
    with pytest.raises(stepwell.CheckpointNotFoundError):
        store.pull(tmp_path / "some", 9)
    (tmp_path / "some/1").mkdir()
    (tmp_path / "some/1/stepwell.json").write_text("{")
    with pytest.raises(stepwell.CorruptionError, match="stepwell.json"):
        stepwell.pushed_steps(tmp_path)
    with pytest.raises(stepwell.CorruptionError, match="stepwell.json"):
        store.pull(tmp_path / "some")
