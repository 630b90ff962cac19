"""The strata of training profiles, the edges they sit on, and the errors measured on them."""

import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion import metrics, sampling
from rflib.methods.persuasion.game import make_game, outcome
from rflib.optim.simplex import project_simplex


@pytest.fixture(scope="module")
def game():
    rng = np.random.default_rng(0)
    return make_game([0.4, 0.35, 0.25], np.eye(3), rng.random((2, 3, 3)), (3, 2))


@pytest.fixture(scope="module")
def samples(game):
    return sampling.sample(game, 2000, 0)


def test_strata_have_their_exact_shares_and_rows_are_probabilities(samples):
    np.testing.assert_array_equal(np.bincount(samples.labels), [400, 400, 400, 400, 200, 200])
    for policy in samples.profile:
        assert policy.dtype == np.float64
        assert np.all(policy >= 0)
        np.testing.assert_allclose(policy.sum(-1), 1, atol=1e-12)


def test_labels_name_the_stratum_that_a_profile_is_from(samples):
    first = samples.profile[0]
    sharpness = [np.square(first[samples.labels == label]).sum(-1).mean() for label in range(6)]
    # E sum_s pi² of a symmetric Dirichlet row with S = 3 is (a + 1)/(3a + 1).
    for label, a in enumerate(sampling.CONCENTRATIONS):
        assert abs(sharpness[label] - (a + 1) / (3 * a + 1)) < 0.03
    assert sharpness[4] == 1
    assert np.all(np.isin(first[samples.labels == 4], [0, 1]))


def test_boundary_profiles_are_within_their_jitter_of_an_edge(game, samples):
    rng = np.random.default_rng(1)

    def changes_nearby(label):
        profile = tuple(policy[samples.labels == label] for policy in samples.profile)
        actions, changed = outcome(game, profile).actions, 0
        for _ in range(20):
            moved = tuple(
                sampling.project_rows(p + rng.normal(0, sampling.JITTER, p.shape)) for p in profile
            )
            changed = changed | (outcome(game, moved).actions != actions).any(-1)
        return changed.mean()

    assert samples.crossed.all()
    assert changes_nearby(5) > 0.9
    assert changes_nearby(2) < 0.7


def test_crossings_have_two_sides_and_the_jump_between_them(game):
    rng = np.random.default_rng(2)
    start, end = (sampling.dirichlet(game, rng, 300) for _ in range(2))
    step = tuple(0.2 * (b - a) for a, b in zip(start, end, strict=True))
    end = tuple(a + d for a, d in zip(start, step, strict=True))
    found = sampling.cross(game, start, step)
    ends = [outcome(game, profile).actions for profile in (start, end)]
    np.testing.assert_array_equal(found.found, (ends[0] != ends[1]).any(-1))
    before, after = outcome(game, found.before), outcome(game, found.after)
    differ = (before.actions != after.actions).any(-1)
    np.testing.assert_array_equal(differ[found.found], True)
    assert 0.3 < found.found.mean() < 1
    np.testing.assert_allclose(found.jump, after.utilities - before.utilities)
    for a, b, d in zip(found.before, found.after, step, strict=True):
        limit = 2 * sampling.SIDE * np.abs(d).max((1, 2)) + 1e-12
        assert np.all(np.abs(a - b).max((1, 2)) <= limit)
    np.testing.assert_array_equal(found.jump[~found.found], 0)
    # 40 halvings put the position on the edge itself. Where an earlier action joins the best the
    # rule "index" sees a tie from 1e-9 on, so the margin there is 1e-9 instead of 0.
    edge = tuple(a + found.position[:, None, None] * d for a, d in zip(start, step, strict=True))
    margin = outcome(game, edge).margins[found.found].min(-1)
    assert np.all(np.minimum(margin, np.abs(margin - 1e-9)) < 1e-12)


def test_a_receiver_that_never_changes_its_mind_has_no_edges():
    game = make_game([0.5, 0.5], [[1, 0], [1, 0]], np.ones((1, 2, 2)), (2,))
    samples = sampling.sample(game, 100, 0)
    assert samples.crossed.sum() == 90
    assert np.all(samples.labels[~samples.crossed] == 5)
    assert all(np.isfinite(policy).all() for policy in samples.profile)
    lines = metrics.segments(game, 0, 5, 11)
    assert not lines.jumps.any()
    assert np.isnan(metrics.localisation_error(np.zeros((5, 11, 1)), lines))


def test_samples_are_a_function_of_the_seed(game, samples):
    again, other = sampling.sample(game, 2000, 0), sampling.sample(game, 2000, 1)
    for a, b, c in zip(samples.profile, again.profile, other.profile, strict=True):
        assert a.tobytes() == b.tobytes() != c.tobytes()
    assert samples.utilities.tobytes() == again.utilities.tobytes()


def test_mixtures_by_name_and_by_share(game):
    plain = sampling.sample(game, 30, 0, "dirichlet_1")
    assert set(plain.labels) == {2}
    own = sampling.sample(game, 10, 0, {"deterministic": 0.25, "boundary": 0.75})
    np.testing.assert_array_equal(np.bincount(own.labels), [0, 0, 0, 0, 3, 7])
    for mixture, message in (
        ("even", "mixture='even'"),
        ({"edge": 1.0}, "mixture='edge'"),
        ({"boundary": 0.7}, r"must sum to 1; it sums to 0\.7"),
    ):
        with pytest.raises(UserError, match=message):
            sampling.sample(game, 10, 0, mixture)


def test_a_split_holds_out_its_share_of_every_stratum(samples):
    kept, held = sampling.split(samples.labels, 0.1, 0)
    np.testing.assert_array_equal(np.bincount(samples.labels[held]), [40, 40, 40, 40, 20, 20])
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(2000))


def test_the_numpy_projection_is_the_compiled_one(float64):
    x = np.random.default_rng(0).normal(size=(50, 4)) * 3
    np.testing.assert_allclose(
        sampling.project_rows(x), project_simplex(jnp.asarray(x)), atol=1e-14
    )


def test_normalised_errors_are_0_for_the_truth_and_1_for_the_mean(samples):
    truth = samples.utilities
    both = np.stack([truth, np.broadcast_to(truth.mean(0), truth.shape)])
    np.testing.assert_allclose(metrics.normalised_mse(both, truth), [0, 1], atol=1e-12)
    scaled = metrics.normalised_mse(3 * both + 1, 3 * truth + 1)
    np.testing.assert_allclose(scaled, [0, 1], atol=1e-12)
    strata = metrics.by_stratum(both[1], truth, samples.labels)
    shares = np.array([0.2, 0.2, 0.2, 0.2, 0.1, 0.1])
    parts = [strata[name] for name in sampling.STRATA]
    assert abs(shares @ parts - strata["all"]) < 1e-12
    assert np.ptp(parts) > 0.1


def test_a_sender_without_variance_is_left_out():
    truth = np.stack([np.arange(4.0), np.ones(4)], 1)
    assert metrics.normalised_mse(truth + np.array([1, 5]), truth) == 1 / 1.25
    assert np.isnan(metrics.normalised_mse(truth[:, 1:], truth[:, 1:]))


def test_localisation_finds_the_jump_of_the_truth_and_the_distance_of_another(game):
    lines = metrics.segments(game, 0, 60, 201)
    assert 0.2 < lines.jumps.mean() < 1
    truth = outcome(game, lines.profile).utilities
    late = np.roll(truth, 10, axis=1)
    late[:, :10] = truth[:, :1]
    found = metrics.localisation_error(np.stack([truth, late]), lines)
    assert found[0] == 0
    # Ten points late, on lines whose jump does not leave at the end.
    assert 0.02 < found[1] < 0.1
    inside = lines.position.max(1) < 0.9
    shifted = metrics.localisation_error(
        late[inside], lines._replace(position=lines.position[inside], jumps=lines.jumps[inside])
    )
    np.testing.assert_allclose(shifted, 10 / 200, atol=1e-12)
