# SPDX-License-Identifier: Apache-2.0
"""The same random calls on the real orbax.checkpoint.v1 and on stepwell.compat.orbax_v1: the same
results, step lists and exception classes. Where they differ, a row of DIFFERENCES says how; the
guide "Moving from Orbax" has the same rows with their reasons.
"""

from __future__ import annotations

import datetime
import pathlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct as Sds
from orbax.checkpoint import v1 as real

from stepwell.compat import orbax_v1 as facade
from storm import in_a_storm

pytestmark = [pytest.mark.skipif(not hasattr(real, "delete"), reason="an older Orbax"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]


class Point(NamedTuple):
    x: Any
    y: Any


class Call(NamedTuple):
    """A call as both libraries take it; `differs` names a row of DIFFERENCES."""

    text: str
    run: Callable[[Any, Any], Any]
    differs: str = ""


# Differences that the facade intends: (real, facade) -> whether the pair is one.
DIFFERENCES: dict[str, Callable[[Any, Any], bool]] = {
    # saving the step again at which a run resumes
    "resume": lambda one, two: (one == ("raises", "StepAlreadyExistsError")
                                and two == ("returns", False)),
    # a target's leaf that is not stored, with partial_load
    "typo": lambda one, two: one[0] == "returns" and two == ("raises", "ValueError"),
    # a NumPy target of another shape
    "shape": lambda one, two: one[0] == "returns" and two == ("raises", "ValueError"),
    # a jax target without a sharding for what was not a jax.Array
    "as jax": lambda one, two: one[0] == "raises" and two[0] == "returns",
    "load_async": lambda one, two: (one == ("raises", "NotImplementedError")
                                    and two[0] == "returns"),
    # metadata of bool leaves
    "bool": lambda one, two: one == ("returns", None) and two[0] == "returns",
}


def plain(value: Any) -> Any:
    """A value that `==` compares with containers, types, dtypes and bits; metadata by what both
    libraries say."""
    if isinstance(value, dict):
        return {"dict": {key: plain(child) for key, child in value.items()}}
    if type(value) in (list, tuple):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, Point):
        return ["Point", *map(plain, value)]
    if isinstance(value, (real.CheckpointMetadata, facade.CheckpointMetadata)):
        return plain(value.metadata)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return ("key", plain(jax.random.key_data(value)))
    if isinstance(value, (jax.Array, np.ndarray)):
        return ("jax" if isinstance(value, jax.Array) else "numpy", str(value.dtype), value.shape,
                np.asarray(value).tobytes())
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return ("abstract", hasattr(value, "sharding"), tuple(value.shape), str(value.dtype))
    return (type(value).__name__, value)


def outcome(call: Call, library: Any, place: Any) -> Any:
    try:
        value = call.run(library, place)
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        return ("raises", names)
    return ("returns", value if isinstance(value, (bool, type(None))) else plain(value))


def compare(call: Call, places: dict[Any, Any], log: list[str]) -> None:
    one, two = (outcome(call, library, places[library]) for library in (real, facade))
    log.append(f"{call.text}: {str(one)[:150]}")
    if one[0] == "raises":
        one = ("raises", one[1][0])
    if two[0] == "raises":
        is_like = one[0] == "raises" and one[1] in two[1]
        shown = [name for name in two[1] if name in dir(__builtins__) or name in (
            "StepAlreadyExistsError", "ValueError", "NotImplementedError")]
        two = one if is_like else ("raises", shown[0] if shown else two[1][0])
    if one != two and call.differs and DIFFERENCES[call.differs](one, two):
        return
    assert one == two, "\n".join([*log[-40:], f"real:   {one}", f"facade: {two}"])


# ---- states and targets -------------------------------------------------------------------------


def make_state(prng: random.Random, step: int) -> dict[str, Any]:
    """A state of random leaves and containers."""
    leaves: list[Callable[[], Any]] = [
        lambda: jnp.arange(prng.randrange(1, 9), dtype=jnp.float32) + step,
        lambda: jnp.asarray(prng.random(), dtype=jnp.bfloat16),
        lambda: np.arange(prng.randrange(1, 9)).reshape(1, -1) * step,
        lambda: np.full((2, 2), prng.random()),
        lambda: prng.randrange(-9, 9), lambda: prng.random(), lambda: f"text {step}",
        lambda: jax.random.key(step), lambda: None]
    containers: list[Callable[[Any, Any], Any]] = [
        lambda a, b: [a, b], lambda a, b: (a, b), lambda a, b: {"p": a, "q": b},
        lambda a, b: {3: a, 10: b}, Point, lambda a, b: {"x": {}, "y": [], "z": ()}]
    state: dict[str, Any] = {"step": step, "w": jnp.full((4, 2), step, jnp.float32),
                             "n": np.arange(step + 2)}
    for i in range(prng.randrange(4)):
        state[f"leaf{i}"] = prng.choice(leaves)()
    for i in range(prng.randrange(3)):
        state[f"node{i}"] = prng.choice(containers)(prng.choice(leaves)(), prng.choice(leaves)())
    return state


def make_target(prng: random.Random, state: Any) -> tuple[str, Any, str]:
    """A target for a state: its kind, itself, and the difference that it may show."""
    def abstract(leaf: Any) -> Any:
        return Sds(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf

    kind = prng.choice(["none", "same", "abstract", "cast", "skip", "shape", "np shape", "missing",
                        "extra", "object", "types", "as jax"])
    target = None if kind == "none" else jax.tree.map(abstract, state)
    match kind:
        case "same":
            target = state
        case "cast":
            target |= {"w": Sds((4, 2), jnp.float16), "n": np.zeros(len(state["n"]), np.float32)}
        case "skip":
            target |= {"w": facade.PLACEHOLDER}
        case "shape":
            target |= {"w": Sds((5, 2), jnp.float32)}
        case "np shape":
            target |= {"n": np.zeros(len(state["n"]) + 1, np.int64)}
            return kind, target, "shape"
        case "missing":
            target |= {"not stored": Sds((2,), jnp.float32)}
        case "extra":
            target.pop("w", None)
        case "object":
            target |= {"w": object()}
        case "types":
            target |= {"w": Sds, "n": np.ndarray, "step": int}
        case "as jax":
            target |= {"n": Sds((len(state["n"]),), jnp.int32)}
            return kind, target, "as jax"
    return kind, target, ""


# ---- one checkpoint -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(in_a_storm(2)))
def test_calls_on_paths(seed: int, tmp_path: pathlib.Path) -> None:
    prng = random.Random(f"paths {seed}")
    places = {library: tmp_path / library.__name__ for library in (real, facade)}
    for place in places.values():
        place.mkdir()
    states: dict[str, Any] = {}
    log: list[str] = []

    def one_call(number: int) -> Call:
        name = prng.choice("abcd")
        match prng.choice(["save", "save", "async", "items", "load", "load", "load", "load items",
                           "metadata", "items metadata", "delete", "delete item", "partial load",
                           "is", "load_async"]):
            case "save":
                state, overwrite = make_state(prng, number), prng.random() < 0.6
                if overwrite or name not in states:
                    states[name] = {"state": state}
                custom = prng.choice([None, {"number": number}])
                return Call(f"save {name} overwrite={overwrite}", lambda ocp, at: ocp.save(
                    at / name, state, overwrite=overwrite, custom_metadata=custom))
            case "async":
                state = make_state(prng, number)
                states[name] = {"state": state}
                return Call(f"save_async {name}", lambda ocp, at: ocp.save_async(
                    at / name, state, overwrite=True).result())
            case "items":
                items = {"state": make_state(prng, number), "ds": {"at": number, "name": "x"}}
                states[name] = items
                return Call(f"save_checkpointables {name}", lambda ocp, at:
                            ocp.save_checkpointables(at / name, items, overwrite=True))
            case "load":
                kind, target, differs = make_target(prng, states.get(name, {"state": {
                    "n": np.arange(2)}})["state"])
                return Call(f"load {name} {kind}", lambda ocp, at: ocp.load(at / name, target),
                            differs)
            case "load items":
                wanted = prng.choice([None, {}, {"ds": None}, {"state": None}, {"other": None}])
                return Call(f"load_checkpointables {name} {wanted}", lambda ocp, at:
                            ocp.load_checkpointables(at / name, wanted))
            case "metadata":
                return Call(f"metadata {name}", lambda ocp, at: [
                    ocp.metadata(at / name).custom_metadata, ocp.metadata(at / name)])
            case "items metadata":
                return Call(f"checkpointables_metadata {name}", lambda ocp, at: sorted(
                    ocp.checkpointables_metadata(at / name).metadata))
            case "delete":
                missing_ok = prng.random() < 0.5
                states.pop(name, None)
                return Call(f"delete {name} missing_ok={missing_ok}", lambda ocp, at: ocp.delete(
                    at / name, missing_ok=missing_ok))
            case "delete item":
                missing_ok = prng.random() < 0.5
                item = prng.choice(["ds", "ds", "state", "metrics"])
                if len(states.get(name, {})) == 2 and item in states[name]:
                    left = dict(states[name])
                    del left[item]
                    if item == "ds":
                        states[name] = left
                    else:
                        item = "ds"
                        states[name] = {"state": left.get("state", states[name]["state"])}
                return Call(f"delete {name} {item} missing_ok={missing_ok}", lambda ocp, at:
                            ocp.delete(at / name, checkpointable_name=item,
                                       missing_ok=missing_ok))
            case "partial load":
                typo = prng.random() < 0.5
                target = {"w": Sds((4, 2), jnp.float32)}
                if typo:
                    target["typo"] = Sds((1,), jnp.int32)

                def partial(ocp: Any, at: pathlib.Path) -> Any:
                    context = ocp.Context()
                    context.pytree.loading.partial_load = True
                    with context:
                        return ocp.load(at / name, target)

                return Call(f"partial_load {name} typo={typo}", partial, "typo" if typo else "")
            case "is":
                return Call(f"is_orbax_checkpoint {name}", lambda ocp, at: [
                    ocp.is_orbax_checkpoint(each) for each in (at / name, at / name / "state")])
            case _:
                return Call(f"load_async {name}", lambda ocp, at: ocp.load_async(
                    at / name).result() if (at / name).exists() else None, "load_async")

    for number in range(40):
        compare(one_call(number), places, log)


# ---- a sequence of checkpoints ------------------------------------------------------------------


def make_policies(ocp: Any, prng: random.Random) -> dict[str, Any]:
    save, keep = ocp.training.save_decision_policies, ocp.training.preservation_policies
    saves = [None, save.FixedIntervalPolicy(prng.randrange(1, 4)),
             save.SpecificStepsPolicy(prng.sample(range(30), 15)),
             save.ContinuousCheckpointingPolicy(), save.InitialSavePolicy(),
             save.PreemptionCheckpointingPolicy(),
             save.ContinuousCheckpointingPolicy(minimum_interval_secs=3600)]
    saves.append(save.AnySavePolicy([saves[1], saves[2]]))
    keeps = [None, keep.PreserveAll(), keep.LatestN(prng.randrange(4)),
             keep.EveryNSteps(prng.randrange(1, 4), max_to_keep=prng.choice([None, 2])),
             keep.EveryNSteps(3, exact_interval=False), keep.EveryNStepsClosest(4),
             keep.CustomSteps(prng.sample(range(30), 10)), keep.EveryNSeconds(3600),
             keep.LatestDuration(datetime.timedelta(hours=1)),
             keep.BestN(get_metric_fn=lambda metrics: metrics["loss"], n=2,
                        reverse=prng.random() < 0.5,
                        keep_checkpoints_without_metrics=prng.random() < 0.5)]
    keeps.append(keep.AnyPreservationPolicy([keeps[2], keeps[6]]))
    names = ocp.path.step
    formats = [None, names.standard_name_format(step_prefix="ckpt"),
               names.standard_name_format(step_format_fixed_length=6),
               names.standard_name_format(step_prefix="s", step_format_fixed_length=4)]
    return {"save_decision_policy": prng.choice(saves[1:4] * 2 + saves),
            "preservation_policy": prng.choice(keeps), "step_name_format": prng.choice(formats),
            "lightweight_initialize": False}


@pytest.mark.parametrize("seed", range(in_a_storm(3)))
def test_calls_on_a_checkpointer(seed: int, tmp_path: pathlib.Path) -> None:
    prng = random.Random(f"checkpointer {seed}")
    directories = {library: tmp_path / library.__name__ for library in (real, facade)}
    options = {library: make_policies(library, random.Random(f"policies {seed}"))
               for library in (real, facade)}
    opened = {library: library.training.Checkpointer(
        directories[library], custom_metadata={"seed": seed}, **options[library])
        for library in (real, facade)}
    states: dict[int, Any] = {}
    found: set[int] = set()
    log: list[str] = [str(options[real])]
    step = 0

    def reopen(crashed: bool) -> None:
        for library, checkpointer in opened.items():
            checkpointer.close()
            if crashed:  # what a killed save leaves behind
                name = f"{step + 1}.orbax-checkpoint-tmp"
                (directories[library] / name / "state").mkdir(parents=True, exist_ok=True)
            opened[library] = library.training.Checkpointer(
                directories[library], custom_metadata={"other": 1},
                cleanup_tmp_directories=crashed, **options[library])
        found.clear()
        found.update(each.step for each in opened[facade].checkpoints)

    def one_call() -> Call:
        nonlocal step
        match prng.choice(["save"] * 5 + ["async", "items", "load", "load", "load step", "delete",
                                          "delete item", "steps", "should", "metadata", "reload",
                                          "reopen", "crash", "root", "items of"]):
            case "save" | "async" | "items" as kind:
                if prng.random() < 0.85:
                    step += prng.randrange(1, 3)
                number = step if prng.random() < 0.9 else prng.randrange(step + 1)
                state = make_state(prng, number)
                states[number] = state
                overwrite = prng.random() < 0.15
                force = overwrite or prng.random() < 0.1  # Orbax deletes first, and may not save
                arguments = {"force": force, "overwrite": overwrite,
                             "metrics": prng.choice([None, {"loss": prng.random()}]),
                             "custom_metadata": prng.choice([None, {"number": number}])}
                if number in found and not force and not overwrite:
                    differs = "resume"
                else:
                    differs = ""
                if kind == "items":
                    return Call(f"save_checkpointables {number} {arguments}", lambda ocp, it:
                                it.save_checkpointables(
                                    number, {"state": state, "ds": {"at": number}}, **arguments),
                                differs)
                if kind == "async":
                    return Call(f"save_async {number} {arguments}", lambda ocp, it: (
                        response := it.save_async(number, state, **arguments)) is not None
                        and response.result(), differs)
                return Call(f"save {number} {arguments}", lambda ocp, it: it.save(
                    number, state, **arguments), differs)
            case "load":
                return Call("load latest", lambda ocp, it: it.load())
            case "load step":
                number = prng.choice([*states, step, 99])
                kind, target, differs = make_target(prng, states.get(number, {
                    "n": np.arange(2)}))
                return Call(f"load {number} {kind}", lambda ocp, it: it.load(number, target),
                            differs)
            case "delete":
                number, missing_ok = prng.choice([*states, step]), prng.random() < 0.5
                found.discard(number)
                return Call(f"delete {number} missing_ok={missing_ok}", lambda ocp, it: it.delete(
                    number, missing_ok=missing_ok))
            case "delete item":
                number, missing_ok = prng.choice([*states, step]), prng.random() < 0.5
                return Call(f"delete {number} ds", lambda ocp, it: it.delete(
                    number, checkpointable_name="ds", missing_ok=missing_ok))
            case "steps":
                return Call("checkpoints", lambda ocp, it: [
                    *[(each.step, each.metrics, each.path.name) for each in it.checkpoints],
                    it.latest.step if it.latest else None])
            case "should":
                return Call(f"should_save {step}", lambda ocp, it: [
                    it.should_save(number) for number in range(step - 1, step + 3)
                    if number >= 0])
            case "metadata":
                return Call("metadata", lambda ocp, it: [
                    it.metadata(), it.metadata().custom_metadata, it.metadata().metrics,
                    it.metadata().step])
            case "items of":
                return Call("checkpointables", lambda ocp, it: [
                    sorted(it.load_checkpointables()),
                    sorted(it.checkpointables_metadata().metadata)])
            case "reload":
                return Call("reload", lambda ocp, it: it.reload())
            case "root":
                return Call("root_metadata", lambda ocp, it: it.root_metadata().custom_metadata)
            case kind:
                reopen(kind == "crash")
                return Call(f"{kind}ed", lambda ocp, it: [each.step for each in it.checkpoints])

    try:
        for _ in range(40):
            compare(one_call(), opened, log)
            steps = {library: sorted(
                int(entry.name.split("_")[-1]) for entry in directories[library].iterdir()
                if entry.name.split("_")[-1].isdigit() and entry.name[0] != ".")
                for library in opened}
            assert steps[real] == steps[facade], "\n".join(log[-40:])
    finally:
        for checkpointer in opened.values():
            checkpointer.close()
