"""Distances of generated images from the data, by pixels and by features of a small classifier."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from experiments.jumps import training
from experiments.jumps.images import Problem
from rflib.data import shuffled
from rflib.diffusion import metrics
from rflib.nn.features import Feat2d
from rflib.train.task import Eval, Key, Metrics


class Judge(NamedTuple):
    """features(values) -> (features [n, 128], probabilities [n, classes]); None without labels.

    everything: all images of the data. reference: their features.
    """

    problem: Problem
    everything: np.ndarray
    features: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None
    reference: np.ndarray | None
    accuracy: float | None


class _Classifier:
    """Feat2d with the signature of the other networks, whose second input it does not need."""

    def __init__(self, classes: int):
        # A scan of native convolutions is slow on a CPU.
        impl = "matmul" if jax.default_backend() == "cpu" else "auto"
        self.net = Feat2d(classes, impl=impl)

    def init(self, key: Key, x: Array, t: Array) -> Any:
        del t
        return self.net.init(key, x)

    def apply(self, variables: Any, x: Array, t: Array) -> Array:
        del t
        return self.net.apply(variables, x)  # type: ignore[return-value]


def judge(config: Any, run: Any, found: Problem) -> Judge:
    """Trains the classifier on the training images; without labels only pixels are compared."""
    images = found.images
    everything = np.concatenate([images.train, images.test])
    labels, test_labels = images.train_labels, images.test_labels
    if labels is None or test_labels is None or not len(images.test):
        run.note("the images have no labels: no features, only distances of pixels")
        return Judge(found, everything, None, None, None)
    classes = np.unique(labels)
    places = np.searchsorted(classes, labels)
    wanted = np.searchsorted(classes, test_labels)
    net = _Classifier(len(classes))

    def value(apply: Any, params: Any, key: Key, rows: Any) -> Any:
        del key
        logits = apply(params, scaled(rows["images"], images.levels), jnp.zeros(())).logits
        each = optax.softmax_cross_entropy_with_integer_labels(logits, rows["labels"])
        return jnp.mean(each), {}

    classify = jax.jit(lambda params, x: net.net.apply({"params": params}, x))

    def measured(params: Any, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = []
        for part in np.array_split(values, -(-len(values) // 500)):
            room = np.zeros((500, *values.shape[1:]), values.dtype)
            room[: len(part)] = part
            out = classify(params, scaled(jnp.asarray(room), images.levels))
            probabilities = np.asarray(jax.nn.softmax(out.logits, -1))
            found.append((np.asarray(out.features)[: len(part)], probabilities[: len(part)]))
        features, probabilities = zip(*found, strict=True)
        return np.concatenate(features), np.concatenate(probabilities)

    def test(view: Any, key: Key) -> Metrics:
        del key
        guess = measured(view["ema"], images.test)[1].argmax(1)
        return {"accuracy": float(np.mean(guess == wanted))}

    rows = {"images": jnp.asarray(images.train), "labels": jnp.asarray(places, jnp.int32)}
    result = training.train(
        config, run, "features", net, value,
        shuffled(len(labels), min(config.features.batch, len(labels)), seed=config.seed),
        shape=found.shape, steps=config.features.steps, ema=0.9, data=rows, seed=config.seed,
        evals={"test": Eval(test)}, warmup=0,
    )  # fmt: skip
    weights = training.averaged(result)
    reference = measured(weights, everything)[0]
    accuracy = result.metrics["test/accuracy"]
    return Judge(found, everything, lambda x: measured(weights, x), reference, accuracy)


def scaled(values: Array, levels: int) -> Array:
    """Values 0 … V - 1 as [-1, 1]."""
    return 2 * values.astype(jnp.float32) / (levels - 1) - 1


def measure(judge: Judge, values: np.ndarray) -> dict[str, Any]:
    """All distances of generated values [n, h, w, c] from the data."""
    levels = judge.problem.images.levels
    flat = judge.problem.images.train.reshape(len(judge.problem.images.train), -1).astype(float)
    some = values[:1000].reshape(min(1000, len(values)), -1).astype(np.float64)
    found: dict[str, Any] = {
        "tv_pixel": float(
            np.mean(metrics.marginal_total_variation(values, judge.everything, levels))
        ),
        "nearest": float(np.median(metrics.nearest_distance(some, flat))),
    }
    if judge.features is not None and judge.reference is not None:
        features, probabilities = judge.features(values)
        kid, kid_se = metrics.kernel_distance(features, judge.reference, subsets=20)
        score, spread = metrics.inception_score(probabilities)
        found |= {
            "fid_feat": metrics.frechet_features(features, judge.reference),
            "kid_feat": kid, "kid_se": kid_se, "is_feat": score, "is_std": spread,
        }  # fmt: skip
    return found


def floors(judge: Judge, count: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """What the metrics say of the data themselves: as many draws of them, and halves."""
    rng = np.random.default_rng(seed)
    drawn = judge.everything[rng.integers(0, len(judge.everything), count)]
    order = rng.permutation(len(judge.everything))
    one, other = np.array_split(judge.everything[order], 2)
    halves: dict[str, Any] = {
        "tv_pixel": float(
            np.mean(metrics.marginal_total_variation(one, other, judge.problem.images.levels))
        )
    }
    if judge.features is not None:
        halves["fid_feat"] = metrics.frechet_features(
            judge.features(one)[0], judge.features(other)[0]
        )
    return {f"the data, {count} draws": measure(judge, drawn), "half of the data": halves}
