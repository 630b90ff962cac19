"""Files of games and profiles, and the generators."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.best_response import gap
from rflib.methods.persuasion.data import (
    GENERATORS,
    read_game,
    read_policies,
    write_game,
    write_policies,
)
from rflib.methods.persuasion.game import full_revelation, no_information, outcome, spans
from rflib.methods.persuasion.generators import degenerate, random_profile, uniform
from tests.persuasion.games import OPTIMUM, worked, worked_profile

SIZES = ((2, 2, 2, 2), (2, 2, 3, 3), (2, 3, 3, 3), (3, 2, 2, 2), (3, 3, 3, 2), (4, 2, 2, 2))


@pytest.mark.parametrize("suffix", ["npz", "json"])
def test_a_game_and_a_profile_come_back_from_their_files(tmp_path: Path, suffix: str) -> None:
    game, profile = worked()._replace(seed=5), worked_profile()
    write_game(tmp_path / f"game.{suffix}", game)
    write_policies(tmp_path / f"policies.{suffix}", profile)
    found = read_game(tmp_path / f"game.{suffix}")
    for name in ("mu", "u", "v"):
        np.testing.assert_array_equal(getattr(found, name), getattr(game, name))
    assert found[3:] == (game.signals, "worked", 5)
    for one, two in zip(read_policies(tmp_path / f"policies.{suffix}", game), profile, strict=True):
        np.testing.assert_array_equal(one, two)
    write_game(tmp_path / f"plain.{suffix}", game._replace(name="", seed=None))
    assert read_game(tmp_path / f"plain.{suffix}")[4:] == ("plain", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("[1]", "must hold one JSON object, not a list"),
        ("{", "Expecting property name"),
        ('{"mu": [1], "u": [[1]], "S": [1]}', "no array 'v'; there is"),
        ('{"mu": [1], "u": [[1]], "V": [[[1]]], "S": [1]}', "no array 'v'; there is"),
        ('{"mu": [1], "u": [[1]], "v": [[[1, 2]]], "S": [1]}', "v has shape (1, 1, 2)"),
        ('{"mu": [1], "u": [["x"]], "v": [[[1]]], "S": [1]}', "u must be numbers"),
        ('{"mu": [1], "u": [[1]], "v": [[[1]]], "S": [1.5]}', "signals=1.5 must be a whole"),
        ('{"mu": [1], "u": [[1]], "v": [[[1]]], "S": [1], "seed": "x"}', "seed='x' must be"),
        ('{"mu": [1], "u": [[1]], "v": [[[1]]], "S": [1], "seed": -3}', "seed=-3 must be"),
        ('{"mu": [1], "u": [[0, 1e-9]], "v": [[[1, 1]]], "S": [1]}', "u reaches 1e-09 and"),
        ('{"mu": [1], "u": [[0, 1]], "v": [[[1, 1e9]]], "S": [1]}', "v[0] reaches 1e+09 and"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "game.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as error:
        read_game(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_nothing_is_unpickled_and_endings_are_two(tmp_path: Path) -> None:
    path = tmp_path / "game.npz"
    np.savez(path, mu=np.array([1.0]), u=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match="nothing is unpickled"):
        read_game(path)
    path.write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"game\.npz"):
        read_game(path)
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(UserError, match=r"one\.npz"):
        read_game(tmp_path / "one.npz")
    with pytest.raises(UserError, match=r"is not one of '\.npz', '\.json'"):
        read_game(tmp_path / "game.csv")


def test_a_wrong_policy_is_refused_by_its_name(tmp_path: Path) -> None:
    game, path = worked(), tmp_path / "policies.npz"
    good = worked_profile()
    for profile, message in (
        ([good[0]], "no array 'pi_1'; there is pi_0"),
        ([good[0], good[1].T], "policy pi_1 has shape (2, 3); it must end in (3, 2)"),
        ([good[0], good[1] * 2], "policy pi_1, row (0,)"),
        ([*good, good[1]], "pi_2: the game has 2 senders"),
        ([good[0][None], good[1][None]], "pi_0 has shape (1, 3, 2); one profile has (W, S_0)"),
    ):
        write_policies(path, profile)
        with pytest.raises(UserError) as error:
            read_policies(path, game)
        assert message in str(error.value) and "policies.npz" in str(error.value)


@pytest.mark.parametrize("name", list(GENERATORS))
def test_every_generator_makes_a_checked_game_from_its_seed_alone(name: str) -> None:
    one, two, other = (GENERATORS[name](seed) for seed in (3, 3, 4))
    for field in ("mu", "u", "v"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
    assert one.name == name and one.seed == 3 and other.seed == 4
    assert (spans(one) > 0).all()
    if name not in ("aligned", "opposed", "interpolated"):
        assert (one.mu != other.mu).any()


@pytest.mark.parametrize("size", SIZES)
def test_uniform_games_are_not_degenerate(size: tuple[int, ...]) -> None:
    n, states, actions, signals = size
    for seed in range(3):
        game = uniform(seed, senders=n, states=states, actions=actions, signals=signals)
        assert (game.v.shape, game.signals) == ((n, states, actions), (signals,) * n)
        assert len(set(game.u.argmax(1))) == min(states, actions)
        values = outcome(game, random_profile(game, np.random.default_rng(9), 256)).utilities
        assert (values.std(0) / spans(game) > 0.01).all()
        assert not np.allclose(full_revelation(game).utilities, no_information(game).utilities)


def test_most_uniform_draws_are_degenerate_and_can_be_had() -> None:
    games = [uniform(seed, reject=False) for seed in range(200)]
    kept = [not degenerate(game, np.random.default_rng(0)) for game in games]
    assert 0.1 < np.mean(kept) < 0.5
    reasons = {degenerate(game, np.random.default_rng(0)) for game in games}
    assert len(reasons) >= 3


def test_sizes_at_which_nothing_can_be_at_stake_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rflib.methods.persuasion.generators.DRAWS", 50)
    with pytest.raises(UserError, match="in 50 draws is worth playing"):
        uniform(0, actions=1)
    assert uniform(0, actions=1, reject=False).n_actions == 1


def test_games_of_prosecutors_and_defenders() -> None:
    aligned, opposed = GENERATORS["aligned"](), GENERATORS["opposed"]()
    np.testing.assert_allclose(full_revelation(aligned).utilities, [0.3, 0.3])
    np.testing.assert_allclose(full_revelation(opposed).utilities, [0.3, 0.7])
    for theta, ends in ((0.0, opposed), (1.0, aligned)):
        np.testing.assert_array_equal(GENERATORS["interpolated"](theta=theta).v, ends.v)
    np.testing.assert_allclose(GENERATORS["interpolated"](theta=0.25).v[1], [[0.75, 0.25]] * 2)
    assert GENERATORS["aligned"](senders=4).signals == (2, 2, 2, 2)
    np.testing.assert_allclose(outcome(aligned, OPTIMUM, "sum").utilities, 0.6)
    with pytest.raises(UserError, match="theta=2"):
        GENERATORS["interpolated"](theta=2)


def test_ride_hailing_is_what_its_words_say() -> None:
    game = GENERATORS["ride_hailing"](0)
    assert game.v.shape == (2, 3, 3) and game.signals == (3, 3)
    assert (game.u[:, 0] == 0).all() and (game.v[:, :, 0] == 0).all()
    assert (game.u[0, 1:] < 0).all()  # quiet: driving loses money
    for region in (1, 2):
        assert game.u[region, region] > game.u[0, region] == game.u[3 - region, region]
        own, other = game.v[region - 1, :, region], game.v[region - 1, :, 3 - region]
        assert own[region] == 2 * other[3 - region] and own[0] == pytest.approx(0.4 * own[region])
    assert GENERATORS["ride_hailing"](1, platforms=3, signals=2).signals == (2, 2, 2)
    # Full revelation by both is an equilibrium, as it is in every game.
    known = [np.eye(3)] * 2
    assert np.abs(gap(game, known, outcome(game, known).utilities)).max() < 1e-9


def test_advertisers_are_what_their_words_say() -> None:
    game = GENERATORS["advertisers"](2, senders=3)
    assert game.v.shape == (3, 8, 4) and game.signals == (8, 8, 8)
    for w, bits in enumerate(itertools.product((0, 1), repeat=3)):
        quality = bits[::-1]  # bit j of w
        for j in range(3):
            price = -game.u[0, j + 1]
            assert 0.4 <= price <= 0.8
            assert game.u[w, j + 1] == pytest.approx(quality[j] - price)
    shares = [game.mu[[w for w in range(8) if w >> j & 1]].sum() for j in range(3)]
    assert all(0.3 <= share <= 0.6 for share in shares)
    # Qualities are independent.
    assert game.mu[7] == pytest.approx(np.prod(shares))
    np.testing.assert_array_equal(game.v.sum((0, 1)), [0, 8, 8, 8])


def test_zero_sum_and_contract_like_games() -> None:
    game = GENERATORS["linear_zero_sum"](1)
    np.testing.assert_allclose(game.v.sum(0), 1)
    profile = random_profile(game, np.random.default_rng(0), 50)
    np.testing.assert_allclose(outcome(game, profile).utilities.sum(1), 1, atol=1e-12)
    assert GENERATORS["contract_like"](1).v.shape == (1, 3, 4)
