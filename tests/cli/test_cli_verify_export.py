# SPDX-License-Identifier: Apache-2.0
"""`stepwell verify` of exports, and of checkpoints that Orbax wrote."""

import pathlib

import numpy as np
import orbax.checkpoint as ocp
import pytest
import stepwell
from orbax.checkpoint import v1 as ocp_v1
from program import document, error, run

# Orbax leaves its own event loops to the garbage collector, which warns of them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def store(tmp_path: pathlib.Path) -> stepwell.Store:
    with stepwell.open(tmp_path / "run") as opened:
        for step in (1, 2):
            opened.save(step, {"w": np.arange(300_000.0) * step, "name": "adam"}).result()
        yield opened


def flip(path: pathlib.Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


def test_an_export(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    place = tmp_path / "x_1"
    store.export(1, place, mode="copy", zarr=2)
    report = document("verify", place)
    assert report["ok"] and report["problems"] == []
    assert report["checkpoints"][0]["chunks"] > 1
    flip(place / "state/_strings.json", 10)
    report = document("verify", place, status=4)
    assert [problem["file"] for problem in report["problems"]] == [
        str(place / "state/_strings.json")]
    flip(place / "state/_strings.json", 10)
    flip(place / "state/d/chunks", 5000)
    result = run("verify", place)
    assert result.returncode == 4
    assert "damaged" in result.stdout and "state/d/chunks at 0" in result.stdout
    assert "checksum" in error("import", place, tmp_path / "other", status=4)
    with pytest.raises(stepwell.CorruptionError, match="checksum"):
        store.import_checkpoint(place, 7).result()


def test_the_root_of_a_manager(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    for step in (1, 2):
        store.export(step, tmp_path / "manager", layout="v0")
    assert len(document("verify", tmp_path / "manager")["checkpoints"]) == 2
    flip(tmp_path / "manager/2/state/_METADATA", 3)
    assert len(document("verify", tmp_path / "manager", status=4)["problems"]) == 1
    assert document("verify", tmp_path / "manager", "--step", "1")["ok"]
    error("verify", tmp_path / "manager", "--step", "3", status=3)


def test_what_orbax_wrote(tmp_path: pathlib.Path) -> None:
    ocp_v1.save(tmp_path / "theirs", {"w": np.zeros(3)})
    report = document("verify", tmp_path / "theirs", status=9)
    assert not report["ok"] and not report["checkpoints"][0]["checked"]
    assert "nothing to check" in run("verify", tmp_path / "theirs").stdout
    (tmp_path / "empty").mkdir()
    error("verify", tmp_path / "empty", status=3)


@pytest.mark.parametrize("zarr", [2, 3])
def test_orbax_does_not_mind_the_digests(
    store: stepwell.Store, tmp_path: pathlib.Path, zarr: int
) -> None:
    seen = []
    for name in ("with", "without"):
        store.export(1, tmp_path / f"{name}_v1", zarr=zarr)
        store.export(1, tmp_path / f"{name}_v0", layout="v0", zarr=zarr)
        if name == "without":
            (tmp_path / "without_v1/stepwell-digests").unlink()
            (tmp_path / "without_v0/1/stepwell-digests").unlink()
        metadata = ocp_v1.checkpointables_metadata(tmp_path / f"{name}_v1")
        with ocp.CheckpointManager(tmp_path / f"{name}_v0", item_names=("state",)) as manager:
            items = sorted(manager.item_metadata(1).keys())
            steps = manager.all_steps()
        seen.append((sorted(metadata.metadata), items, steps))
        loaded = ocp_v1.load(tmp_path / f"{name}_v1")
        assert np.array_equal(loaded["w"], np.arange(300_000.0)) and loaded["name"] == "adam"
    assert seen[0] == seen[1]
