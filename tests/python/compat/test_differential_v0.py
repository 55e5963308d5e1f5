# SPDX-License-Identifier: Apache-2.0
"""The same random calls on Orbax's CheckpointManager and on Stepwell's: same results, step lists
and exceptions. What differs on purpose is in the guide "Moving from Orbax", "Differences (v0)", and
is not asked here."""

from __future__ import annotations

import collections
import dataclasses
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as real
import pytest

from stepwell.compat import orbax as ours
from storm import in_a_storm

Point = collections.namedtuple("Point", "x y")

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning"),
    # Orbax leaves reads behind where a restore fails.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def state_of(step: int) -> dict[str, Any]:
    return {
        "params": {"w": jnp.arange(6.0).reshape(2, 3) + step,
                   "b": jnp.ones(3, jnp.bfloat16) * step},
        "host": np.arange(4, dtype=np.int32) * step, "step": step, "rate": step / 4, "on": step > 2,
        "pair": (jnp.full((2,), step, jnp.int32), 7), "list": [np.float32(step) * np.ones(1)],
        "point": Point(step, np.zeros((2, 2), np.float16)), "none": None,
        "key": jax.random.key(step), "raw_key": jax.random.PRNGKey(step)}


def shown(value: Any) -> Any:
    """A result as something that compares: containers by type, leaves by type, dtype and value."""
    if isinstance(value, (ours.args.Composite, real.args.Composite)):
        return {"composite": {name: shown(value[name]) for name in sorted(value)}}
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return (type(value).__name__, *map(shown, value))
    if isinstance(value, list):
        return [shown(each) for each in value]
    if isinstance(value, jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ("key", str(value.dtype), jax.random.key_data(value).tolist())
        return ("jax", str(value.dtype), value.shape, np.asarray(value).tolist(),
                str(value.sharding))
    if isinstance(value, np.ndarray):
        return ("numpy", str(value.dtype), value.shape, value.tolist())
    return (type(value).__name__, value)


_CLASSES = (FileNotFoundError, FileExistsError, KeyError, NotImplementedError, TypeError,
            ValueError)


def outcome(call: Any) -> Any:
    try:
        return shown(call())
    except Exception as error:
        kind = next((cls for cls in _CLASSES if isinstance(error, cls)), None)
        assert kind is not None, f"{type(error)}: {error}"
        own = "StepAlreadyExistsError" if "StepAlreadyExists" in type(error).__name__ else ""
        return f"{kind.__name__} {own}"


def changed(tree: Any, name: str, value: Any) -> Any:
    return {**tree, name: value}


def targets(lib: Any, kind: str) -> Any:
    """Restore arguments of one kind, by one of the libraries."""
    args, utils = lib.args, lib.checkpoint_utils
    state = state_of(1)
    abstract = jax.tree.map(lib.utils.to_shape_dtype_struct, state)
    if kind == "none":
        return None
    if kind == "standard":
        return args.StandardRestore()
    if kind == "concrete":
        return args.StandardRestore(state)
    if kind == "abstract":
        return args.StandardRestore(abstract)
    if kind == "numpy":
        return args.StandardRestore(jax.tree.map(
            lambda x: np.zeros(x.shape, x.dtype) if hasattr(x, "dtype") else x,
            changed(state, "key", jax.random.PRNGKey(1))))
    if kind == "other dtypes":
        return args.StandardRestore(changed(changed(
            state, "host", np.zeros(4, np.float64)), "params", {
                "w": jnp.zeros((2, 3), jnp.float16), "b": jax.ShapeDtypeStruct((3,), jnp.float32)}))
    if kind == "other scalars":
        return args.StandardRestore(changed(changed(state, "step", 1.0), "rate", 1))
    if kind == "scalar into array":
        return args.StandardRestore(changed(state, "step", jnp.zeros((), jnp.int32)))
    if kind == "array into scalar":
        return args.StandardRestore(changed(state, "host", 1))
    if kind == "other containers":
        return args.StandardRestore(changed(changed(
            state, "pair", list(state["pair"])), "point", dict(state["point"]._asdict())))
    if kind == "missing":
        return args.StandardRestore({name: state[name] for name in state if name != "params"})
    if kind == "extra":
        return args.StandardRestore(changed(state, "more", jnp.zeros(2)))
    if kind == "other shape":
        return args.StandardRestore(changed(state, "raw_key", jnp.zeros(3, jnp.uint32)))
    if kind == "padded":
        return args.StandardRestore(changed(state, "params", {
            "w": jnp.zeros((3, 2)), "b": jnp.zeros(3, jnp.bfloat16)}), strict=False)
    if kind == "pytree":
        return args.PyTreeRestore()
    if kind == "pytree target":
        return args.PyTreeRestore(state)
    if kind == "restore args":
        return args.PyTreeRestore(state, restore_args=utils.construct_restore_args(state))
    if kind == "restore args alone":
        return args.PyTreeRestore(restore_args=jax.tree.map(
            lambda _: lib.RestoreArgs(restore_type=np.ndarray), tree_as_saved(state)))
    if kind == "partial":
        part = {"params": {"w": state["params"]["w"]}, "step": 0}
        return args.PyTreeRestore(part, partial_restore=True)
    if kind == "no transforms":
        target = changed({name: state[name] for name in ("params", "step")}, "new", np.full(2, 5))
        return args.PyTreeRestore(target, transforms={},
                                  restore_args=utils.construct_restore_args(target))
    if kind == "renamed":
        target = {"weights": state["params"]["w"], "step": 3, "rate": 0.0}
        return args.PyTreeRestore(target, restore_args=utils.construct_restore_args(target),
                                  transforms={"weights": lib.Transform(original_key="params/w"),
                                              "step": lib.Transform(use_fallback=True)})
    if kind == "json":
        return args.JsonRestore()
    assert kind == "renamed from nothing"
    target = {"weights": state["params"]["w"]}
    return args.PyTreeRestore(target, restore_args=utils.construct_restore_args(target),
                              transforms={"weights": lib.Transform(original_key="params/no")})


def tree_as_saved(state: Any) -> Any:
    """The state in the containers that Orbax restores."""
    return changed(changed(state, "pair", list(state["pair"])), "point",
                   dict(state["point"]._asdict()))


STANDARD = ("none", "standard", "concrete", "abstract", "numpy", "other dtypes", "other scalars",
            "scalar into array", "array into scalar", "other containers", "missing", "extra",
            "other shape", "padded")
PYTREE = ("none", "pytree", "pytree target", "restore args", "restore args alone", "partial",
          "no transforms", "renamed", "renamed from nothing")


@pytest.mark.parametrize("kind", STANDARD + PYTREE[1:] + ("json",))
def test_restore_with_many_targets(kind: str, tmp_path: Any) -> None:
    found = []
    for lib, name in ((real, "real"), (ours, "ours")):
        args = lib.args
        save = args.StandardSave if kind in STANDARD else args.PyTreeSave
        with lib.CheckpointManager(tmp_path / name) as manager:
            manager.save(3, args=save(state_of(3)))
            manager.wait_until_finished()
        with lib.CheckpointManager(tmp_path / name) as manager:
            found.append(outcome(lambda manager=manager, lib=lib: manager.restore(
                3, args=targets(lib, kind))))
    assert found[1] == found[0]


def random_options(pick: random.Random) -> dict[str, Any]:
    """Options as names and values that both libraries make objects of."""
    options: dict[str, Any] = {}
    if pick.random() < 0.5:
        options["max_to_keep"] = pick.choice([0, 1, 2, 3])
    if pick.random() < 0.3:
        options["keep_period"] = pick.choice([2, 3])
    if pick.random() < 0.4:
        options["save_interval_steps"] = pick.choice([1, 2, 3])
    if pick.random() < 0.3:
        options["save_on_steps"] = [1, 5, 7]
    if pick.random() < 0.4:
        options["best_fn"] = lambda metrics: metrics["loss"]
        options["best_mode"] = pick.choice(["min", "max"])
        options["keep_checkpoints_without_metrics"] = pick.random() < 0.5
    if pick.random() < 0.2:
        options["should_save_fn"] = lambda step, last: step % 2 == 1
    if pick.random() < 0.3:
        options["step_prefix"] = "ckpt"
    if pick.random() < 0.3:
        options["step_format_fixed_length"] = 4
    if pick.random() < 0.2:
        options["enable_async_checkpointing"] = False
    if pick.random() < 0.2:
        options["lightweight_initialize"] = True
    if pick.random() < 0.3 and not {"max_to_keep", "keep_period"} & set(options):
        options["preservation_policy"] = pick.choice([
            lambda p: p.LatestN(2),
            lambda p: limited(p.EveryNSteps, 2, exact_interval=False, max_to_keep=3),
            lambda p: limited(getattr(p, "EveryNStepsClosest", p.EveryNSteps), 3, max_to_keep=2),
            lambda p: p.AnyPreservationPolicy([p.LatestN(1), p.CustomSteps([0, 4])]),
            lambda p: p.BestN(get_metric_fn=lambda m: m["loss"], n=2)])
    if pick.random() < 0.2:
        options["save_decision_policy"] = pick.choice([
            lambda p: p.FixedIntervalPolicy(2),
            lambda p: p.AnySavePolicy([p.InitialSavePolicy(), p.SpecificStepsPolicy([3, 6])])])
    return options


def limited(policy: Any, steps: int, **limits: Any) -> Any:
    """A policy, with the limits that this version of Orbax has."""
    fields = {field.name for field in dataclasses.fields(policy)}
    return policy(steps, **{name: limits[name] for name in limits if name in fields})


def made(lib: Any, options: dict[str, Any]) -> Any:
    policies = lib.checkpoint_managers
    for name in ("preservation_policy", "save_decision_policy"):
        if name in options:
            options = {**options, name: options[name](policies)}
    return lib.CheckpointManagerOptions(**options)


def saved_args(lib: Any, composite: bool, step: int) -> Any:
    args = lib.args
    state = {"w": jnp.full((2, 2), step, jnp.float32), "n": step}
    if not composite:
        return args.StandardSave(state)
    return args.Composite(params=args.StandardSave(state), data=args.JsonSave({"at": [step, None]}),
                          array=args.ArraySave(np.arange(3) + step))


def restore_args(lib: Any, composite: bool, variant: int) -> Any:
    args = lib.args
    target = {"w": np.zeros((2, 2), np.float64), "n": 0.5}
    choices = [None, args.StandardRestore(target), args.StandardRestore({"w": target["w"]}),
               args.Composite(params=args.StandardRestore(target)),
               args.Composite(data=args.JsonRestore(), array=args.ArrayRestore()),
               args.Composite(params=None), args.Composite(other=args.StandardRestore()),
               args.PyTreeRestore()]
    return choices[variant]


def steps_on_disk(directory: Any) -> list[str]:
    return sorted(path.name for path in directory.iterdir()
                  if path.name[-1].isdigit() and path.name[0] != ".")


@pytest.mark.parametrize("seed", range(in_a_storm(8)))
def test_random_calls(seed: int, tmp_path: Any) -> None:
    pick = random.Random(seed)
    composite = pick.random() < 0.5
    libs = {"real": real, "ours": ours}
    options = random_options(pick)
    managers = {name: lib.CheckpointManager(tmp_path / name, options=made(lib, options))
                for name, lib in libs.items()}
    done: list[str] = []

    def both(what: str, call: Any) -> None:
        done.append(what)
        found = {name: outcome(lambda name=name: call(managers[name], libs[name]))
                 for name in libs}
        assert found["ours"] == found["real"], "\n".join([f"{found}", f"{options}", *done])

    step, known = 0, False
    for _ in range(14):
        there = managers["real"].all_steps()
        kind = pick.choice(["save"] * 6 + ["force", "delete", "restore", "restore", "reload",
                                           "reopen", "metrics", "should_save"])
        if kind in ("save", "force"):
            step = max(0, step + pick.choice([-1, 0, 1, 1, 1, 2]))
            if kind == "force":  # a step before the last one is listed in another place
                step = max([step, *there])
            metrics = {"loss": pick.choice([0.5, 1.0, 2.0])} if pick.random() < 0.8 else None

            def save(manager: Any, lib: Any, step: int = step, metrics: Any = metrics,
                     force: bool = kind == "force") -> bool:
                result: bool = manager.save(step, args=saved_args(lib, composite, step),
                                            metrics=metrics, force=force,
                                            custom_metadata={"note": step})
                manager.wait_until_finished()
                return result

            both(f"save {step} {metrics} {kind}", save)
            known = True
        elif kind == "delete":
            which = pick.randrange(8)
            both(f"delete {which}", lambda manager, lib, which=which: manager.delete(which))
        elif kind == "restore":
            # The first restore of a manager tells Orbax whether items have names; where the step
            # does not exist, it takes them for named.
            which = pick.choice([None, *there, *([pick.randrange(8)] if known else [])])
            variant = pick.randrange(8)
            known = known or bool(there)
            both(f"restore {which} {variant}",
                 lambda manager, lib, which=which, variant=variant: manager.restore(
                     which, args=restore_args(lib, composite, variant)))
        elif kind == "reload":
            both("reload", lambda manager, lib: manager.reload())
        elif kind == "reopen":
            done.append("reopen")
            known = False
            for name, lib in libs.items():
                managers[name].close()
                managers[name] = lib.CheckpointManager(tmp_path / name, options=made(lib, options))
        elif kind == "metrics":
            which = pick.randrange(8)
            both(f"metrics {which}", lambda manager, lib, which=which: manager.metrics(which))
        else:
            both("should_save", lambda manager, lib, step=step: [
                manager.should_save(step + ahead) for ahead in range(4)])
        both("all_steps", lambda manager, lib: list(manager.all_steps()))
        both("latest_step", lambda manager, lib: manager.latest_step())
        both("best_step", lambda manager, lib: manager.best_step())
        both("directory", lambda manager, lib: steps_on_disk(manager.directory))
        if managers["real"].latest_step() is not None:
            both("custom metadata", lambda manager, lib: manager.metadata(
                manager.latest_step()).custom_metadata)
    for manager in managers.values():
        manager.close()
