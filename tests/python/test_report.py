# SPDX-License-Identifier: Apache-2.0
"""The document of a report against the store's own interface, over random stores; and its schema.
"""

from __future__ import annotations

import json
import math
import pathlib
import random
import shutil
from typing import Any

import jax
import jsonschema
import numpy as np
import pytest
from group_runs import run
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stepwell
from stepwell import policy
from stepwell._report import document as documents
from stepwell._report import leaves, steps

DTYPES = ["float32", "bfloat16", "float64", "int8", "complex64", "bool"]
STATISTICS = ("norm", "min", "max", "mean", "changed", "nonfinite", "elements")


def report(store: stepwell.Store) -> dict[str, Any]:
    """The document as JSON has it, which its schema describes."""
    made = json.loads(json.dumps(documents.document_of(store), allow_nan=False))
    jsonschema.Draft202012Validator(documents.schema()).validate(made)
    return dict(made)


def array_of(rng: random.Random, dtype: str) -> np.ndarray:
    shape = rng.choice([(), (0, 3), (7,), (33, 5), (300, 1100)])
    noise = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(shape) * 10
    with np.errstate(all="ignore"):
        made = np.array(noise).astype(jax.numpy.dtype(dtype))
    if dtype != "int8" and dtype != "bool" and made.size > 3 and rng.random() < 0.3:
        made.reshape(-1)[1], made.reshape(-1)[2] = np.nan, np.inf
    return made


class RandomRun:
    """A store of random sessions: items and leaves come and go, some change, steps are replaced,
    deleted, pinned, tainted and verified; with statistics and differences, or without."""

    def __init__(self, path: pathlib.Path, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.items: dict[str, dict[str, Any]] = {"state": {"w": np.arange(5.0)}}
        self.next = 0
        for _ in range(3):
            keep = self.rng.choice([None, policy.LatestN(12) | policy.EveryN(10),
                                    policy.BestN(3, "loss") | policy.LatestN(8)])
            with stepwell.open(path, statistics=self.rng.random() < 0.6, keep=keep,
                               delta=self.rng.random() < 0.5) as store:
                for _ in range(self.rng.randrange(2, 9)):
                    self.save(store)
                self.mark(store)

    def save(self, store: stepwell.Store) -> None:
        rng = self.rng
        for name in ("state", "opt", "more"):
            if name in self.items and name != "state" and rng.random() < 0.2:
                del self.items[name]
            elif name in self.items or rng.random() < 0.2:
                tree = self.items.setdefault(name, {})
                for _ in range(rng.randrange(3)):
                    key = rng.choice(["a", "b/c", "0", "nested", "<b>"])
                    tree[key] = rng.choice([array_of(rng, rng.choice(DTYPES)), rng.random(), "text",
                                            {"in": [array_of(rng, "float32"), 3]}])
                if len(tree) > 1 and rng.random() < 0.1:
                    tree.popitem()
        trees = {name: tree for name, tree in self.items.items() if tree}
        metrics = rng.choice([None, {"loss": rng.choice([rng.random(), math.nan, math.inf]),
                                     "accuracy": rng.random(), "note": "x", "flag": True}])
        number = rng.choice([self.next, max(self.next - 1, 0)])
        self.next = max(self.next, number) + rng.choice([1, 1, 1, 5, 100])
        try:
            store.save(number, items=trees, metrics=metrics, if_exists="replace").result()
        except stepwell.StepPinnedError:
            pass

    def mark(self, store: stepwell.Store) -> None:
        there = store.steps()
        for step in self.rng.sample(there, min(3, len(there))):
            self.rng.choice([store.pin, lambda step: store.taint(step, f"why {step}"),
                             store.verify])(step)
        free = [step for step in there if step not in store.pinned_steps()]
        if len(free) > 3:
            store.delete(self.rng.choice(free))


def check_steps(store: stepwell.Store, made: dict[str, Any]) -> None:
    columns = made["steps"]
    numbers = store.steps()
    assert columns["number"] == numbers and columns["total"] == columns["shown"] == len(numbers)
    views = [store[number] for number in numbers]
    assert columns["time_s"] == pytest.approx([view.time.timestamp() for view in views], abs=1e-5)
    for name, field in (("logical_bytes", "nbytes"), ("stored_bytes", "stored_bytes"),
                        ("owned_bytes", "owned_bytes")):
        assert columns[name] == [getattr(view, field) for view in views], name
    assert columns["save_s"] == [view.duration_s for view in views] and all(columns["save_s"])
    assert columns["leaves"] == [len(view._source.tree.leaves(view._source.tree.top))
                                 for view in views]
    assert [numbers[i] for i in columns["pinned"]] == store.pinned_steps()
    assert {numbers[int(i)]: why for i, why in columns["taint"].items()} == store.tainted_steps()
    freed = store.frees_bytes()
    assert columns["frees_bytes"] == [freed[number] for number in numbers]
    for name, sizes in made["items"].items():
        for i, view in enumerate(views):
            (item,) = [each for each in view._source.reader.items if each.name == name] or [None]
            for column in ("logical_bytes", "stored_bytes", "nonfinite"):
                assert sizes[column][i] == (None if item is None else getattr(item, column))
    assert {name for view in views for name in view.items} == set(made["items"])
    assert made["store"]["latest"] == store.latest
    assert made["space"] == store.stats()["space"]


def check_metrics(store: stepwell.Store, made: dict[str, Any]) -> None:
    given = store.steps(metrics=True)
    assert set(made["metrics"]) <= {"loss", "accuracy"}
    for name, column in made["metrics"].items():
        for each, value in zip(given.values(), column, strict=True):
            want = None if each is None else each[name]
            if want is not None and not math.isfinite(want):
                want = "NaN" if math.isnan(want) else "Infinity"
            assert value == want
        for end in ("min", "max"):
            best = made["best"][name][end]
            assert (None if best is None else made["steps"]["number"][best]) == store.best(
                name, end)


def check_retention(store: stepwell.Store, made: dict[str, Any]) -> None:
    found = store.retention()
    assert " | ".join(made["retention"]["rules"]) == (repr(found.policy) if found.policy else "")
    numbers = made["steps"]["number"]
    assert [numbers[i] for i in made["steps"]["goes_next"]] == found.goes_next
    if found.policy is not None:
        for kept, step in zip(made["steps"]["kept_by"], found.steps, strict=True):
            assert [made["retention"]["rules"][i] for i in kept] == [
                repr(part) for part in step.kept_by]
    assert made["retention"]["warnings"] == found.warnings
    distances = {after - before for before, after in zip(numbers, numbers[1:])}
    if distances:
        assert made["retention"]["interval"] == min(distances)
        assert made["retention"]["gaps"] == [
            [before, after] for before, after in zip(numbers, numbers[1:])
            if after - before > min(distances)]


def content_of(view: stepwell.StepView, path: str) -> tuple[Any, ...]:
    value = view[path]
    if isinstance(value, stepwell.ArrayView):
        array = np.asarray(value)
        return array.dtype.name, array.shape, array.tobytes()
    return type(value).__name__, repr(value)


def rounded(number: float | None) -> Any:
    if number is None:
        return None
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return float(f"{number:.4e}")


def check_leaves(store: stepwell.Store, made: dict[str, Any]) -> None:
    part = made["leaves"]
    sampled = [made["steps"]["number"][i] for i in part["steps"]]
    views = [store[number] for number in sampled]
    only_state = all(view.items == ["state"] for view in views)
    trees = []
    for view in views:
        own = view.items == ["state"]
        trees.append({path if own == only_state else f"state/{path}" if path else "state": info
                      for path, info in view.tree.items()})
    assert set(part["path"]) == {path for tree in trees for path in tree}
    assert part["path"][:len(trees[-1])] == list(trees[-1])  # in the newest one's key order
    for row, path in enumerate(part["path"]):
        newest = max(i for i, tree in enumerate(trees) if path in tree)
        info = trees[newest][path]
        assert part["kind"][row] == info.kind
        assert part["dtype"][row] == (info.dtype.name if info.dtype is not None else None)
        assert part["shape"][row] == (list(info.shape) if info.shape is not None else None)
        assert part["item"][row] == ("state" if only_state else path.split("/")[0])
        contents = [content_of(view, path) if path in tree else None
                    for view, tree in zip(views, trees, strict=True)]
        for one, (number, content) in enumerate(zip(part["content"][row], contents, strict=True)):
            assert (number is None) == (content is None)
            for other in range(one):
                same = content is not None and content == contents[other]
                assert (number is not None and number == part["content"][row][other]) == same
        check_statistics(part, row, [tree.get(path) for tree in trees])


def check_statistics(part: dict[str, Any], row: int, infos: list[stepwell.LeafInfo | None]) -> None:
    for column, info in enumerate(infos):
        found = None if info is None else info.statistics
        if part["statistics"] is None:
            assert found is None
            continue
        got = {name: part["statistics"][name][row][column] for name in STATISTICS}
        if found is None:
            assert set(got.values()) == {None}
            continue
        finite = found.elements - found.nonfinite
        assert got == {
            "norm": rounded(found.norm), "min": rounded(found.min), "max": rounded(found.max),
            "mean": rounded(found.sum / finite) if finite else None,
            "changed": None if found.changed is None else rounded(
                found.changed / max(found.elements, 1)),
            "nonfinite": found.nonfinite, "elements": found.elements}


@pytest.mark.parametrize("seed", range(12))
def test_random_stores(path: pathlib.Path, seed: int) -> None:
    RandomRun(path, seed)
    with stepwell.open(path, "r") as store:
        made = report(store)
        check_steps(store, made)
        check_metrics(store, made)
        check_retention(store, made)
        check_leaves(store, made)
        assert made["health"]["damaged"] == [] and made["limits"] == []


def test_no_step_and_one(path: pathlib.Path) -> None:
    with stepwell.open(path) as store:
        made = report(store)
        assert made["steps"]["number"] == [] and made["store"]["latest"] is None
        assert made["leaves"]["path"] == [] and made["limits"] == []
        store.save(7, np.arange(3.0)).result()
        made = report(store)
        assert made["leaves"]["path"] == [""] and made["leaves"]["steps"] == [0]
        assert made["retention"] == {"rules": [], "warnings": [], "interval": None, "gaps": []}


def test_names_and_numbers_that_json_or_javascript_lack(path: pathlib.Path) -> None:
    names = ["<script>alert(1)</script>", "\u202eRTL", "\x00\x1b[31m", "x" * 5000, "\udcff", "a/b",
             "__proto__", "", "日本"]
    huge = 2**63 - 1
    with stepwell.open(path, statistics=True) as store:
        tree = {name: np.array([np.nan, np.inf, i], "f4") for i, name in enumerate(names)}
        tree["large"] = np.array([1e300, -1e300])  # whose norm is no number
        store.save(huge, tree, metrics={"<b>": -math.inf, "big": 10**400, "__proto__": 1}).result()
        store.save(2**53 - 1, {"x": 1}).result()
        store.taint(huge, "<img src=x>\u202e")
        made = report(store)
        assert made["steps"]["number"] == [2**53 - 1, str(huge)]
        assert made["store"]["latest"] == 2**53 - 1
        assert made["metrics"] == {"<b>": [None, "-Infinity"], "big": [None, "Infinity"],
                                   "__proto__": [None, 1.0]}
        assert made["best"]["<b>"] == {"min": None, "max": None}
        assert made["steps"]["taint"] == {"1": "<img src=x>\u202e"}
        for name in names:
            (row,) = [i for i, each in enumerate(made["leaves"]["path"]) if each in store[huge]
                      and np.array_equal(store[huge][each], tree[name], equal_nan=True)]
            assert made["leaves"]["statistics"]["max"][row] == [None, float(names.index(name))]
        row = made["leaves"]["path"].index("large")
        assert made["leaves"]["statistics"]["norm"][row] == [None, "Infinity"]


def destroy(path: pathlib.Path, step: int) -> None:
    """Damages each copy of a step's record."""
    marks = 0
    for segment in sorted((path / "segments").iterdir()):
        data = segment.read_bytes()
        marks += data.count(b"marker-%d-" % step)
        segment.write_bytes(data.replace(b"marker-%d-" % step, b"Marker-%d-" % step))
    assert marks >= 2


def save_marked(store: stepwell.Store, step: int) -> None:
    store.save(step, {"w": np.full(9, step)}, metrics={"loss": 1.0},
               metadata={"mark": f"marker-{step}-"}).result()


def test_damaged_records(path: pathlib.Path) -> None:
    for step in range(6):
        with stepwell.open(path) as store:
            save_marked(store, step)
    destroy(path, 2)
    with stepwell.open(path, "r") as store:
        with pytest.raises(stepwell.CorruptionError):
            store.load(2)
        made = report(store)
        assert list(made["steps"]["damaged"]) == ["2"]
        (damage,) = made["health"]["damaged"]
        assert damage["step"] == 2 and "checksum" in damage["what"]
        assert made["metrics"]["loss"] == [1.0, 1.0, None, 1.0, 1.0, 1.0]
        assert made["leaves"]["content"] == [[0, 1, None, 2, 3, 4]]
        assert made["steps"]["frees_bytes"][2] is None
        assert made["steps"]["frees_bytes"][3] == store.frees_bytes(3)[3]


def test_damaged_leaves_of_a_step_whose_metrics_are_whole(path: pathlib.Path) -> None:
    """Records of many leaves lie in frames of their own, before the one with the metrics."""
    names = [np.random.default_rng(i).bytes(30).hex() for i in range(5000)]
    for step in range(3):
        with stepwell.open(path) as store:
            store.save(step, {name: step for name in names}, metrics={"loss": 1.0},
                       metadata={"mark": f"marker-{step}-"}).result()
    segment = sorted((path / "segments").iterdir())[1]
    data = segment.read_bytes()
    piece = data[100_000:100_020]  # of a frame, which has a copy
    assert data.count(piece) == 2
    segment.write_bytes(data.replace(piece, piece[::-1]))
    with stepwell.open(path, "r") as store:
        made = report(store)
        assert [*made["steps"]["damaged"]] == ["1"] and made["metrics"]["loss"] == [1.0] * 3
        assert {tuple(row) for row in made["leaves"]["content"]} == {(0, None, 1)}


def test_lost_records(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """What is not in a catalog yet is found by reading the log, in which a record is damaged."""
    with stepwell.open(path) as store:
        for step in range(5):
            save_marked(store, step)
        shutil.copytree(path, tmp_path / "killed")
    destroy(tmp_path / "killed", 3)
    with stepwell.open(tmp_path / "killed", "r") as store:
        with pytest.raises(stepwell.CorruptionError) as lost:
            store.load()
        made = report(store)
        assert made["health"]["losses"] == [str(lost.value)]
        assert made["steps"]["number"] == [0, 1, 2, 4]


def of_leaf(made: dict[str, Any], path: str) -> dict[str, Any] | None:
    number = made["leaves"]["sharding"][made["leaves"]["path"].index(path)]
    return None if number is None else dict(made["shardings"][number])


def test_shardings(path: pathlib.Path) -> None:
    (device,) = jax.devices()[:1]
    mesh = Mesh(np.array([[device]]), ("data", "model"))
    tree = {"one": jax.device_put(np.zeros((8, 4)), NamedSharding(mesh, PartitionSpec("model"))),
            "both": jax.device_put(np.zeros((8, 4)), NamedSharding(
                mesh, PartitionSpec(None, ("data", "model")))),
            "host": np.zeros(3), "single": jax.device_put(np.zeros(3), device)}
    with stepwell.open(path) as store:
        store.save(0, tree).result()
        made = report(store)
    assert of_leaf(made, "host") is None
    assert of_leaf(made, "one") == {
        "text": "P('model') over data=1, model=1", "axes": ["data", "model"],
        "mesh": {"data": 1, "model": 1}, "spec": [["model"]], "memory_kind": None,
        "devices": [device.id]}
    assert of_leaf(made, "both")["spec"] == [[], ["data", "model"]]  # type: ignore[index]
    single = of_leaf(made, "single")
    assert single is not None and single["mesh"] is None
    assert single["text"] == f"SingleDeviceSharding on {device}"


def test_a_step_of_several_processes(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "store"
    names = ["rows", "whole", "scalar", "empty", "large", "prime"]
    acts = [["save", {"step": step, "leaves": {"0": names, "1": names}}] for step in (1, 2)]
    for process in run(root, [["open", {}], *acts, ["close", {}]]):
        assert process.status == 0, process.output[-2000:]
    with stepwell.open(root, "r") as store:
        made = report(store)
        check_steps(store, made)
        check_leaves(store, made)
    rows = of_leaf(made, "params/rows")
    assert rows is not None and rows["mesh"] == {"x": 2, "y": 2} and len(rows["devices"]) == 4
    assert rows["spec"] == [["x"]] and rows["text"] == "P('x') over x=2, y=2"
    (root / "process_1").rename(root / "away")
    with stepwell.open(root, "r") as store:
        made = report(store)
        assert made["steps"]["stored_bytes"] == [None, None]
        assert "part 1 is missing" in made["steps"]["damaged"]["1"]


def test_a_pushed_run(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with stepwell.open(path, statistics=True) as store:
        for step in range(3):
            store.save(step, {"w": np.full(50, step, "f4")}, metrics={"loss": step}).result()
            store.push(step, str(tmp_path / "run"), layout="stepwell")
        own = report(store)
    with stepwell.open(tmp_path / "run", "r") as pushed:
        made = report(pushed)
    for part in ("leaves", "items", "metrics", "best"):
        assert made[part] == own[part]
    for name in ("number", "time_s", "save_s", "logical_bytes", "stored_bytes"):
        assert made["steps"][name] == own["steps"][name]
    assert made["steps"]["frees_bytes"] == [None] * 3
    assert any("space of a pushed run" in each for each in made["limits"])


def test_sampled_steps_and_leaves(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEPS_MAX", 12)
    monkeypatch.setattr(leaves, "CELLS_MAX", 6)
    monkeypatch.setattr(documents, "_FREES_MAX", 100)
    monkeypatch.setattr(steps, "METRICS_MAX", 1)
    with stepwell.open(path, statistics=True) as store:
        for step in range(60):
            store.save(step, {"a": step, **({"late": 1} if step > 20 else {"early": 2})},
                       metrics={"loss": abs(step - 33), "few": 1} if step % 2 else None)
        store.wait()
        store.pin(5, 6)
        store.taint(33, "bad")
        made = report(store)
    columns = made["steps"]
    assert columns["total"] == 60 and columns["shown"] == len(columns["number"]) == 12
    assert {0, 5, 6, 33, 59} <= set(columns["number"])
    best = made["best"]["few"]
    assert columns["number"][best["min"]] == columns["number"][best["max"]] == 59
    assert [columns["number"][i] for i in columns["pinned"]] == [5, 6]
    assert columns["number"] == sorted(columns["number"])
    assert columns["frees_bytes"] == [None] * 12
    part = made["leaves"]
    assert part["steps"][0] == 0 and part["steps"][-1] == 11
    assert part["total_leaves"] == 3 and part["shown"] == 2 and len(part["steps"]) == 3
    assert [*made["metrics"]] == ["few"]
    assert len(made["limits"]) == 5 and "12 of 60 steps are shown" in made["limits"][0]
    assert "up to 6 pinned or tainted" in made["limits"][0]


def test_leaves_beyond_the_limit(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "LEAVES_MAX", 10)
    monkeypatch.setattr(leaves, "PATH_BYTES_MAX", 1000)
    with stepwell.open(path) as store:
        store.save(0, {f"k{i:02}": i for i in range(25)})
        store.save(1, {"y" * 900: 1, "z" * 900: 2}).result()
        made = report(store)
        assert made["leaves"]["path"] == ["y" * 900]  # in key order of the newest step
        assert made["leaves"]["total_leaves"] == 27
        assert "26 of 27 leaves left out." in made["limits"]


def test_steps_that_are_deleted_meanwhile(path: pathlib.Path) -> None:
    with stepwell.open(path) as writer, stepwell.open(path, "r") as store:
        for step in range(3):
            writer.save(step, {"x": step}).result()
        found = leaves.survey(store._backend.whole("a test"), [0, 1, 2, 99])
        assert found.gone == [False, False, False, True]
        assert found.contents() == [[0, 1, 2, None]]


def test_every_key_of_the_schema_is_explained() -> None:
    def check(part: Any, place: str) -> None:
        for name, field in part.get("properties", {}).items():
            assert field.get("description"), f"{place}/{name}"
            check(field, f"{place}/{name}")
        for inner in ("items", "additionalProperties"):
            if isinstance(part.get(inner), dict):
                check(part[inner], place)
        for choice in part.get("oneOf", []):
            check(choice, place)

    schema = documents.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check(schema, "")
