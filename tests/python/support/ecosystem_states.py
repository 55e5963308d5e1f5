# SPDX-License-Identifier: Apache-2.0
"""Training states as users have them, by name: what optax, Flax and Equinox make, PRNG keys,
containers without leaves."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.core import FrozenDict
from flax.training.train_state import TrainState

STATES: dict[str, Callable[[], Any]] = {}


def state(make: Callable[[], Any]) -> Callable[[], Any]:
    STATES[make.__name__] = make
    return make


def params() -> dict[str, Any]:
    return {"dense": {"kernel": jnp.arange(6.0).reshape(3, 2), "bias": jnp.ones(2)},
            "scale": jnp.full((), 3.0)}


# ---- optax ----

_SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 50)
OPTIMIZERS: dict[str, Any] = {
    "adam": lambda: optax.adam(1e-3),
    "adamw": lambda: optax.adamw(_SCHEDULE),
    "amsgrad": lambda: optax.amsgrad(1e-3),
    "adabelief": lambda: optax.adabelief(1e-3),
    "adafactor": lambda: optax.adafactor(1e-3),
    "adagrad": lambda: optax.adagrad(1e-3),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-3), 3),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "ema": lambda: optax.chain(optax.sgd(0.1), optax.ema(0.9)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(
        learning_rate=_SCHEDULE, weight_decay=1e-4),
    "lamb": lambda: optax.lamb(1e-3),
    "lion": lambda: optax.lion(1e-3),
    "lookahead_free": lambda: optax.contrib.schedule_free_adamw(1e-3),
    "masked": lambda: optax.masked(optax.adam(1e-3), {"dense": True, "scale": False}),
    "multi_steps": lambda: optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=4),
    "noisy_sgd": lambda: optax.noisy_sgd(1e-2, key=jax.random.key(7)),
    "partition": lambda: optax.partition(
        {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()},
        {"dense": "train", "scale": "freeze"}),
    "rmsprop": lambda: optax.rmsprop(1e-3, momentum=0.9),
    "sgd": lambda: optax.sgd(1e-2),
    "sgd_momentum": lambda: optax.sgd(_SCHEDULE, momentum=0.9),
    "yogi": lambda: optax.yogi(1e-3),
}


def _optax(name: str) -> Any:
    opt_state = OPTIMIZERS[name]().init(params())
    # Zeros tell nothing about where they come from.
    leaves, structure = jax.tree.flatten(opt_state)
    return structure.unflatten([
        leaf if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf + jnp.asarray(number + 1).astype(leaf.dtype)
        for number, leaf in enumerate(leaves)])


for _name in OPTIMIZERS:
    STATES[f"optax_{_name}"] = lambda name=_name: {"params": params(), "opt_state": _optax(name)}


# ---- Flax ----


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Linear(2, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)])


class Plain(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Linear(2, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)


class Counter(nnx.Variable):  # type: ignore[type-arg]
    pass


@state
def flax_train_state() -> Any:
    return TrainState.create(apply_fn=len, params=params(), tx=optax.adam(1e-3))


@state
def flax_frozen_dict() -> Any:
    return {"params": FrozenDict(params()), "empty": FrozenDict({})}


@state
def nnx_state() -> Any:
    return nnx.state(Model(nnx.Rngs(0)))


@state
def nnx_split() -> Any:
    _, weights, stats, rest = nnx.split(Model(nnx.Rngs(params=0, dropout=1)), nnx.Param,
                                        nnx.BatchStat, ...)
    return {"params": weights, "batch_stats": stats, "rest": rest}


@state
def nnx_filter() -> Any:
    model = Model(nnx.Rngs(0))
    return {"rngs": nnx.state(model, nnx.RngState), "none": nnx.state(Plain(nnx.Rngs(0)),
                                                                      nnx.BatchStat)}


@state
def nnx_optimizer() -> Any:
    model = Model(nnx.Rngs(0))
    return nnx.state(nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param))


@state
def nnx_model_and_optimizer() -> Any:
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.chain(optax.clip(1.0), optax.adam(1e-3)), wrt=nnx.Param)
    return {"model": nnx.state(model), "optimizer": nnx.state(optimizer), "step": 3}


@state
def nnx_modules() -> Any:
    model = Plain(nnx.Rngs(0))
    return {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)}


@state
def nnx_pure_dict() -> Any:
    return nnx.to_pure_dict(nnx.state(Plain(nnx.Rngs(0))))


@state
def nnx_odd_variables() -> Any:
    return {"dict": nnx.Param({"value": jnp.ones(2)}), "none": nnx.Param(None),
            "empty": Counter({}), "pair": Counter((jnp.ones(1), ())), "number": Counter(3),
            "nested": nnx.Param(nnx.Param(jnp.ones(3))), "value": {"value": jnp.zeros(2)},
            "beside": {"value": nnx.Param(jnp.ones(1))}}


# ---- Equinox ----


class Layer(eqx.Module):
    weight: Any
    bias: Any
    missing: Any
    inner: Any
    count: int
    size: int = eqx.field(static=True)


class Nothing(eqx.Module):
    size: int = eqx.field(static=True)


@state
def equinox_module() -> Any:
    return Layer(jnp.ones((2, 3)), None, {}, [Nothing(3), None], 4, 5)


@state
def equinox_filtered() -> Any:
    model = eqx.nn.MLP(2, 2, 4, 2, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_inexact_array)
    return {"model": arrays, "opt_state": optax.adam(1e-3).init(arrays)}


# ---- others ----


class Empty(NamedTuple):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


@state
def leafless() -> Any:
    empty = [(), [], {}, None, Empty(), optax.EmptyState(), optax.MaskedNode(),
             collections.OrderedDict(), FrozenDict({}), Nothing(1)]
    return {"x": jnp.ones(1), "list": list(empty), "tuple": tuple(empty),
            "dict": {f"k{i}": each for i, each in enumerate(empty)},
            "pairs": [Pair(each, jnp.zeros(1)) for each in empty],
            "deep": {"a": [({"b": ()},)], "n": Pair(Empty(), None)}}


@state
def keys() -> Any:
    return {"threefry": jax.random.key(1), "many": jax.random.split(jax.random.key(2), (2, 3)),
            "rbg": jax.random.key(3, impl="rbg"), "unsafe": jax.random.key(4, impl="unsafe_rbg"),
            "raw": jax.random.PRNGKey(5), "raw_numpy": np.asarray(jax.random.PRNGKey(6)),
            "rngs": nnx.state(nnx.Rngs(0, dropout=1))}


@state
def numbers() -> Any:
    return {"step": 7, "rate": 0.5, "done": True, "name": "run",
            "array": np.arange(3), "weak": jnp.asarray(1.0), "ints": {0: {1: jnp.ones(1)}}}
