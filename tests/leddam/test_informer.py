"""Informer (Zhou et al., AAAI 2021) against an independent numpy forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.informer import (
    Distilling,
    Informer,
    ProbSparseAttention,
    sampled_keys,
    sparse_count,
    sparsity,
)
from rflib.methods.leddam.transformer import Attention
from rflib.nn import variables
from tests.leddam import sequence_oracle as oracle

SMALL = Informer(3, 13, 5, 8, 12, n_heads=2, label_len=4, factor=1)
FAST = oracle.quick_jit(variables.apply, static_argnums=0, static_argnames="train")


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def measures(query: np.ndarray, key: np.ndarray, factor: int) -> np.ndarray:
    """max - mean of the scores of each query with its sampled keys, one by one."""
    count = min(len(key), max(1, factor * int(np.ceil(np.log(len(key))))))
    sample = np.asarray(sampled_keys(len(query), len(key), count))
    scores = [[row @ key[m] for m in seen] for row, seen in zip(query, sample, strict=True)]
    return np.array([max(each) - sum(each) / count for each in scores])


def sparse_rows(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool, *, factor: int
) -> np.ndarray:
    """[L, E]: attention of the top queries, mean(V) or cumsum(V) in the other rows."""
    count = min(len(query), max(1, factor * int(np.ceil(np.log(len(query))))))
    top = np.argsort(-measures(query, key, factor))[:count]
    rows = value.cumsum(0) if causal else np.repeat(value.mean(0, keepdims=True), len(query), 0)
    for t in top:
        seen = t + 1 if causal else len(key)
        rows[t] = oracle.attention_row(query[t], key[:seen], value[:seen])
    return rows


def numpy_distilling(p: dict, mean: np.ndarray, var: np.ndarray, x: np.ndarray) -> np.ndarray:
    x = oracle.circular_convolution(p["convolution"], x)
    norm = p["batch_norm"]
    x = (x - oracle.wide(mean)) / np.sqrt(oracle.wide(var) + 1e-5)
    x = x * oracle.wide(norm["scale"]) + oracle.wide(norm["bias"])
    x = np.where(x > 0, x, np.exp(x) - 1)
    length = x.shape[1]
    windows = [(max(0, t - 1), min(length, t + 2)) for t in range(0, length, 2)]
    return np.stack([x[:, first:stop].max(1) for first, stop in windows], 1)


def test_informer_equals_the_equations_in_numpy():
    v, x = oracle.drawn_variables(SMALL), drawn(1, 4, 13, 3)

    def between(number: int, tokens: np.ndarray) -> np.ndarray:
        name = f"between_{number}"
        running = v["extra"]["batch_stats"][name]["batch_norm"]
        return numpy_distilling(v["params"][name], running["mean"], running["var"], tokens)

    attend = oracle.attention(functools.partial(sparse_rows, factor=SMALL.factor))
    expected = oracle.forecast(SMALL, v["params"], x, None, attend, between)
    full = oracle.forecast(SMALL, v["params"], x, None, None, between)
    assert np.abs(expected - full).max() > 0.1  # the sparse rows matter
    np.testing.assert_allclose(FAST(SMALL, v, x)[0], expected, rtol=2e-4, atol=2e-4)


@functools.partial(oracle.quick_jit, static_argnums=(0, 4))
def mix(module: ProbSparseAttention, query, key, value, train=False, rng=None):
    rngs = {} if rng is None else {"sample": rng}
    mixed, sown = module.apply(
        {}, query, key, value, train, method="mix", rngs=rngs, mutable=["intermediates"]
    )
    return mixed, sown["intermediates"]["queries"][0]


@pytest.mark.parametrize("causal", [False, True])
def test_probsparse_rows_are_attention_where_chosen_and_mean_or_sum_of_values_elsewhere(causal):
    module = ProbSparseAttention(6, 2, 0.1, causal, factor=2)
    query, key, value = (drawn(seed, 3, 2, 20, 3) for seed in range(3))
    mixed, chosen = map(np.asarray, mix(module, query, key, value))
    assert chosen.shape == (3, 2, sparse_count(20, 2))
    for b in range(3):
        for h in range(2):
            q, k, v = (a[b, h].astype(np.float64) for a in (query, key, value))
            measure = measures(q, k, 2)
            assert set(chosen[b, h]) == set(np.argsort(-measure)[: chosen.shape[-1]])
            expected = sparse_rows(q, k, v, causal, factor=2)
            np.testing.assert_allclose(mixed[b, h], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 12])
def test_probsparse_attention_that_chooses_every_query_is_full_attention(causal, length):
    query, key, value = (jnp.asarray(drawn(seed, 2, 2, length, 3)) for seed in range(3))
    full = Attention(6, 2, 0.0, causal).apply({}, query, key, value, False, method="mix")
    module = ProbSparseAttention(6, 2, 0.0, causal, factor=9)
    for train, rng in ((False, None), (True, oracle.fast_key(0))):
        mixed, chosen = mix(module, query, key, value, train, rng)
        assert chosen.shape == (2, 2, length)
        np.testing.assert_allclose(mixed, full, rtol=1e-5, atol=1e-6)


def test_causal_probsparse_rows_see_no_later_value_or_key():
    module = ProbSparseAttention(3, 1, 0.0, causal=True, factor=1)
    query, key, value = (jnp.asarray(drawn(seed, 1, 1, 12, 3)) for seed in range(3))

    @oracle.quick_jit
    def reach(key, value):
        rows = jax.jacobian(
            lambda k, v: module.apply({}, query, k, v, False, method="mix")[0, 0], argnums=(0, 1)
        )(key, value)
        return tuple(jnp.abs(j[:, :, 0, 0]).max((1, 3)) for j in rows)

    for reached in map(np.asarray, reach(key, value)):
        np.testing.assert_array_equal(np.triu(reached, 1), 0)
    chosen = np.asarray(mix(module, query, key, value)[1])[0, 0]
    by_key, by_value = map(np.asarray, reach(key, value))
    assert by_value[np.tri(12, dtype=bool)].min() > 0
    others = np.setdiff1d(np.arange(12), chosen)
    np.testing.assert_array_equal(by_key[others], 0)  # their rows are sums of values
    assert by_key[chosen.max(), 0] > 0


def test_sparsity_is_0_for_uniform_scores_and_counts_every_draw():
    sample = jnp.asarray([[0, 0, 2], [1, 1, 1]])
    flat = jnp.full((1, 2, 3), 4.0)
    np.testing.assert_allclose(sparsity(flat, sample), [[0, 0]], atol=1e-6)
    scores = jnp.asarray([[[6.0, 50.0, 0.0], [1.0, 7.0, 9.0]]])
    np.testing.assert_allclose(sparsity(scores, sample), [[6 - 4, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("length", "factor", "count"), [(96, 5, 25), (96, 1, 5), (720, 3, 21), (3, 5, 3), (1, 5, 1)]
)
def test_number_of_queries_is_factor_times_log_of_the_length(length, factor, count):
    assert sparse_count(length, factor) == count


def test_sampled_keys_are_fixed_without_a_random_key_and_uniform_with_one():
    np.testing.assert_array_equal(sampled_keys(40, 30, 9), sampled_keys(40, 30, 9))
    np.testing.assert_array_equal(sampled_keys(2, 5, 5), [np.arange(5)] * 2)
    for key in (None, oracle.fast_key(0)):
        draws = np.asarray(sampled_keys(1000, 30, 9, key))
        share = np.bincount(draws.ravel(), minlength=30) / draws.size
        np.testing.assert_allclose(share, np.full(30, 1 / 30), atol=5 / np.sqrt(30 * draws.size))


def test_sample_is_drawn_by_key_in_training_and_fixed_otherwise():
    module = ProbSparseAttention(6, 2, 0.0, factor=1)
    query, key, value = (drawn(seed, 4, 2, 30, 3) for seed in range(3))
    (one, _), (same, _), (other, _) = (
        mix(module, query, key, value, True, oracle.fast_key(seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert float(jnp.abs(one - other).max()) > 1e-3
    fixed, _ = mix(module, query, key, value, False, oracle.fast_key(1))
    np.testing.assert_array_equal(fixed, mix(module, query, key, value, False, None)[0])
    with pytest.raises(Exception, match="dropout"):
        mix(module, query, key, value, True, None)


@pytest.mark.parametrize("length", [1, 6, 7])
def test_distilling_halves_the_tokens_as_in_numpy_and_averages_the_statistics(length):
    module = Distilling(4)
    x = jnp.asarray(drawn(3, 5, length, 4))
    v = oracle.drawn_like(
        jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(x.shape), False))
    )
    p, running = v["params"], v["batch_stats"]["batch_norm"]
    expected = numpy_distilling(p, running["mean"], running["var"], x)
    assert expected.shape == (5, (length + 1) // 2, 4)

    @functools.partial(oracle.quick_jit, static_argnums=2)
    def run(v, x, train):
        return module.apply(v, x, train, mutable=["batch_stats"])

    np.testing.assert_allclose(run(v, x, False)[0], expected, rtol=1e-4, atol=1e-5)
    raw = oracle.circular_convolution(p["convolution"], x)
    mean, var = raw.mean((0, 1)), raw.var((0, 1))
    result, changed = run(v, x, True)
    np.testing.assert_allclose(result, numpy_distilling(p, mean, var, x), rtol=1e-3, atol=1e-3)
    new, count = changed["batch_stats"]["batch_norm"], 5 * length
    np.testing.assert_allclose(new["mean"], 0.9 * running["mean"] + 0.1 * mean, rtol=1e-4)
    unbiased = var * count / (count - 1)
    np.testing.assert_allclose(new["var"], 0.9 * running["var"] + 0.1 * unbiased, rtol=1e-4)


@pytest.mark.parametrize(("layers", "distil"), [(2, True), (3, True), (3, False)])
def test_informer_has_its_number_of_parameters_in_closed_form(layers, distil):
    module = Informer(7, 96, 192, n_layers=layers, distil=distil, n_marks=4)
    shapes = jax.eval_shape(lambda key: variables.init(module, key, (1, 96, 7)), jax.random.key(0))
    expected = oracle.parameter_count(7, 512, 2048, layers, 1, 4, (layers - 1) * distil)
    assert trees.size(shapes["params"]) == expected


@oracle.quick_jit
def trained(v: dict, x: jax.Array, key: jax.Array):
    """((loss, extra), gradient); without dropout the key draws the sampled keys only."""

    def loss(params):
        module = SMALL.clone(dropout=0.0)
        forecast, extra = variables.apply(module, {**v, "params": params}, x, train=True, key=key)
        return jnp.mean(jnp.square(forecast - 1)), extra

    return jax.value_and_grad(loss, has_aux=True)(v["params"])


def test_informer_gradient_reaches_every_parameter_but_biases_that_cancel():
    v, x = oracle.drawn_variables(SMALL), drawn(1, 8, 13, 3)
    _, gradient = trained(v, x, oracle.fast_key(0))
    # Softmax drops what all scores of a query share, BatchNorm what all tokens share: the bias of
    # the convolution and, through it, that of the norm in front.
    cancel = ("key/bias", "convolution/bias", "encoder_0/output_norm/bias")
    for name, leaf in trees.named_leaves(gradient).items():
        reached = np.abs(leaf).max(tuple(range(1, leaf.ndim)))
        if name.endswith(cancel):
            assert reached.max() < 1e-5, name
        else:
            assert reached.min() > 1e-5, name


def test_informer_draws_its_sample_by_key_in_training_and_averages_the_statistics():
    v, x = oracle.drawn_variables(SMALL), drawn(1, 8, 13, 3)
    ((one, stats), _), ((same, _), _), ((other, _), _) = (
        trained(v, x, oracle.fast_key(seed)) for seed in (1, 1, 2)
    )
    assert float(one) == float(same)
    assert abs(float(one) - float(other)) > 1e-3
    new, old = (extra["batch_stats"]["between_0"]["batch_norm"] for extra in (stats, v["extra"]))
    for name in ("mean", "var"):
        assert float(jnp.abs(new[name] - old[name]).min()) > 1e-4, name


@pytest.mark.parametrize(("seq_len", "pred_len"), [(1, 20), (3, 1)])
def test_informer_takes_any_lookback_and_horizon(seq_len, pred_len):
    module = Informer(2, seq_len, pred_len, 4, 4, n_heads=1)
    v, x = oracle.drawn_variables(module), drawn(1, 2, seq_len, 2)
    before = np.asarray(FAST(module, v, x)[0])
    assert before.shape == (2, pred_len, 2)
    assert np.isfinite(before).all()
    assert np.abs(np.asarray(FAST(module, v, 2 * x)[0]) - before).max() > 1e-4


def test_informer_refuses_impossible_factors():
    with pytest.raises(UserError, match="factor=0"):
        Informer(3, 12, 5, factor=0)
