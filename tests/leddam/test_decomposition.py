"""The learnable decomposition of Leddam (ICML 2024, section 3.2)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.decomposition import (
    CONSTRAINTS,
    KERNELS,
    LearnableDecomposition,
    band_matrix,
    correlate,
    decomposition_size,
    initial_kernel,
    kernel_mask,
    smooth,
)
from rflib.nn import variables

FORMS = ("matrix", "convolution")
smoothed = jax.jit(smooth, static_argnames="form")


def by_loops(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """main[d] = Σ_i w_i x[clip(d + i - K//2)], one product at a time."""
    result = np.zeros(x.shape)
    length, centre = x.shape[-1], len(kernel) // 2
    for d in range(length):
        for i, weight in enumerate(kernel):
            result[..., d] += weight * x[..., min(max(d + i - centre, 0), length - 1)]
    return result


def test_official_kernel_is_the_softmax_of_the_bell_and_almost_flat():
    kernel = np.asarray(initial_kernel("softmax_gauss", 25), np.float64)
    bell = [np.exp(-((i - 12) ** 2) / 4) for i in range(25)]
    expected = np.exp(bell) / np.sum(np.exp(bell))
    np.testing.assert_allclose(kernel, expected, atol=1e-7)
    np.testing.assert_array_equal(kernel, kernel[::-1])
    assert abs(kernel.sum() - 1) < 1e-6
    assert kernel.argmax() == 12
    assert abs(kernel[12] / kernel[0] - np.exp(1 - np.exp(-36.0))) < 1e-6


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("taps", [1, 3, 25])
def test_every_initial_kernel_is_symmetric_of_sum_1_and_largest_in_the_middle(name, taps):
    kernel = np.asarray(initial_kernel(name, taps))
    np.testing.assert_allclose(kernel, kernel[::-1], rtol=1e-6)
    assert abs(kernel.sum() - 1) < 1e-6
    assert kernel[taps // 2] == kernel.max()


def test_gauss_is_the_bell_over_its_sum_and_uniform_the_moving_average():
    bell = np.exp(-np.array([4.0, 1, 0, 1, 4]) / 4)
    np.testing.assert_allclose(initial_kernel("gauss", 5), bell / bell.sum(), rtol=1e-6)
    for name in ("uniform", "mov_frozen"):
        np.testing.assert_allclose(initial_kernel(name, 5), 0.2, rtol=1e-6)


@pytest.mark.parametrize("taps", [2, 24, 0])
def test_an_even_or_empty_kernel_is_refused_by_name(taps):
    with pytest.raises(UserError, match="kernel_size"):
        initial_kernel("gauss", taps)


def test_an_unknown_kernel_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"softmax_gauss.*did you mean 'gauss'"):
        initial_kernel("gaus", 25)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [1, 2, 5, 12, 13, 25, 40])
def test_constants_are_preserved_at_every_length_shorter_than_the_kernel_too(length, form):
    x = jnp.full((2, length), -3.7)
    result = smoothed(x, initial_kernel("softmax_gauss", 25), form=form)
    np.testing.assert_allclose(result, x, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_ramp_passes_unchanged_away_from_the_ends(form):
    ramp = 2.0 - 0.5 * jnp.arange(60.0)
    main = smoothed(ramp, initial_kernel("softmax_gauss", 25), form=form)
    inner = slice(12, -12)
    bound = 1e-6 * float(jnp.abs(ramp).max())
    np.testing.assert_allclose(main[inner], ramp[inner], atol=bound)
    assert abs(float(main[0] - ramp[0])) > 0.1  # edge replication bends it there


@pytest.mark.parametrize("taps", [1, 5, 25])
@pytest.mark.parametrize("length", [1, 2, 7, 31])
def test_matrix_and_convolution_equal_the_sum_over_taps_with_replicated_edges(taps, length):
    rng = np.random.default_rng(taps + length)
    x, kernel = rng.normal(size=(2, 3, length)), rng.normal(size=taps)
    expected = by_loops(x, kernel)
    for form in FORMS:
        result = smoothed(jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32), form=form)
        np.testing.assert_allclose(result, expected, atol=2e-6 * max(1, taps**0.5))


def test_series_past_the_longest_matrix_take_the_convolution():
    kernel = initial_kernel("gauss", 5)
    shapes = jax.make_jaxpr(functools.partial(smooth, form="auto"))(jnp.zeros((1, 5000)), kernel)
    assert "conv_general_dilated" in str(shapes)
    short = jax.make_jaxpr(functools.partial(smooth, form="auto"))(jnp.zeros((1, 96)), kernel)
    assert "conv_general_dilated" not in str(short)


def test_gradients_through_the_matrix_equal_those_through_the_convolution(float64):
    rng = np.random.default_rng(3)
    x, kernel, weight = (jnp.asarray(rng.normal(size=s)) for s in ((4, 11), (5,), (4, 11)))

    def pulled(form: str) -> tuple:
        def value(x, kernel):
            return jnp.sum(weight * smooth(x, kernel, form) ** 2)

        return jax.jit(jax.grad(value, (0, 1)))(x, kernel)

    for matrix, convolution in zip(pulled("matrix"), pulled("convolution"), strict=True):
        np.testing.assert_allclose(matrix, convolution, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [2, 4, 9])
def test_columns_of_the_band_matrix_sum_to_the_kernels_sum(length):
    kernel = jnp.asarray(np.random.default_rng(0).normal(size=7), jnp.float32)
    matrix = band_matrix(kernel, length)
    total = np.full(length, float(kernel.sum()))
    np.testing.assert_allclose(matrix.sum(0), total, rtol=1e-5, atol=1e-6)


def test_main_and_residual_add_up_to_the_input_for_any_kernel_and_bias():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, 3, 20)), jnp.float32)
    module = LearnableDecomposition(5)
    params = {"kernel": jnp.asarray(rng.normal(size=5), jnp.float32), "bias": jnp.float32(0.3)}
    main, residual = module.apply({"params": params}, x)
    np.testing.assert_allclose(main + residual, x, atol=1e-6)
    np.testing.assert_allclose(main, by_loops(x, params["kernel"]) + 0.3, atol=1e-5)


def test_one_tap_leaves_nothing_to_the_residual():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(3, 9)), jnp.float32)
    module = LearnableDecomposition(1)
    main, residual = module.apply(module.init(jax.random.key(0), x), x)
    np.testing.assert_array_equal(main, x)
    np.testing.assert_array_equal(residual, np.zeros(x.shape))


def test_channels_share_the_kernel_so_their_order_does_not_matter():
    x = jnp.asarray(np.random.default_rng(4).normal(size=(2, 5, 30)), jnp.float32)
    order = np.array([3, 0, 4, 1, 2])
    kernel = jnp.asarray(np.random.default_rng(5).normal(size=25), jnp.float32)
    for form in FORMS:
        whole = smoothed(x, kernel, form=form)
        np.testing.assert_array_equal(smoothed(x[:, order], kernel, form=form), whole[:, order])
        one = smoothed(x[:, 2:3], kernel, form=form)
        np.testing.assert_allclose(one, whole[:, 2:3], atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_26_numbers_for_all_channels_trained_unless_frozen(name):
    module = LearnableDecomposition(25, name)
    first = module.init(jax.random.key(0), jnp.zeros((2, 137, 96)))
    frozen = name == "mov_frozen"
    assert trees.size(first.get("params", {})) == (0 if frozen else 26)
    assert trees.size(first.get("frozen", {})) == (26 if frozen else 0)


def test_an_impulse_shows_the_kernel_unflipped():
    kernel = jnp.arange(1.0, 6.0)
    impulse = jnp.zeros((1, 15)).at[0, 7].set(1.0)
    np.testing.assert_allclose(correlate(impulse, kernel)[0, 5:10], kernel[::-1])


def test_variables_of_the_module_are_kept_apart_as_params_and_extra():
    class Both(LearnableDecomposition):
        def __call__(self, x, train):
            return super().__call__(x)

    first = variables.init(Both(3, "mov_frozen"), jax.random.key(0), (2, 8))
    assert first["params"] == {}
    assert set(first["extra"]["frozen"]) == {"kernel", "bias"}


def first_params(module: LearnableDecomposition, length: int = 8) -> dict:
    return module.init(jax.random.key(0), jnp.zeros((1, length)))["params"]


def kernel_of(module: LearnableDecomposition, params: dict) -> np.ndarray:
    return np.asarray(module.bind({"params": params}).kernel)


def drawn(params: dict, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), jnp.float32), params)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("name", ["softmax_gauss", "gauss", "uniform"])
@pytest.mark.parametrize("taps", [1, 5, 49])
def test_a_constrained_kernel_starts_like_the_free_one(taps, name, constraint):
    module = LearnableDecomposition(taps, name, constraint=constraint)
    params = first_params(module)
    np.testing.assert_allclose(kernel_of(module, params), initial_kernel(name, taps), atol=1e-6)
    assert trees.size(params) == decomposition_size(taps, constraint)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("constraint", ["simplex", "symmetric"])
def test_a_constrained_kernel_has_sum_1_and_no_negative_tap_whatever_is_trained(constraint):
    module = LearnableDecomposition(7, constraint=constraint)
    kernel = kernel_of(module, drawn(first_params(module)))
    assert kernel.min() > 0
    assert abs(kernel.sum() - 1) < 1e-6
    assert (np.abs(kernel - kernel[::-1]).max() < 1e-7) == (constraint == "symmetric")


def test_a_symmetric_kernel_lets_every_ramp_pass_away_from_the_ends():
    module = LearnableDecomposition(7, constraint="symmetric")
    params = {**drawn(first_params(module)), "bias": jnp.float32(0.25)}
    ramp = 2.0 - 0.5 * jnp.arange(20.0)
    main, residual = module.apply({"params": params}, ramp)
    np.testing.assert_allclose(main[3:-3], ramp[3:-3] + 0.25, atol=1e-5)
    np.testing.assert_allclose(main + residual, ramp, atol=1e-6)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_bank_is_the_gated_sum_of_what_its_kernels_would_give(constraint):
    bank = LearnableDecomposition(5, constraint=constraint, more_kernels=(1, 9))
    params = drawn(first_params(bank))
    assert trees.size(params) == decomposition_size(5, constraint, (1, 9))
    gate = np.exp(np.asarray(params["gate"], np.float64))
    gate /= gate.sum()
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 12)), jnp.float32)
    word = "kernel" if constraint == "none" else "logits"
    expected = np.full(x.shape, float(params["bias"]))
    for share, taps, suffix in zip(gate, (5, 1, 9), ("", "_1", "_2"), strict=True):
        one = LearnableDecomposition(taps, constraint=constraint)
        own = {word: params[word + suffix], "bias": jnp.float32(0)}
        expected += share * np.asarray(one.apply({"params": own}, x)[0])
    np.testing.assert_allclose(bank.apply({"params": params}, x)[0], expected, atol=1e-5)


def test_a_bank_starts_as_the_mean_of_its_kernels_and_freezes_as_a_mean_of_averages():
    bank = LearnableDecomposition(3, more_kernels=(5,))
    three, five = (np.asarray(initial_kernel("softmax_gauss", taps)) for taps in (3, 5))
    expected = (np.pad(three, 1) + five) / 2
    np.testing.assert_allclose(kernel_of(bank, first_params(bank)), expected, rtol=1e-6)
    frozen = bank.clone(ld_init="mov_frozen").init(jax.random.key(0), jnp.zeros((1, 8)))
    assert "params" not in frozen
    side, middle = 0.1, (1 / 3 + 1 / 5) / 2
    expected = [side, middle, middle, middle, side]
    np.testing.assert_allclose(frozen["frozen"]["kernel"], expected, rtol=1e-6)


def test_sizes_of_decompositions_in_numbers():
    assert decomposition_size(25) == 26
    assert decomposition_size(25, "symmetric") == 14
    assert decomposition_size(13, "none", (25, 49)) == 13 + 25 + 49 + 3 + 1
    assert decomposition_size(13, "symmetric", (25, 49)) == 7 + 13 + 25 + 3 + 1


def test_the_kernel_mask_marks_all_parameters_of_a_decomposition_and_no_others():
    bank = first_params(LearnableDecomposition(3, constraint="simplex", more_kernels=(5,)))
    params = {"decomposition": bank, "head": {"bias": jnp.zeros(2)}, "decomposition_x": jnp.ones(1)}
    mask = kernel_mask(params)
    assert mask["decomposition"] == dict.fromkeys(("bias", "gate", "logits", "logits_1"), True)
    assert mask["head"] == {"bias": False}
    assert mask["decomposition_x"] is False


def test_unknown_constraints_and_even_further_kernels_are_refused():
    x = jnp.zeros((1, 8))
    with pytest.raises(UserError, match=r"kernel_constraint='sum'.*'none', 'simplex'"):
        LearnableDecomposition(3, constraint="sum").init(jax.random.key(0), x)
    with pytest.raises(UserError, match="kernel_size=4 must be odd"):
        LearnableDecomposition(3, more_kernels=(4,)).init(jax.random.key(0), x)
