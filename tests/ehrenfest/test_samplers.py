"""Samplers against recursions, exact laws and degenerate cases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.ehrenfest import ratio, reverse, samplers, theory, transition
from rflib.methods.ehrenfest.process import draw_initial, make_process
from rflib.methods.ehrenfest.samplers import Clamp, Corrector
from rflib.methods.ehrenfest.theory import BIMODAL

SIZE = 20
MIXTURE = BIMODAL.lattice(SIZE)
PROCESS = make_process(SIZE, "constant", t_min=0.01, t_max=3.0)


def spectral_rates(p0, process):
    """Exact reverse rates by the eigenvectors of the generator: O(S) a state and time."""
    size = len(p0) - 1
    pi = np.exp(transition.stationary_log_pmf(size))
    root = np.sqrt(pi)
    values, vectors = np.linalg.eigh(theory.generator(size) * root[None] / root[:, None])
    levels = np.round(-values)  # 0 … S
    table = jnp.asarray(root[:, None] * vectors * (vectors.T @ (p0 / root))[None], jnp.float32)

    def rates(k, t):
        decay = process.w(t) ** jnp.asarray(levels, jnp.float32)
        p = jnp.maximum(table @ decay, 1e-12)
        return reverse.assemble(ratio.marginal(jnp.log(p), k), k, size, process.rate(t))

    return rates


def _tv(k, exact):
    observed = np.bincount(np.asarray(k).ravel(), minlength=len(exact)) / np.size(k)
    return 0.5 * np.abs(observed - exact).sum()


def _start(law, count, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.choice(len(law), (count, 1), p=law / law.sum()), jnp.int32)


def test_leaping_forward_obeys_the_recursion_of_its_moments():
    """m <- m + h (S/2 - m), v <- (1 - h)² v + h S/2; S = 16, k_0 = 4, T = 1, clipping on."""
    process = make_process(16, "constant", t_max=1.0)
    table = {10: (6.605286, 3.698625), 50: (6.543322, 3.504567), 200: (6.532169, 3.470043)}
    exact_mean, exact_variance = transition.moments(jnp.asarray(4), 16, np.exp(-1.0))
    np.testing.assert_allclose([exact_mean, exact_variance], [6.528482, 3.458659], rtol=1e-6)

    @functools.partial(jax.jit, static_argnums=1)
    def run(key, steps):
        start = jnp.full((200_000, 1), 4, jnp.int32)
        return samplers.forward(key, start, process, jnp.linspace(0, 1, steps + 1))

    for steps, expected in table.items():
        h, mean, variance = 1 / steps, 4.0, 0.0
        for _ in range(steps):
            mean, variance = mean + h * (8 - mean), (1 - h) ** 2 * variance + h * 8
        np.testing.assert_allclose([mean, variance], expected, atol=1e-6)
        if steps == 10:
            continue
        k = np.asarray(run(jax.random.key(steps), steps)).ravel()
        assert abs(k.mean() - mean) < 4 * k.std() / np.sqrt(len(k)) + 2e-3
        error = np.std((k - k.mean()) ** 2) / np.sqrt(len(k))
        assert abs(k.var() - variance) < 4 * error + 2e-3


@pytest.fixture(scope="module")
def paths():
    """20,000 exact reverse paths from the exact p_3, by thinning."""
    start = _start(theory.marginal(MIXTURE, np.exp(-3.0)), 20_000)
    rates = spectral_rates(MIXTURE, PROCESS)
    ts = jnp.asarray([3.0, 0.5, 0.01])
    run = jax.jit(lambda key, k: samplers.simulate(key, k, rates, ts, window=0.2))
    return run(jax.random.key(0), start)


def test_exact_paths_reach_the_data_law_and_pass_through_the_marginals(paths):
    count = len(paths.count)
    for place, t in ((0, 0.5), (1, 0.01)):
        exact = theory.marginal(MIXTURE, np.exp(-t))
        assert _tv(paths.states[:, place], exact) < 3 / np.sqrt(count)
    assert paths.states.dtype == jnp.int32
    assert paths.states.min() >= 0 and paths.states.max() <= SIZE


def test_number_of_jumps_is_the_integral_of_the_total_rate(paths):
    rates = spectral_rates(MIXTURE, PROCESS)
    expected = theory.total_jump_rate(
        rates, PROCESS, lambda t: theory.marginal(MIXTURE, np.exp(-t)), 100
    )
    count = np.asarray(paths.count)
    assert abs(count.mean() - expected) < 4 * count.std() / np.sqrt(len(count))
    assert int(paths.halvings.sum()) < len(count)


def test_frozen_paths_ask_for_rates_at_the_times_of_the_grid_only():
    """Rates are 2 on the grid and enormous off it: the number of jumps is Poisson(2)."""
    ts = jnp.asarray([1.0, 0.75, 0.25, 0.0])

    @jax.jit
    def run(key):
        def rates(k, t):
            on_grid = jnp.any(ts == t)
            birth = jnp.broadcast_to(jnp.where(on_grid, 2.0, 1e6), k.shape)
            return reverse.Rates(birth, jnp.zeros(k.shape))

        k = jnp.zeros((2000, 1), jnp.int32)
        return samplers.simulate(key, k, rates, ts, frozen=True).count

    count = np.asarray(run(jax.random.key(0)))
    assert abs(count.mean() - 2) < 4 * np.sqrt(2 / 2000) and abs(count.var() - 2) < 0.4


def _reached(count=40_000, steps=100, **options):
    rates = spectral_rates(MIXTURE, PROCESS)
    # Steps in geometric progression: the rates grow as 1/t.
    ts = jnp.asarray(np.geomspace(3.0, 0.01, steps + 1), jnp.float32)

    @jax.jit
    def run(key):
        start = draw_initial(jax.random.fold_in(key, 1), (count, 1), PROCESS)
        return samplers.sample(key, start, rates, PROCESS, ts, **options)

    return run(jax.random.key(0))


@pytest.mark.parametrize("step", samplers.STEPS)
def test_every_step_reaches_the_data_law(step):
    """Sampling noise of 40,000 draws over 21 states is about .008 in total variation."""
    found = _reached(step=step)
    assert found.k.dtype == jnp.int32
    assert _tv(found.k, theory.marginal(MIXTURE, np.exp(-0.01))) < 0.03
    assert float(found.evaluations) == (200 if step == "midpoint" else 100)
    assert float(found.negative) == 0 and float(found.mean_rate) > 1


def test_midpoint_leaps_have_less_bias_than_plain_ones():
    """The mean of |x| over both modes, S = 400, 40 steps: off by .028 and .011; s.e. .002."""
    process = make_process(400, "constant", t_min=0.01, t_max=3.0)
    score = lambda x, t: BIMODAL.score(x, process.w(t)[0])[..., None]  # noqa: E731
    rates = reverse.rate_function("score", score, process)
    ts = jnp.asarray(np.geomspace(3.0, 0.01, 41), jnp.float32)

    @functools.partial(jax.jit, static_argnums=1)
    def run(key, step):
        start = draw_initial(key, (40_000, 1), process)
        return process.to_x(samplers.sample(key, start, rates, process, ts, step=step).k)

    law = theory.marginal(BIMODAL.lattice(400), np.exp(-0.01))
    exact = law @ np.abs(process.to_x(jnp.arange(401)))
    plain, middle = (
        abs(float(jnp.abs(run(jax.random.key(0), step)).mean()) - exact)
        for step in ("tau_leap", "midpoint")
    )
    assert middle < 0.6 * plain


def test_corrector_leaps_alone_keep_the_marginal():
    """300 leaps of 1e-3 with reverse plus forward rates at t = .3 from p_.3."""
    count, t = 100_000, 0.3
    law = theory.marginal(MIXTURE, np.exp(-t))
    rates = spectral_rates(MIXTURE, PROCESS)

    @jax.jit
    def run(key, k):
        return samplers.correct(key, k, rates, PROCESS, jnp.asarray(t), 300, 1e-3)

    assert _tv(run(jax.random.key(0), _start(law, count)), law) < 3 / np.sqrt(count)


def test_corrector_counts_its_evaluations_and_improves_coarse_leaps():
    plain = _reached(steps=20)
    corrector = Corrector(n=4, schedule="constant", start=0.5, mult=0.5)
    better = _reached(steps=20, corrector=corrector)
    exact = theory.marginal(MIXTURE, np.exp(-0.01))
    assert _tv(better.k, exact) < _tv(plain.k, exact)
    ts = np.geomspace(3.0, 0.01, 21)[1:]
    assert float(better.evaluations) == 20 + 4 * np.sum(ts < 0.5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", 4), ("decreasing", 1), ("increasing", 3), ("nonlinear", 1)],
)
def test_number_of_corrector_leaps_follows_its_schedule(schedule, expected):
    process = make_process(4, "constant", t_max=1.0)
    rates = lambda k, t: reverse.Rates(jnp.zeros(k.shape), jnp.zeros(k.shape))  # noqa: E731
    corrector = Corrector(n=4, schedule=schedule, start=1.0)

    @jax.jit
    def run(key):
        ts = jnp.asarray([0.5, 0.3])
        k = jnp.zeros((1, 1), jnp.int32)
        return samplers.sample(key, k, rates, process, ts, corrector=corrector).evaluations

    assert float(run(jax.random.key(0))) == 1 + expected


def test_bridge_of_the_exact_posterior_reaches_the_data_in_few_steps():
    """Draws of k_0 and of the bridge are exact at any step: three steps are enough."""
    size, w = 8, lambda t: np.exp(-t)
    p0 = np.random.default_rng(0).dirichlet(np.ones(9))
    process = make_process(size, "constant", t_min=0.01, t_max=2.0)
    prior = jnp.log(jnp.asarray(p0, jnp.float32))

    def log_posterior(k, t):
        return transition.log_pmf(size, process.w(t))[k] + prior.reshape(1, 1, -1)

    @jax.jit
    def run(key, k):
        ts = jnp.asarray([2.0, 0.9, 0.3, 0.01])
        return samplers.ancestral(key, k, log_posterior, process, ts)

    start = _start(theory.marginal(p0, w(2.0)), 40_000)
    found = run(jax.random.key(0), start)
    assert found.dtype == jnp.int32
    assert _tv(found, theory.marginal(p0, w(0.01))) < 0.01


def test_clamped_coordinates_keep_their_values_and_steer_the_others():
    """Two coordinates that are equal in the data: clamping one draws the other to its value.

    Replacement is approximate: .69 of the free coordinates end there, 1/7 would without it.
    """
    size = 6
    p0 = np.eye(7) / 7
    process = make_process(size, "constant", t_min=0.01, t_max=3.0)
    joint = jnp.log(jnp.asarray(p0 + 1e-9, jnp.float32))

    def rates(k, t):
        law = transition.log_pmf(size, process.w(t))
        both = law[k[:, 0]][:, :, None] + law[k[:, 1]][:, None, :] + joint[None]
        posterior = jnp.stack([jax.nn.logsumexp(both, 2), jax.nn.logsumexp(both, 1)], 1)
        found = ratio.from_posterior(posterior, k, size, process.w(t))
        return reverse.assemble(found, k, size, process.rate(t))

    @functools.partial(jax.jit, static_argnums=1)
    def run(key, mode):
        start = draw_initial(key, (500, 2), process)
        ts = jnp.asarray(np.geomspace(3.0, 0.01, 81), jnp.float32)
        clamp = Clamp(jnp.asarray([[1, 0]]), jnp.asarray([[5, 0]]), mode)
        return samplers.sample(key, start, rates, process, ts, clamp=clamp, trace_every=40)

    clean, noised = run(jax.random.key(0), "clean"), run(jax.random.key(0), "noised")
    np.testing.assert_array_equal(clean.k[:, 0], 5)
    assert np.mean(np.asarray(noised.k[:, 0]) == 5) > 0.9
    assert np.mean(np.asarray(noised.k[:, 1]) == 5) > 0.5
    assert noised.trace is not None and noised.trace.shape == (2, 500, 2)
    assert len(np.unique(noised.trace[0, :, 0])) > 1  # noised at t > 0


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("kind", ["posterior", "score"])
def test_constant_data_come_back_after_the_last_denoising(size, kind):
    """Binary states included; every state of a path stays within {0, …, S}."""
    process = make_process(size, "song")
    value = size - size // 4

    def network(x, t):
        w, variance = (f(t)[:, None] for f in (process.w, process.sig2))
        x0 = process.to_x(jnp.asarray(value))
        if kind == "score":
            return (-(x - w * x0) / variance)[..., None]
        sure = jnp.where(jnp.arange(size + 1) == value, 0.0, -jnp.inf)
        return jnp.broadcast_to(sure, (*x.shape, size + 1))

    @jax.jit
    def run(key):
        rates = reverse.rate_function(kind, network, process)
        start = draw_initial(key, (64, 3), process)
        ts = process.times(50)
        found = samplers.sample(key, start, rates, process, ts, trace_every=10)
        t = jnp.full((64,), process.t_min)
        out = network(process.to_x(found.k), t)
        clean = reverse.clean_estimate(kind, out, found.k, process, t)
        return found, process.to_k(clean)

    found, clean = run(jax.random.key(0))
    np.testing.assert_array_equal(clean, value)
    assert found.trace.min() >= 0 and found.trace.max() <= size
    assert clean.dtype == jnp.int32


def test_wide_lattices_stay_finite_in_single_precision_down_to_the_last_time():
    process = make_process(65536, "song")

    @jax.jit
    def run(key):
        network = lambda x, t: -x[..., None] / 2  # noqa: E731
        k = draw_initial(key, (32, 4), process, "gaussian")
        rates = reverse.rate_function("score", network, process)
        return samplers.sample(key, k, rates, process, process.times(40)), rates(
            jnp.asarray([[0, 32768, 65536, 32768]]), jnp.asarray(process.t_min)
        )

    found, last = run(jax.random.key(0))
    assert np.all(np.isfinite([found.mean_rate, found.negative, found.clipped]))
    assert np.all(np.isfinite(last.birth)) and np.all(np.isfinite(last.death))
    assert found.k.min() >= 0 and found.k.max() <= 65536
    np.testing.assert_array_equal([last.death[0, 0], last.birth[0, 2]], 0)


def test_reverse_ou_process_with_the_score_reaches_the_same_mixture():
    process = make_process(400, "constant", t_min=0.01, t_max=3.0)

    @jax.jit
    def run(key):
        score = lambda x, t: BIMODAL.score(x, process.w(t)[0])  # noqa: E731
        x = jax.random.normal(key, (50_000, 1))
        ts = jnp.asarray(np.geomspace(3.0, 0.01, 201), jnp.float32)
        return samplers.reverse_ou(key, x, score, process, ts).x

    x = np.asarray(run(jax.random.key(0)))
    assert abs(x.mean()) < 0.05 and abs(np.abs(x).mean() - 1.98) < 0.03
    inside = np.abs(x)[np.abs(x) > 1]
    assert abs(inside.std() - 0.5) < 0.03


def test_wrong_arguments_are_named():
    k, rates = jnp.zeros((1, 1), jnp.int32), spectral_rates(MIXTURE, PROCESS)
    key, ts = jax.random.key(0), PROCESS.times(5)
    with pytest.raises(UserError, match="step"):
        samplers.sample(key, k, rates, PROCESS, ts, step="leap")
    with pytest.raises(UserError, match="trace_every"):
        samplers.sample(key, k, rates, PROCESS, ts, trace_every=2)
    with pytest.raises(UserError, match="corrector"):
        samplers.sample(key, k, rates, PROCESS, ts, corrector=Corrector(schedule="linear"))
    with pytest.raises(UserError, match="clamp"):
        samplers.sample(key, k, rates, PROCESS, ts, clamp=Clamp(k, k, "dirty"))
