"""Time reversal: exact ratios, rate models, and the laws that they lead to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rflib.core.errors import UserError
from rflib.diffusion.master_equation import birth_death_generator, reverse_generator
from rflib.diffusion.metrics import total_variation
from rflib.methods.ehrenfest import ratio, reverse, theory, transition
from rflib.methods.ehrenfest.process import forward_rates, jump_moments, make_process
from rflib.methods.ehrenfest.theory import BIMODAL

SIZE = 20
LAWS = {
    "dirichlet": np.random.default_rng(0).dirichlet(np.ones(SIZE + 1)),
    "mixture": BIMODAL.lattice(SIZE),
    "point": np.eye(SIZE + 1)[7],
}


def exact_rates(p0, process, rate_at="shift"):
    """Reverse rates from the tabulated marginal of p0."""

    def rates(k, t):
        law = transition.log_pmf(process.size, process.w(t)) + jnp.log(jnp.asarray(p0))[None]
        found = ratio.marginal(jax.nn.logsumexp(law, 1), k)
        return reverse.assemble(found, k, process.size, process.rate(t), rate_at=rate_at)

    return rates


def test_marginal_ratio_is_the_posterior_mean_of_the_conditional_ratio(float64):
    p0, k = LAWS["dirichlet"], jnp.arange(SIZE + 1)

    @jax.jit
    def both(w):
        joint = transition.log_pmf(SIZE, w) + jnp.log(jnp.asarray(p0))[None]
        by_expectation = ratio.from_posterior(joint, k, SIZE, w)
        each = ratio.from_posterior(joint, k, SIZE, jnp.full(k.shape, w))
        return by_expectation, each, ratio.marginal(jax.nn.logsumexp(joint, 1), k)

    w = 0.6
    by_expectation, by_pair, by_table = both(w)
    for one, other in zip(by_pair, by_table, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    for one, other in zip(by_expectation, by_table, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    p = theory.marginal(p0, w)
    np.testing.assert_allclose(by_table.up[:-1], p[1:] / p[:-1], rtol=1e-10)
    np.testing.assert_array_equal([by_table.up[-1], by_table.down[0]], 0)


def test_exact_rates_are_those_of_the_reversed_chain(float64):
    """r̄(y|x) = p(y)/p(x) r(x|y), by the generic matrix formula."""
    process = make_process(SIZE, "constant", t_max=3.0)
    rates = jax.jit(exact_rates(LAWS["dirichlet"], process))(jnp.arange(SIZE + 1), 0.5)
    p = theory.marginal(LAWS["dirichlet"], np.exp(-0.5))
    expected = reverse_generator(theory.generator(SIZE), p)
    found = birth_death_generator(np.asarray(rates.birth), np.asarray(rates.death))
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("name", LAWS)
def test_reversed_master_equation_returns_the_data(name, float64):
    """From p_3 to t = 1e-3 with exact rates, up to 1.4e4 for a single point."""
    process = make_process(SIZE, "constant", t_min=1e-3, t_max=3.0)
    start = theory.marginal(LAWS[name], np.exp(-3.0))
    rates = exact_rates(LAWS[name], process)
    law = theory.reverse_law(rates, process, start, rtol=1e-9)
    exact = theory.marginal(LAWS[name], np.exp(-1e-3))
    assert np.abs(law - exact).max() < 1e-6
    assert abs(law.sum() - 1) < 1e-9


MODELS = {
    "score": lambda x, s, c, v, w, d: ratio.score(s, d),
    "taylor1": lambda x, s, c, v, w, d: ratio.taylor1(x, x + v * s, v, d),
    "taylor2": lambda x, s, c, v, w, d: ratio.taylor2(-v * s, v**2 * c + v, v, d),
    "taylor2_plugin": lambda x, s, c, v, w, d: ratio.taylor2(-v * s, (v * s) ** 2, v, d),
    "gauss": lambda x, s, c, v, w, d: ratio.gauss_smoothed(
        x, jnp.asarray(BIMODAL.means), jnp.log(jnp.asarray(BIMODAL.weights)), w, v + w**2 / 4, d
    ),
}


@functools.lru_cache
def _law_error(model, size, rate_at="shift", t_stop=0.01):
    process = make_process(size, "constant", t_min=0.01, t_max=2.0)

    def rates(k, t):
        x, w, variance = process.to_x(k), process.w(t), process.sig2(t)
        score, curvature = BIMODAL.score_and_curvature(x, w)
        found = MODELS[model](x, score, curvature, variance, w, process.delta)
        return reverse.assemble(found, k, size, process.rate(t), rate_at=rate_at)

    start = stats.binom.pmf(np.arange(size + 1), size, 0.5)
    law = theory.reverse_law(rates, process, start, t_stop=t_stop)
    return total_variation(law, theory.marginal(BIMODAL.lattice(size), np.exp(-t_stop)))


@pytest.mark.parametrize(
    ("rate_at", "expected"),
    [("shift", [0.04212, 0.01258, 0.00300]), ("here", [0.05041, 0.01427, 0.00354])],
)
def test_score_of_the_continuous_process_reverses_the_jump_process(rate_at, expected, float64):
    """Total variation at t = .01 for S = 25, 100, 400, and its slope of about -1 in log S."""
    found = [_law_error("score", size, rate_at) for size in (25, 100, 400)]
    np.testing.assert_allclose(found, expected, rtol=0.02)
    slope = np.polyfit(np.log([25, 100, 400]), np.log(found), 1)[0]
    assert -1.15 < slope < -0.85


@pytest.mark.parametrize(
    ("model", "expected"),
    [("gauss", 0.00611), ("taylor1", 0.04344), ("taylor2", 0.05406), ("taylor2_plugin", 0.04322)],
)
def test_other_rate_models_have_their_own_floor(model, expected, float64):
    np.testing.assert_allclose(_law_error(model, 100), expected, rtol=0.02)


@pytest.mark.parametrize(
    ("t_stop", "expected"),
    [(0.05, [0.01010, 0.02454, 0.02758]), (0.1, [0.00815, 0.01821, 0.01783])],
)
def test_stopping_earlier_favours_the_expansions(t_stop, expected, float64):
    models = ("score", "taylor1", "taylor2")
    found = [_law_error(m, 100, "shift", t_stop) for m in models]
    np.testing.assert_allclose(found, expected, rtol=0.02)


def test_reverse_jump_moments_are_the_drift_and_noise_of_the_reverse_sde(float64):
    """b = λ (x + 2 s + δ² s), D = λ (2 + δ² + δ² s x): exact algebra inside the lattice."""
    process = make_process(36, "constant", t_max=3.0)
    k, score = jnp.arange(1, 36), jnp.linspace(-2, 2, 35)
    rates = reverse.assemble(ratio.score(score, process.delta), k, 36, 1.3)
    drift, spread = jump_moments(rates, process.delta)
    x, square = process.to_x(k), process.delta**2
    np.testing.assert_allclose(drift, 1.3 * (x + 2 * score + square * score), atol=1e-10)
    np.testing.assert_allclose(spread, 1.3 * (2 + square + square * score * x), atol=1e-10)
    assert float(rates.negative) == 0


def test_reverse_plus_forward_rates_leave_the_law_unchanged(float64):
    process = make_process(SIZE, "constant", t_max=3.0)
    k, t = jnp.arange(SIZE + 1), jnp.asarray(0.3)
    exact = jax.jit(exact_rates(LAWS["mixture"], process))(k, t)
    rates = reverse.with_forward(exact, k, process, t)
    generator = birth_death_generator(np.asarray(rates.birth), np.asarray(rates.death))
    p = theory.marginal(LAWS["mixture"], np.exp(-0.3))
    np.testing.assert_allclose(generator @ p, 0, atol=1e-12)


def test_two_coordinates_reverse_one_at_a_time_given_both(float64):
    """All rates on a 9 x 9 grid against Bayes' rule on the joint chain, with no diagonal jumps."""
    size, w = 8, 0.55
    p0 = np.random.default_rng(1).dirichlet(np.ones(81)).reshape(9, 9)
    law = np.exp(np.asarray(transition.log_pmf(size, w)))
    p = law @ p0 @ law.T
    one, identity = theory.generator(size), np.eye(9)
    both = np.kron(one, identity) + np.kron(identity, one)
    exact = reverse_generator(both, p.ravel()).reshape(9, 9, 9, 9)  # [y1, y2, x1, x2]
    grid = jnp.stack(jnp.meshgrid(jnp.arange(9), jnp.arange(9), indexing="ij"), -1)
    found = np.zeros((9, 9, 9, 9))
    # The posterior of each coordinate of x_0 given the whole state.
    posterior = np.einsum("ai,bj,ij->abij", law, law, p0) / p[:, :, None, None]
    marginals = np.stack([posterior.sum(3), posterior.sum(2)], 2)  # [x1, x2, coordinate, k0]

    @jax.jit
    def reversed_rates(log_posterior):
        ratios = ratio.from_posterior(log_posterior, grid, size, w)
        return reverse.assemble(ratios, grid, size, 1.0)

    rates = jax.tree.map(np.asarray, reversed_rates(jnp.log(marginals)))
    for x in np.ndindex(9, 9):
        for d, e in ((0, np.array([1, 0])), (1, np.array([0, 1]))):
            for sign, value in ((1, rates.birth), (-1, rates.death)):
                y = np.array(x) + sign * e
                if (y >= 0).all() and (y <= size).all():
                    found[(*y, *x)] = value[(*x, d)]
    off = exact.reshape(81, 81) - np.diag(np.diag(exact.reshape(81, 81)))
    np.testing.assert_allclose(found.reshape(81, 81), off, atol=1e-10)


def test_reflected_data_swap_births_and_deaths(float64):
    process = make_process(SIZE, "constant", t_max=3.0)
    k, t, p0 = jnp.arange(SIZE + 1), jnp.asarray(0.4), LAWS["dirichlet"]
    plain = jax.jit(exact_rates(p0, process))(k, t)
    mirrored = jax.jit(exact_rates(p0[::-1].copy(), process))(k[::-1], t)
    np.testing.assert_allclose(plain.birth, mirrored.death, rtol=1e-10)
    np.testing.assert_allclose(plain.death, mirrored.birth, rtol=1e-10)


def _outputs(process, k, t):
    """Outputs of perfect networks for Gaussian data N(0, 1), whose marginal is N(0, 1)."""
    x, w, variance = process.to_x(k), process.w(t), process.sig2(t)
    mu = w**2 * x  # w E[x_0 | x]
    m2 = jnp.square(x - mu) + w**2 * variance
    return {
        "score": -x[..., None],
        "eps": jnp.sqrt(variance) * x[..., None],
        "taylor1": mu[..., None],
        "taylor2": jnp.stack([mu, m2 / variance], -1),
        "taylor2_plugin": mu[..., None],
        "ratio": jnp.stack([-x, x], -1) * process.delta - process.delta**2 / 2,
        "ratio_lin": jnp.stack([-x, -x], -1),
    }


@pytest.mark.parametrize("kind", [k for k in reverse.HEADS if k != "posterior"])
def test_every_network_head_gives_the_ratio_of_gaussian_data_on_a_wide_lattice(kind, float64):
    """δ² is much smaller than σ²: all kinds agree with exp(∓ δ x - δ²/2) up to their order in δ."""
    process, t = make_process(4096, "song"), jnp.asarray(0.6)
    k = process.to_k(jnp.linspace(-2, 2, 9))[None]
    found = reverse.network_ratios(kind, _outputs(process, k, t)[kind], k, process, t)
    x, d = process.to_x(k), process.delta
    tolerance = (
        3 * d**2 if kind in ("score", "eps", "taylor1", "taylor2_plugin", "ratio_lin") else 3 * d**3
    )
    np.testing.assert_allclose(found.up, np.exp(-d * x - d**2 / 2), atol=tolerance)
    np.testing.assert_allclose(found.down, np.exp(d * x - d**2 / 2), atol=tolerance)
    clean = reverse.clean_estimate(kind, _outputs(process, k, t)[kind], k, process, t)
    np.testing.assert_allclose(clean, process.w(t) * x, atol=0.01)


def test_posterior_head_gives_the_exact_rates_and_the_most_probable_state(float64):
    process, t = make_process(SIZE, "constant", t_max=3.0), jnp.asarray(0.4)
    joint = transition.log_pmf(SIZE, process.w(t)) + jnp.log(jnp.asarray(LAWS["dirichlet"]))[None]
    k = jnp.arange(SIZE + 1)[None]
    network = lambda x, t: joint[None]  # noqa: E731
    found = jax.jit(reverse.rate_function("posterior", network, process))(k, t)
    exact = jax.jit(exact_rates(LAWS["dirichlet"], process))(k[0], t)
    np.testing.assert_allclose(found.birth[0], exact.birth, rtol=1e-9, atol=1e-12)
    clean = reverse.clean_estimate("posterior", joint[None], k, process, t)
    np.testing.assert_array_equal(process.to_k(clean[0]), jnp.argmax(joint, 1))


def test_negative_ratios_are_counted_and_a_floor_is_never_out_of_the_lattice():
    ratios = ratio.Ratios(jnp.asarray([-1.0, 1.0, 1.0]), jnp.asarray([1.0, 1.0, -1.0]))
    k = jnp.asarray([0, 1, 2])
    rates = reverse.assemble(ratios, k, 2, 1.0)
    np.testing.assert_array_equal(rates.birth, [0, 1, 0])
    np.testing.assert_array_equal(rates.death, [0, 1, 0])
    np.testing.assert_allclose(rates.negative, 2 / 6)
    floored = reverse.assemble(ratios, k, 2, 1.0, floor=0.1)
    np.testing.assert_allclose(floored.birth, [0.1, 1, 0])
    np.testing.assert_allclose(floored.death, [0, 1, 0.1])


def test_guided_ratios_add_a_multiple_of_the_difference_of_scores(float64):
    """Scale 0 is unconditional, 1 conditional; to first order in δ the scores extrapolate."""
    d, one, other = 1e-4, jnp.asarray([0.3, -2.0]), jnp.asarray([1.0, 0.5])
    cond, free = ratio.score(one, d), ratio.score(other, d)
    np.testing.assert_allclose(ratio.guide(cond, free, 0.0).up, free.up)
    np.testing.assert_allclose(ratio.guide(cond, free, 1.0).down, cond.down)
    strong = ratio.guide(cond, free, 3.0)
    np.testing.assert_allclose((strong.up - 1) / d, other + 3 * (one - other), atol=2e-3)
    clipped = ratio.Ratios(jnp.asarray([0.0, -1.0]), jnp.asarray([1.0, 2.0]))
    for one, other in ((cond, clipped), (clipped, cond)):
        np.testing.assert_array_equal(ratio.guide(one, other, 2.5).up, 0)


def test_guided_rate_function_mixes_two_networks_and_takes_times_by_example():
    process = make_process(16, "song")
    cond, free = (lambda x, t, a=a: a * x[..., None] for a in (-0.1, -0.2))
    k, t = jnp.asarray([[3, 8], [9, 14]]), jnp.asarray([0.3, 0.6])

    @jax.jit
    def run(t):
        functions = [
            reverse.rate_function("score", cond, process),
            reverse.rate_function("score", free, process),
            *(reverse.rate_function("score", cond, process, guidance=(free, g)) for g in (1, 0, 2)),
        ]
        return [f(k, t)[:2] for f in functions]

    plain, other, one, none, two = run(t)
    np.testing.assert_allclose(one, plain, rtol=1e-5)
    np.testing.assert_allclose(none, other, rtol=1e-5)
    np.testing.assert_allclose(two, np.square(plain) / other, rtol=1e-4)
    single = run(jnp.full((2,), 0.3))[0]
    np.testing.assert_allclose(single[0][0], plain[0][0], rtol=1e-6)


def test_difference_of_exact_ratios_tends_to_the_score(float64):
    """(R+ - R-)/(2 δ) -> d log p/dx, with an error that falls as 1/S."""
    errors = []
    for size in (25, 100, 400):
        process = make_process(size, "constant", t_max=3.0)
        p = theory.marginal(BIMODAL.lattice(size), np.exp(-0.5))
        k = process.to_k(jnp.linspace(-2, 2, 9))
        found = ratio.marginal(jnp.log(jnp.asarray(p)), k)
        score = BIMODAL.score(process.to_x(k), np.exp(-0.5))
        errors.append(np.abs((found.up - found.down) / (2 * process.delta) - score).max())
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


def test_wrong_arguments_are_named():
    k = jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(UserError, match="rate_at"):
        reverse.assemble(ratio.Ratios(k, k), k, 2, 1.0, rate_at="there")
    with pytest.raises(UserError, match=r"kind.*eps"):
        reverse.rate_function("epsilon", lambda x, t: x, make_process(4))
    np.testing.assert_array_equal(forward_rates(k, 2, 1.0).birth, 1)
