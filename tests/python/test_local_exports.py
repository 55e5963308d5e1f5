# SPDX-License-Identifier: Apache-2.0
"""Steps whose parts lie on disks of several machines, as Orbax checkpoints that all processes make
together: like those of the same state in a store on a disk that all share."""

import json
import pathlib
import shutil
import stat
from typing import Any

import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import tensorstore as ts
from equality import same
from group_odd import EXPORTS
from group_runs import machines, run
from group_values import EVERY_LEAF, LEAVES, values
from orbax.checkpoint import v1 as ocp_v1
from test_group_export import numpy_of, read_by_all
from test_local_disks import CLOSE, Act, all_fail, opened

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
]

ALL = list(EVERY_LEAF)  # one of them in pieces with chunk grids of their own
NOT_SHARED = "/proc/self/cwd/x"  # a path that names another directory on each process


def exported(dest: pathlib.Path | str, **how: Any) -> Act:
    return ["export_together", {"dest": str(dest), **how}]


def saved(step: int, leaves: list[str] = ALL) -> Act:
    return ["save", {"step": step, "leaves": {str(process): leaves for process in range(4)}}]


def want(step: int) -> dict[str, Any]:
    return {"count": step, "host": np.full(7, step), "name": "run",
            "params": {name: np.asarray(values(name, step)) for name in sorted(ALL)}}


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def arrays_below(item: pathlib.Path) -> dict[str, bytes]:
    """Metadata and elements of each array of an item, as TensorStore reads them."""
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{item}/"}).result()
    found = {}
    for key in store.list().result():
        path, _, name = key.decode().rpartition("/")
        if name in ("zarr.json", ".zarray"):
            array = ts.open({"driver": "zarr3" if name == "zarr.json" else "zarr",
                             "kvstore": {"driver": "ocdbt", "base": f"file://{item}/",
                                         "path": path + "/"},
                             "fill_missing_data_reads": False}).result()
            found[path] = store.read(key).result().value + array.read().result().tobytes()
    return found


def files_below(folder: pathlib.Path) -> dict[str, bytes | None]:
    """All but the chunks and what tells a time or a path."""
    return {str(path.relative_to(folder)):
            None if path.name in ("_CHECKPOINT_METADATA", "commit_success.txt", "manifest.ocdbt",
                                  "stepwell-digests")
            else path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.parent.name != "d"}


def test_four_machines(tmp_path: pathlib.Path) -> None:
    roots = machines(tmp_path, 0, 1, 2, 3)
    for said in run(roots, [
            opened(roots), saved(7), exported(tmp_path / "v1", leaves="numpy"),
            exported(tmp_path / "v0", step=7, layout="v0", leaves="numpy", unnamed_default=True),
            ["delete", {"steps": [7]}],
            ["import", {"from": str(tmp_path / "v0/7"), "how": {}}],
            ["check", {"step": 7, "leaves": ALL}], CLOSE], processes=4):
        assert said.gave(2) == ["copy", "numpy", len(ALL) + 3, str(tmp_path / "v1")]
        assert said.gave(3)[3] == str(tmp_path / "v0/7")
        assert [said.gave(5), said.gave(6)] == [7, "equal"]
    read_by_all(tmp_path / "v1", tmp_path / "v0", 7, want(7), 3)
    assert names_in(tmp_path / "v1/state/d") == [
        "chunks", "chunks-part-1", "chunks-part-2", "chunks-part-3", "nodes", "rewritten"]
    assert names_in(tmp_path / "v1") == [
        "_CHECKPOINT_METADATA", "commit_success.txt", "orbax.checkpoint", "state",
        "stepwell-digests"]


def test_exports_are_as_of_a_shared_disk(tmp_path: pathlib.Path) -> None:
    roots = machines(tmp_path, 0, 1)
    for said in run(roots, [opened(roots), ["odd_exports", {
            "shared": str(tmp_path / "shared"), "to": str(tmp_path)}], CLOSE]):
        assert said.gave(1) == "equal"
    for name in EXPORTS:
        local, shared = tmp_path / f"local-{name}", tmp_path / f"shared-{name}"
        assert files_below(local) == files_below(shared), name
        items = [path.parent.relative_to(shared) for path in shared.rglob("manifest.ocdbt")]
        assert items
        for item in items:
            assert arrays_below(local / item) == arrays_below(shared / item), (name, item)
    ours, theirs = (ocp_v1.load(tmp_path / f"{store}-numpy") for store in ("local", "shared"))
    assert {"floats", "pairs", "keys", "alone", "host", "prime", "values"} <= set(ours)
    assert same(numpy_of(ours), numpy_of(theirs))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "local-widened").rglob("*")
            if path.is_file()} == {0o640}
    manager = ocp_v0.CheckpointManager(tmp_path / "local-manager", options=(
        ocp_v0.CheckpointManagerOptions(step_prefix="ckpt", step_format_fixed_length=4,
                                        read_only=True)))
    with manager as opened_manager:
        read = opened_manager.restore(4, args=ocp_v0.args.StandardRestore())
    assert same(numpy_of(read), np.asarray(ours["floats"]))


def test_what_is_refused_and_what_is_damaged(tmp_path: pathlib.Path) -> None:
    roots = machines(tmp_path, 0, 1)
    to = tmp_path / "exports"
    to.mkdir()
    (to / "there").mkdir()
    refused: list[tuple[Act, list[str]]] = [
        (exported(to / "there"), ["is there already"]),
        (exported(to / "no" / "x"), ["no such directory"]),
        (exported(to / "x", to="npz"), ["archive"]),
        (exported(to / "x", mode="link"), ["link", "disks of several machines"]),
        (exported(to / "x", mode="reflink"), ["use mode copy"]),
        (exported(to / "x", path="nothing"), ["nothing"]),
        (exported(to / "x", step=5), ["no step 5"]),
        (exported(to / "x", each=[{}, {"dest": str(to / "y")}]),
         ["dest is", "process 1", str(to / "y")]),
        (exported(to / "x", each=[{}, {"zarr": 2}]), ["zarr is 2 in process 1 and 3"]),
        (exported(to / "x", each=[{}, {"step": 5}]), ["step is 5 in process 1 and 2"]),
        (exported(to / "x", progress={"1": {"text": "that is enough"}}), ["that is enough"]),
        (exported(NOT_SHARED, chdir=True), ["process 1 does not see", "all processes see"]),
    ]
    said = run(roots, [
        opened(roots, codec="raw"), saved(1, list(LEAVES)), saved(2),
        *[act for act, _ in refused],
        ["push", {"to": str(to / "bucket")}], ["view", {"path": str(to / "view")}],
        ["flip", {"step": 1, "leaves": {"1": ["large"]}}],
        ["flip", {"step": 2, "leaves": {"1": ["prime"]}}],
        exported(to / "flipped", step=1, leaves="numpy"), exported(to / "x"),
        exported(to / "large", path="params/large"), CLOSE])
    for number, (_, words) in enumerate(refused):
        all_fail(said, 3 + number, *words)
    at = 3 + len(refused)
    all_fail(said[:1], at + 1, "a view needs all parts")
    all_fail(said, at, "a push needs all parts")
    assert [one.gave(at + i) for one in said for i in (2, 3)] == [0, 0, 1, 1]
    # Chunks are taken as they are; who reads them finds what is wrong, and so does who decodes.
    for one in said:
        assert one.gave(at + 4)[0] == "copy"
        assert one.gave(at + 6)[2] == 1
    all_fail(said, at + 5, "params/prime", "checksum", "process_1")
    with pytest.raises(Exception, match="large.*Digest mismatch"):
        ocp_v1.load(to / "flipped")
    assert same(np.asarray(ocp_v1.load(to / "large")), values("large", 2))
    # A failed export has left nothing.
    assert names_in(to) == ["flipped", "large", "there"]
    assert [names_in(root.parent) for root in roots] == [["store"], ["store"]]
    metadata = json.loads((to / "flipped/_CHECKPOINT_METADATA").read_text())
    assert metadata["custom_metadata"] == {"at": 1}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_leaves_no_checkpoint(tmp_path: pathlib.Path, victim: int) -> None:
    roots = machines(tmp_path, 0, 1)
    to = tmp_path / "exports"
    to.mkdir()
    # One that is busy for longer than the others wait for an answer is not taken for dead.
    slow = exported(to / "slow", path="params/large", leaves="numpy",
                    progress={str(victim): {"seconds": 4}})
    died = run(roots, [opened(roots), saved(1), slow, exported(to / "x")],
               kill=[3, victim, "in_export"], timeout=3)
    assert died[victim].status == -9
    other = died[1 - victim].lines
    assert died[victim].gave(2) == other[2]["gave"]
    shutil.rmtree(to / "slow")
    if len(other) > 3:  # else JAX ended it
        assert other[3]["error"] == "PeerError", other[3]
    assert not (to / "x").exists()
    if victim == 1 and len(other) > 3:
        assert names_in(to) == []
    for said in run(roots, [opened(roots), exported(to / "x", leaves="numpy"), CLOSE]):
        assert said.gave(1)[0] == "copy"
    assert names_in(to) == ["x"]
    assert same(numpy_of(ocp_v1.load(to / "x")), want(1))
