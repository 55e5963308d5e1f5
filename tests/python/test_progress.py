# SPDX-License-Identifier: Apache-2.0
"""Shows how a store does: notebooks' tables and trees, bars, jax.monitoring, Prometheus."""

from __future__ import annotations

import json
import re
import sys
import threading

import jax.monitoring
import numpy as np
import prometheus_client.parser
import pytest
import treescope

import stepwell
from html_tables import Table
from stepwell._runtime.progress import progress_of


EVIL = "<script>alert(1)</script>&\"'"


def test_notebooks_show_tables(tmp_path):
    path = tmp_path / "a<b>&"
    with stepwell.open(path) as store:
        store.save(3, {EVIL: np.ones((2, 3)), "y": 1}, metadata={"note": EVIL},
                   metrics={"loss": 0.5}).result()
        store.save(4, {"layers": list(range(100))}).result()
        store.pin(3)
        cells = Table(store._repr_html_()).cells
        committed = [f"{store[step].time:%Y-%m-%d %H:%M:%S} UTC" for step in (3, 4)]
        assert cells[cells.index("2 steps"):] == [
            "2 steps", "step", "committed", "size", "metrics", "pinned", "tainted",
            "3", committed[0], "49 B", "loss 0.5", "yes", "",
            "4", committed[1], "190 B", "", "", ""]
        stats = store.stats()
        numbers = Table(stats._repr_html_()).cells
        rows = dict(zip(numbers[4::3], numbers[5::3], strict=True))
        assert rows["space.live_bytes"] == f"{stats['space']['live_bytes']:,}"
        assert rows["recovery.clean"] == "True" and "latency.durable.p99_s" in rows
        assert json.loads(json.dumps(stats)) == stats and isinstance(stats, dict)
        tree = Table(store.tree(3)._repr_html_()).cells
        assert tree[:4] == ["step 3: 2 leaves, 49 B", "path", "type", "size"]
        assert tree[4:7] == [next(iter(store.tree(3))), "float64[2, 3]", "48 B"]
        view = Table(store[3]._repr_html_()).cells
        assert view[0].startswith("step 3, committed ") and view[0].endswith(", items state")
        assert view[3] == "metadata" and EVIL in view[4].replace('\\"', '"')
        assert view[5:7] == ["metrics", '{"loss": 0.5}'] and view[7:] == tree
        assert Table(store[4]._repr_html_()).cells[0].startswith("step 4, committed ")
        long = Table(store.tree(4)._repr_html_()).cells
        assert "… 60 more" in long and len(long) == 4 + 40 * 3 + 1
        for shown in (store, store[3], store.tree(3)):
            assert "<script" not in shown._repr_html_()
    assert Table(store._repr_html_()).cells == [f"<stepwell store {str(path)!r}, closed>"]


def test_treescope_unfolds_steps(store):
    big = np.zeros((1000, 1000))
    store.save(1, {"params": {"w": big, "layers": [np.ones(2), {"a/b": 5}]}}).result()
    store.save(2, np.ones(3)).result()
    shown = treescope.render_to_text(store[1])
    for line in ("StepView({", "'params': NodeView({", "0: <stored params/layers/0: float64[2]>",
                 "1: NodeView({('a/b',): 5})", "'w': <stored params/w: float64[1000, 1000]>"):
        assert line in shown, shown
    assert store.stats()["last_load"]["bytes_read"] < big.nbytes / 100  # no array
    assert "StepView" in treescope.render_to_text(store[2])
    assert treescope.render_to_text(store[1]["params/layers"]).startswith("NodeView({")
    assert "<script" in treescope.render_to_html(store[1])


def bars(store, tmp_path, capsys) -> str:
    """Checks the bars that loads, exports, pushes and pulls show with `progress=True`."""
    store.save(1, {"x": np.arange(3_000_000)}).result()
    store.load(1, progress=True)
    store.export(1, tmp_path / "export", mode="copy", progress=True)
    store.push(1, tmp_path / "bucket", progress=True)
    store.pull(tmp_path / "bucket", 2, progress=True)
    return capsys.readouterr().err


def test_bars_of_rich_without_tqdm(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    shown = bars(store, tmp_path, capsys)
    for what in ("load", "export", "push", "pull"):
        assert len(re.findall(rf"{what} .*100% .*\d/\d.* [KM]iB", shown)) == 1, shown
    bar = progress_of(True, "cut")
    bar(1, 10)
    (refresher,) = [each for each in threading.enumerate() if type(each).__module__ == "rich.live"]
    del bar  # as after an error
    refresher.join(60)
    assert not refresher.is_alive()
    assert re.search("cut .*10%", capsys.readouterr().err)


def test_bars_of_tqdm(store, tmp_path, capsys):
    shown = bars(store, tmp_path, capsys)
    for what in ("load", "export", "push", "pull"):
        assert re.search(rf"{what}: 100%.*\d[kM]/\d", shown), shown
    assert store.load_async(1, progress=True).result()["x"].sum() == store.load(2, "x").sum()
    assert "load: 100%" in capsys.readouterr().err
    store.load(1, progress=False)
    assert capsys.readouterr().err == ""


def test_progress_without_a_library_and_by_mistake(store, monkeypatch):
    store.save(1, {"x": 1}).result()
    for library in ("tqdm.auto", "rich.progress"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(stepwell.InvalidArgumentError, match="neither is installed: pip install"):
        store.load(1, progress=True)
    with pytest.raises(stepwell.InvalidArgumentError, match="progress must be a function .* 'yes'"):
        store.load(1, progress="yes")


def test_jax_is_told_how_long_saves_and_loads_take(store):
    heard: dict[str, list[float]] = {}

    def listen(event: str, seconds: float, **_: object) -> None:
        if event.startswith("/stepwell/"):
            heard.setdefault(event, []).append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for step in range(3):
            store.save(step, {"x": np.arange(1000)})
        store.wait()
        store.save(2, {"x": 1}, if_exists="skip").result()
        store.load()
        with pytest.raises(stepwell.PathNotFoundError):
            store.load(1, "absent")
        store.wait()
        finished = threading.Event()
        store.save(9, {"x": 1}, if_exists="skip").on_complete(lambda _: finished.set())
        assert finished.wait(60)  # behind the callbacks of the saves before it
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert {event: len(each) for event, each in heard.items()} == {
        "/stepwell/save/blocking_secs": 5, "/stepwell/save/durable_secs": 4,
        "/stepwell/load/secs": 1}
    assert all(seconds > 0 for each in heard.values() for seconds in each)


def test_prometheus_reads_the_numbers(tmp_path):
    path = tmp_path / 'a "quoted" \\ path\n'
    with stepwell.open(path) as store:
        def families() -> dict[str, prometheus_client.Metric]:
            text = store.prometheus()
            return {family.name: family for family
                    in prometheus_client.parser.text_string_to_metric_families(text)}

        assert "stepwell_latest_step" not in families()
        for step in (3, 8):
            store.save(step, {"x": np.arange(100_000)}).result()
        found = families()
        stats = store.stats()

    def value(name: str, **labels: str) -> float:
        family = found[re.sub("_(total|sum|count)$", "", name)]
        (sample,) = [each for each in family.samples
                     if each.name == name and each.labels == {"store": str(path), **labels}]
        return sample.value

    assert value("stepwell_steps") == 2 and value("stepwell_latest_step") == 8
    assert value("stepwell_saves_total") == 2 and value("stepwell_saves_failed_total") == 0
    assert value("stepwell_bytes_saved_total") == stats["bytes_saved"]
    assert value("stepwell_space_bytes", kind="live") == stats["space"]["live_bytes"]
    durable = stats["latency"]["durable"]
    assert value("stepwell_save_seconds_count", stage="durable") == 2
    assert value("stepwell_save_seconds_sum", stage="durable") == durable["total_s"]
    assert value("stepwell_save_seconds", stage="durable", quantile="0.99") == durable["p99_s"]
    types = {name: family.type for name, family in found.items()}
    assert types["stepwell_saves"] == "counter" and types["stepwell_steps"] == "gauge"
    assert types["stepwell_save_seconds"] == "summary"
    numbers = [key for key, each in stats.items() if isinstance(each, int)]
    assert {f"stepwell_{key}" for key in numbers} <= set(types)
