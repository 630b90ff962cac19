"""gradient_step: exact accumulation, EMA, trainable subsets, mixed precision, skipped updates."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.train.gradient import gradient_step
from rflib.train.task import Aux, Task
from tests.train.problems import Net, regression

KEY = jax.random.key(7)


def masked_task() -> Task:
    """A mean over valid rows only, so that micro-batches have unequal weights."""
    net = Net()

    def init(key):
        return {"params": net.init(key, jnp.zeros((1, 3)))["params"], "extra": {}}

    def weight(batch):
        return jnp.sum(batch["valid"])

    def loss(variables, batch, key):
        error = net.apply({"params": variables["params"]}, batch["x"]) - batch["y"]
        squares = jnp.where(batch["valid"], error**2, 0)
        value = jnp.sum(squares) / weight(batch)
        return value, Aux({"largest": value * 2})

    return Task(init, loss, lambda step: None, weight=weight)


def masked_batch(rows: int = 16) -> dict:
    generator = np.random.default_rng(1)
    valid = generator.random(rows) < 0.5
    valid[0::4] = False  # one micro-batch of four has no valid row at all
    return {
        "x": generator.normal(size=(rows, 3)).astype(np.float32),
        "y": generator.normal(size=rows).astype(np.float32),
        "valid": valid,
    }


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_accumulation_equals_the_whole_batch_for_unequal_weights(parts):
    task, batch = masked_task(), masked_batch()
    tx = optax.sgd(0.1)
    whole, cut = gradient_step(task, tx), gradient_step(task, tx, accumulate=parts)
    state = whole.init(KEY)
    a, metrics_a = jax.jit(whole.update)(state, batch, KEY)
    b, metrics_b = jax.jit(cut.update)(state, batch, KEY)
    for name in metrics_a:
        np.testing.assert_allclose(metrics_a[name], metrics_b[name], rtol=2e-6, err_msg=name)
    moved = jax.tree.map(lambda new, old: new - old, a["params"], state["params"])
    assert trees.global_norm(moved) > 1e-3
    for x, y in zip(jax.tree.leaves(a["params"]), jax.tree.leaves(b["params"]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)


def test_accumulation_needs_rows_that_it_divides():
    step = gradient_step(masked_task(), optax.sgd(0.1), accumulate=3)
    with pytest.raises(UserError, match="accumulate=3 does not divide the 16 rows"):
        step.update(step.init(KEY), masked_batch(), KEY)


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.BatchNorm(use_running_average=False)(x))[:, 0]


def batch_norm_task() -> Task:
    net = Normed()

    def init(key):
        variables = net.init(key, jnp.zeros((2, 3)))
        return {"params": variables["params"], "extra": {"stats": variables["batch_stats"]}}

    def loss(variables, batch, key):
        inputs = {"params": variables["params"], "batch_stats": variables["extra"]["stats"]}
        y, new = net.apply(inputs, batch["x"], mutable=["batch_stats"])
        return jnp.mean((y - batch["y"]) ** 2), Aux({}, {"stats": new["batch_stats"]})

    return Task(init, loss, lambda step: None)


def test_batch_statistics_refuse_accumulation_unless_told():
    task, batch = batch_norm_task(), masked_batch()
    refused = gradient_step(task, optax.sgd(0.1), accumulate=4)
    state = refused.init(KEY)
    with pytest.raises(UserError, match="batch statistics"):
        refused.update(state, batch, KEY)
    allowed = gradient_step(task, optax.sgd(0.1), accumulate=4, accumulate_extra=True)
    new, _ = allowed.update(state, batch, KEY)
    assert trees.digest(new["extra"]) != trees.digest(state["extra"])


def test_ema_equals_its_closed_form():
    decay, steps = 0.9, 12
    task = masked_task()
    step = gradient_step(task, optax.sgd(0.05), ema=decay)
    state = step.init(KEY)
    history = [np.asarray(state["params"]["out"]["kernel"])]
    update = jax.jit(step.update)
    for _ in range(steps):
        state, _ = update(state, masked_batch(), KEY)
        history.append(np.asarray(state["params"]["out"]["kernel"]))
    weights = [decay**steps] + [(1 - decay) * decay ** (steps - i) for i in range(1, steps + 1)]
    assert abs(sum(weights) - 1) < 1e-12
    expected = sum(w * p for w, p in zip(weights, history, strict=True))
    np.testing.assert_allclose(state["ema"]["out"]["kernel"], expected, rtol=1e-5)
    assert step.view(state)["ema"] is state["ema"]


@pytest.mark.parametrize("trainable", ["^out/", lambda name: name.startswith("out/")])
def test_frozen_parameters_keep_their_bits_and_have_no_optimiser_state(trainable):
    task = masked_task()
    step = gradient_step(task, optax.adamw(1e-2, weight_decay=0.1), trainable=trainable)
    state = step.init(KEY)
    # -0.0 is the number that "add a zero update" would change.
    state["params"]["hidden"]["kernel"] = -jnp.zeros_like(state["params"]["hidden"]["kernel"])
    frozen = trees.digest(state["params"]["hidden"])
    new = state
    for _ in range(3):
        new, _ = jax.jit(step.update)(new, masked_batch(), KEY)
    assert trees.digest(new["params"]["hidden"]) == frozen
    assert trees.digest(new["params"]["out"]) != trees.digest(state["params"]["out"])
    assert not [name for name in trees.named_leaves(state["opt"]) if "hidden" in name]


def test_trainable_that_matches_nothing_names_the_parameters():
    step = gradient_step(masked_task(), optax.sgd(0.1), trainable="encoder")
    with pytest.raises(UserError, match="hidden/bias"):
        step.init(KEY)


def test_bfloat16_computes_in_it_and_keeps_float32_masters():
    seen = []
    task = masked_task()

    def loss(variables, batch, key):
        seen.append((variables["params"]["out"]["kernel"].dtype, batch["x"].dtype))
        return task.loss(variables, batch, key)

    step = gradient_step(task._replace(loss=loss), optax.adam(1e-2), compute_dtype=jnp.bfloat16)
    state = step.init(KEY)
    new, metrics = jax.jit(step.update)(state, masked_batch(), KEY)
    assert seen[0] == (jnp.bfloat16, jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(new["params"])} == {jnp.dtype("float32")}
    assert metrics["loss"].dtype == jnp.float32
    exact, _ = jax.jit(gradient_step(task, optax.adam(1e-2)).update)(state, masked_batch(), KEY)
    for a, b in zip(jax.tree.leaves(new["params"]), jax.tree.leaves(exact["params"]), strict=True):
        np.testing.assert_allclose(a, b, atol=0.025)  # Adam moves every weight by at most 1e-2


def test_clipping_is_optax_and_bounds_the_update():
    tx = optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(1.0))
    step = gradient_step(masked_task(), tx)
    state = step.init(KEY)
    new, metrics = jax.jit(step.update)(state, masked_batch(), KEY)
    moved = jax.tree.map(lambda a, b: a - b, new["params"], state["params"])
    assert metrics["grad_norm"] > 1e-2
    np.testing.assert_allclose(trees.global_norm(moved), 1e-3, rtol=1e-3)


def test_non_finite_updates_are_skipped_counted_and_bounded():
    step = gradient_step(masked_task(), optax.adam(1e-2), skip_nonfinite=2)
    update = jax.jit(step.update)
    good, bad = masked_batch(), masked_batch()
    bad["x"] = np.full_like(bad["x"], np.inf)
    state, metrics = update(step.init(KEY), good, KEY)
    before = trees.digest((state["params"], state["opt"]))
    for count in (1, 2):
        state, metrics = update(state, bad, KEY)
        assert bool(metrics["skipped"]) and int(metrics["skipped_total"]) == count
        assert trees.digest((state["params"], state["opt"])) == before
    state, metrics = update(state, bad, KEY)
    assert not bool(metrics["skipped"]) and not np.isfinite(metrics["grad_norm"])


def test_remat_changes_nothing():
    task = regression()

    def remat(variables, batch, key):
        return jax.checkpoint(task.loss)(variables, batch, key)

    batch = (task.data, task.batch(0))
    plain = gradient_step(task, optax.sgd(0.1))
    state = plain.init(KEY)
    a, _ = jax.jit(plain.update)(state, batch, KEY)
    other = gradient_step(task._replace(loss=remat), optax.sgd(0.1))
    assert "remat" in str(jax.make_jaxpr(other.update)(state, batch, KEY))
    b, _ = jax.jit(other.update)(state, batch, KEY)
    for x, y in zip(jax.tree.leaves(a["params"]), jax.tree.leaves(b["params"]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulate": 0}, "accumulate=0"),
        ({"ema": 1.0}, "ema=1.0"),
        ({"ema": -0.1}, "ema=-0.1"),
        ({"skip_nonfinite": -1}, "skip_nonfinite=-1"),
    ],
)
def test_arguments_out_of_range_are_named(options, words):
    with pytest.raises(UserError, match=words):
        gradient_step(masked_task(), optax.sgd(0.1), **options)
