"""Pareto order, hypervolume and distinct points."""

import itertools

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.pareto import compare, distinct, dominates, front, hypervolume

ONE = np.ones(2)


@pytest.mark.parametrize(
    ("first", "weak", "strict", "every"),
    [
        ([0.5, 0.5], True, False, False),
        ([0.6, 0.5], True, True, False),
        ([0.6, 0.6], True, True, True),
        ([0.5 - 5e-7, 0.6], True, True, False),  # a loss within tau does not count
        ([0.5 - 2e-6, 0.6], False, False, False),
        ([0.5 + 5e-5, 0.5 + 5e-5], True, False, False),  # nor a gain within tau_prime
    ],
)
def test_dominance_counts_losses_above_tau_and_gains_above_tau_prime(
    first: list[float], weak: bool, strict: bool, every: bool
) -> None:
    order = dominates(np.array(first), np.array([0.5, 0.5]), ONE)
    assert (bool(order.weak), bool(order.strict), bool(order.all_strict)) == (weak, strict, every)


def test_dominance_is_in_units_of_the_span_and_an_indifferent_sender_has_no_say() -> None:
    rng = np.random.default_rng(0)
    points, span = rng.uniform(size=(20, 3)), np.array([1.0, 2.0, 0.5])
    plain = dominates(points[:, None], points[None], span)
    scale = np.array([5.0, 0.1, 1.0])
    scaled = dominates(points[:, None] * scale + 2, points[None] * scale + 2, span * scale)
    for name in ("weak", "strict", "all_strict"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(scaled, name))
    np.testing.assert_allclose(plain.least, scaled.least, atol=1e-12)
    order = dominates(np.array([1.0, 0.0]), np.array([0.0, 9.0]), np.array([1.0, 0.0]))
    assert order.all_strict and order.least == 1.0 and order.total == 1.0
    nothing = dominates(np.array([1.0, 0.0]), np.array([0.0, 9.0]), np.zeros(2))
    assert nothing.weak and not nothing.strict and not nothing.all_strict


def test_the_front_and_the_order_of_sets() -> None:
    points = np.array([[0, 1], [1, 0], [0.5, 0.5], [0.4, 0.4], [0, 0.9]])
    assert front(points, ONE).tolist() == [True, True, True, False, False]
    assert compare(points[:3], points[3:], ONE) == "win"
    assert compare(points[3:], points[:3], ONE) == "loss"
    assert compare(points[:1], points[1:2], ONE) == "tie"
    assert compare(points[:3], points[:3], ONE) == "tie"
    assert compare(points[:1], points[:0], ONE) == "win"


def test_hypervolume_is_the_union_of_boxes() -> None:
    rng = np.random.default_rng(1)
    points, best, span = rng.uniform(0.1, 1, (6, 2)), np.array([1.2, 1.1]), np.array([0.5, 2.0])
    # Inclusion and exclusion over all subsets of boxes.
    expected = 0.0
    for size in range(1, 7):
        for chosen in itertools.combinations(points, size):
            expected -= (-1) ** size * np.min(chosen, 0).prod()
    zero = np.zeros(2)
    assert hypervolume(points, zero, best, span) == pytest.approx(expected / span.prod())
    lines = points[:, :1]
    assert hypervolume(lines, zero[:1], best[:1], span[:1]) == pytest.approx(lines.max() / 0.5)
    below = np.concatenate([points, [[-0.1, 1.0]]])  # below the reference: adds nothing
    assert hypervolume(below, zero, best, span) == pytest.approx(expected / span.prod())
    assert hypervolume(points[:0], zero, best, span) == 0.0
    wide = np.concatenate([points, rng.uniform(size=(6, 1))], 1)
    flat = np.array([0.5, 2.0, 0.0])  # the third sender is indifferent
    found = hypervolume(wide, np.zeros(3), np.array([1.2, 1.1, 1.0]), flat)
    assert found == pytest.approx(expected / span.prod())


def test_hypervolume_of_three_senders_is_close_to_inclusion_and_exclusion() -> None:
    rng = np.random.default_rng(2)
    points, zero = rng.uniform(0.2, 1, (5, 3)), np.zeros(3)
    expected = 0.0
    for size in range(1, 6):
        for chosen in itertools.combinations(points, size):
            expected -= (-1) ** size * np.min(chosen, 0).prod()
    found = hypervolume(points, zero, np.array([1.0, 1.1, 1.3]), np.ones(3))
    assert found == pytest.approx(expected, rel=5e-3)
    assert found == hypervolume(points, zero, np.array([1.0, 1.1, 1.3]), np.ones(3))
    with pytest.raises(UserError, match="at least as large as every point"):
        hypervolume(points, zero, np.full(3, 0.5), np.ones(3))


def test_distinct_keeps_the_first_of_close_points() -> None:
    points = np.array([[0.1, 0.2], [0.10005, 0.2], [0.3, 0.2], [0.1, 0.2002], [0.3, 0.2]])
    assert distinct(points).tolist() == [0, 2, 3]
    assert distinct(points[:0]).tolist() == []
