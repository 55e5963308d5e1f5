# SPDX-License-Identifier: Apache-2.0
"""Counts a load's calls of the engine: one to ask which step, one to take what is in it."""

import numpy as np
import pytest

import stepwell
from stepwell import _stepwell

STATE = {"params": {f"layer_{n}": {"w": np.full(3, n), "b": np.zeros(2)} for n in range(20)},
         "step": 7, "name": "run", "rate": 0.1, "big": 10**5000, "none": None}


@pytest.fixture
def calls(monkeypatch):
    """The names of the engine's methods, as they are called."""
    seen = []

    def noted(name, method):
        def called(*args, **named):
            seen.append(name)
            return method(*args, **named)
        return called

    for kind in (_stepwell.Core, _stepwell.Reader, _stepwell.StepTree):
        for name, method in list(vars(kind).items()):
            if callable(method) and not name.startswith("__"):
                monkeypatch.setattr(kind, name, noted(name, method))
    return seen


@pytest.mark.parametrize(("step", "where", "asked"), [
    (None, None, "read_newest"), (3, None, "read"), (None, "params", "read_newest"),
    (3, "params/layer_7/w", "read"), (3, "params/*/b", "read"), (3, "step", "read")])
def test_a_load_asks_and_takes(store, calls, step, where, asked):
    store.save(3, STATE).result()
    calls.clear()
    named = {} if step is None else {"step": step}
    loaded = store.load(**named, path=where)
    assert calls == [asked, "load"]
    if where is None:
        assert loaded.keys() == STATE.keys() and loaded["big"] == STATE["big"]
        assert all(type(loaded[name]) is type(STATE[name]) for name in STATE)


def test_a_load_of_what_is_not_there_says_what_is(store, calls):
    store.save(3, STATE).result()
    calls.clear()
    with pytest.raises(stepwell.PathNotFoundError, match="nearest: params/layer_0, "):
        store.load(path="params/layer_x")
    assert calls == ["read_newest", "load"]
