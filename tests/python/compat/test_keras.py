# SPDX-License-Identifier: Apache-2.0
"""Keras models on the JAX backend: the callback, and restoring."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import stepwell  # noqa: E402
from stepwell.compat.keras import Checkpoint, restore  # noqa: E402

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(32, 2)
Y = X.sum(axis=1, keepdims=True)


def make_model(width: int = 4, compiled: bool = True) -> Any:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(width, name="hidden"),
                              keras.layers.BatchNormalization(name="norm"),
                              keras.layers.Dropout(0.2, name="dropout", seed=3),
                              keras.layers.Dense(1, name="out")], name="model")
    if compiled:
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    return model


def fit(model: Any, epochs: int, start: int = 0, callbacks: Any = ()) -> None:
    model.fit(X, Y, epochs=epochs, initial_epoch=start, batch_size=8, shuffle=False, verbose=0,
              validation_data=(X, Y), callbacks=list(callbacks))


def weights(model: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(value) for value in [*model.get_weights(), *(
        variable.value for variable in model.optimizer.variables)]]


def test_a_training_goes_on_as_if_it_had_not_stopped(path: Path) -> None:
    whole = make_model()
    fit(whole, 4)
    assert restore(make_model(), path) == 0
    first = make_model()
    fit(first, 2, callbacks=[Checkpoint(path)])
    second = make_model()
    start = restore(second, path)
    assert start == 2
    for ours, theirs in zip(weights(second), weights(first), strict=True):
        assert np.array_equal(ours, theirs)
    fit(second, 4, start, [Checkpoint(path)])
    for ours, theirs in zip(weights(second), weights(whole), strict=True):
        assert np.array_equal(ours, theirs)
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == [0, 1, 2, 3]
        assert set(store[3].metrics) == {"loss", "mae", "val_loss", "val_mae"}
        kernel = store[3]["trainable_variables/hidden/kernel"]
        assert np.array_equal(kernel, whole.layers[0].kernel.value)


def test_saves_between_epochs_have_the_values_of_that_batch(path: Path) -> None:
    seen = {}

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.jax_state_sync()
            seen[int(self.model.optimizer.iterations.value)] = np.array(
                self.model.layers[0].kernel.value)

    model = make_model()
    fit(model, 2, callbacks=[Watch(), Checkpoint(path, every=2, keep=3)])
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == [4, 6, 8]
        for step in store:
            assert np.array_equal(store[step]["trainable_variables/hidden/kernel"], seen[step])
    assert restore(make_model(), path, 4) == 0
    assert restore(make_model(), path) == 1


def test_the_best_step_stays(path: Path) -> None:
    class Worse(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["score"] = -float(epoch)

    fit(make_model(), 3, callbacks=[Worse(), Checkpoint(path, keep=1, monitor="score",
                                                        mode="max")])
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == [0, 2]
        assert store.best("score", "max") == 0


def test_a_model_that_is_not_compiled_takes_the_weights(path: Path) -> None:
    model = make_model()
    fit(model, 1, callbacks=[Checkpoint(path)])
    bare = make_model(compiled=False)
    restore(bare, path)
    assert np.allclose(bare.predict(X, verbose=0), model.predict(X, verbose=0))


def test_other_metrics_and_other_shapes(path: Path) -> None:
    fit(make_model(), 1, callbacks=[Checkpoint(path)])
    model = make_model()
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mse"])
    assert restore(model, path) == 1
    before = weights(wider := make_model(width=5))
    with pytest.raises(stepwell.MismatchError, match="trainable_variables/hidden/kernel: stored"):
        restore(wider, path)
    for ours, theirs in zip(weights(wider), before, strict=False):
        assert np.array_equal(ours, theirs)  # nothing was assigned


def test_a_training_that_fails_may_be_called_again(path: Path) -> None:
    class Fail(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise RuntimeError("stopped")

    model, checkpoint = make_model(), Checkpoint(path)
    with pytest.raises(RuntimeError, match="stopped"):
        fit(model, 3, callbacks=[checkpoint, Fail()])
    fit(model, 4, 2, callbacks=[checkpoint])
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == [0, 1, 2, 3]


def test_arguments_that_are_refused(path: Path) -> None:
    for every in (0, "batch", 1.5):
        with pytest.raises(stepwell.InvalidArgumentError, match="every must be"):
            Checkpoint(path, every=every)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        restore(make_model(), path, 3)
