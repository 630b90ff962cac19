"""Certificates: what each number is worth is said, and never too much."""

import json

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.certificate import as_record, certify, passing
from rflib.methods.persuasion.game import make_game, outcome, relative, spans
from rflib.methods.persuasion.generators import aligned, random_profile, uniform
from rflib.methods.persuasion.sampled import Sampled
from rflib.run.files import dumps
from tests.persuasion.games import OPTIMUM, drawn, prosecutor


def test_the_prosecutors_optimum_is_certified_under_the_rule_that_makes_it_one() -> None:
    game = aligned()
    good, bad = (certify(game, OPTIMUM, tie=tie) for tie in ("sum", "index"))
    assert good.kind == "exact-global" and good.equilibrium and good.gap < 1e-9
    assert good.passes.all() and good.cliff == pytest.approx(0, abs=1e-12)
    assert bad.kind == "exact-global" and bad.equilibrium is False
    assert bad.gap == pytest.approx(0.6) and not bad.passes.any()
    # On the tie the deviation of the supremum attains nothing; one beside it does.
    for gain in bad.best:
        assert gain.gain == pytest.approx(0.6) and 0.5999 < gain.attained < 0.6


def test_full_revelation_by_one_sender_is_no_equilibrium_and_by_two_it_is() -> None:
    alone = certify(prosecutor(), [np.eye(2)], tie="sum")
    assert alone.equilibrium is False and alone.gap == pytest.approx(0.3)
    assert certify(aligned(), [np.eye(2)] * 2, tie="sum").equilibrium


@pytest.mark.parametrize("size", [(2, 2, 2, 2), (2, 2, 3, 3), (2, 3, 3, 2), (3, 2, 2, 2)])
def test_every_deviation_attains_what_is_said_within_its_radius(
    size: tuple[int, int, int, int],
) -> None:
    for seed in range(2):
        game = drawn(seed, *size)
        profile = random_profile(game, np.random.default_rng(seed))
        found = certify(game, profile, deltas=(0.05, 0.2))
        values, span = outcome(game, profile).utilities, spans(game)
        radii = [*found.deltas, 1.0]
        for delta, row in zip(radii, (*found.local, found.best), strict=True):
            for j, gain in enumerate(row):
                assert gain.sender == j and gain.policy is not None
                assert np.abs(gain.policy - profile[j]).max() <= delta + 1e-9
                played = [gain.policy if k == j else each for k, each in enumerate(profile)]
                change = outcome(game, played).utilities[j] - values[j]
                assert change == pytest.approx(gain.attained, abs=1e-12)
                assert gain.attained <= gain.gain + 1e-8
                assert gain.relative == pytest.approx(gain.gain / span[j])
        gains = np.array([[gain.gain for gain in row] for row in (*found.local, found.best)])
        assert (np.diff(gains, axis=0) > -1e-8).all()
        assert found.gap == pytest.approx(gains[-1].max())


def test_a_deviation_under_the_rule_in_use_comes_close_to_the_supremum() -> None:
    short = []
    for seed in range(6):
        game = uniform(seed)
        profile = random_profile(game, np.random.default_rng(seed))
        for gain in certify(game, profile, tie="adversarial:0").best:
            short.append(gain.relative - gain.attained / spans(game)[gain.sender])
    assert max(short) < 1e-3


def test_where_programs_are_too_many_it_samples_and_says_so() -> None:
    game = drawn(3, 2, 3, 3, 6)
    profile = random_profile(game, np.random.default_rng(3))
    found = certify(game, profile, local_cap=1, global_cap=3, deltas=(0.2,), deviations=80)
    assert found.kind == "sampled" and found.equilibrium is None and np.isnan(found.gap)
    for gain in found.best:
        assert gain.kind == "unverified" and gain.policy is None and np.isnan(gain.gain)
    for gain in found.local[0]:
        assert gain.kind == "sampled" and gain.gain >= 0
        assert gain.gain == pytest.approx(gain.attained)
    asked = certify(game, profile, local_cap=0, global_cap=3, deltas=(0.2,), deviations=80)
    assert {gain.kind for gain in asked.local[0]} == {"sampled"}
    assert {gain.message for gain in asked.local[0]} == {""}


def test_an_upper_bound_that_is_out_of_reach_is_called_one() -> None:
    rng = np.random.default_rng(0)
    for seed in range(40):
        game = drawn(seed, 2, 3, 3, 2)
        profile = random_profile(game, rng)
        found = certify(game, profile, reach_cap=1, deltas=(0.01,))
        bounds = [gain for gain in found.best if gain.kind == "upper bound"]
        if bounds:
            break
    assert bounds and found.kind != "exact-global" and bounds[0].policy is None
    whole = certify(game, profile, deltas=(0.01,))
    assert whole.kind == "exact-global"
    assert whole.best[bounds[0].sender].gain <= bounds[0].gain + 1e-9


def test_the_l2_norm_is_sampled() -> None:
    game = uniform(0)
    profile = random_profile(game, np.random.default_rng(0))
    found = certify(game, profile, norm="l2", deltas=(0.1,), deviations=80)
    assert {gain.kind for gain in found.local[0]} == {"sampled"} and found.norm == "l2"
    assert found.kind == "exact-global"  # any policy is still covered exactly


def test_another_sampler_can_be_given() -> None:
    game = uniform(0)
    profile = random_profile(game, np.random.default_rng(0))
    asked = []

    def sampler(game, profile, sender, delta, **options) -> Sampled:
        asked.append((sender, delta, options["deviations"]))
        return Sampled(0.125, profile[sender], "mine", 1)

    found = certify(game, profile, local_cap=0, deltas=(0.1,), sampler=sampler, deviations=9)
    assert asked == [(0, 0.1, 9), (1, 0.1, 9)]
    assert [gain.gain for gain in found.local[0]] == pytest.approx([0.125, 0.125])


def test_passing_is_ratio_times_delta_in_spans_for_every_sender() -> None:
    gains = np.array([[[0.004, 0.001]], [[0.004, 0.03]]])  # [delta, profile, sender]
    found = passing(gains, (0.05, 0.2), (0.05, 0.1, 0.5))
    assert found.tolist() == [[[False, True, True], [False, False, True]]]


def test_scaling_utilities_changes_no_verdict() -> None:
    game = uniform(2)
    profile = random_profile(game, np.random.default_rng(2))
    plain = certify(game, profile)
    scaled = certify(game._replace(v=game.v * np.array([4.0, 0.5])[:, None, None] - 1), profile)
    np.testing.assert_array_equal(plain.passes, scaled.passes)
    for one, two in zip(plain.best, scaled.best, strict=True):
        assert one.relative == pytest.approx(two.relative, abs=1e-9)
        np.testing.assert_allclose(one.policy, two.policy, atol=1e-9)


def test_unused_signals_and_indifferent_senders_are_certified() -> None:
    game = make_game([0.5, 0.5], np.eye(2), [np.eye(2), np.ones((2, 2))], (3, 2))
    shut = [np.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]]), np.full((2, 2), 0.5)]
    found = certify(game, shut)
    assert found.cliff > 0 and np.isfinite([gain.gain for gain in found.best]).all()
    assert found.best[1].relative == 0.0 == relative(np.ones(2), spans(game))[1]
    assert found.probabilities.sum() == pytest.approx(1) and found.probabilities[4:].sum() == 0


def test_a_record_is_json_with_every_deviation() -> None:
    found = certify(aligned(), OPTIMUM, deltas=(0.05,))
    record = json.loads(dumps(as_record(found)))
    assert set(record) == set(found._fields) and set(record["local"]) == {"0.05"}
    assert record["best"][0]["policy"] == found.best[0].policy.tolist()  # type: ignore[union-attr]
    assert record["tie"] == "index" and record["passes"] == found.passes.tolist()


def test_wrong_arguments_are_refused() -> None:
    for arguments, message in (
        ({"deltas": ()}, "deltas=() must hold at least one value"),
        ({"deltas": (0.0,)}, "deltas=0.0 must lie in"),
        ({"ratios": (-1.0,)}, "ratios=-1.0 must lie in"),
        ({"norm": "l1"}, "norm='l1' is not one of"),
        ({"tie": "most"}, "tie='most' must be"),
    ):
        with pytest.raises(UserError) as error:
            certify(aligned(), OPTIMUM, **arguments)
        assert message in str(error.value)
