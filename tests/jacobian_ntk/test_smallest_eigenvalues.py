"""Smallest eigenvalues in float64: the reference table, to its printed digits."""

import numpy as np
import pytest

from rflib.methods.jacobian_ntk import data
from rflib.methods.jacobian_ntk.kernels import gram, sweep
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.methods.jacobian_ntk.spectra import effective_rank, extremes

DEPTHS = (1, 2, 3, 4, 6, 8, 11, 14)
SPHERE = {  # 256 points of the sphere in four dimensions
    ("gelu", "ntk"): "8.0e-7 1.07e-3 5.35e-3 1.82e-2 1.08e-1 3.80e-1 1.464 3.918",
    ("gelu", "jntk"): "1.0e-12 2.49e-5 2.12e-4 1.09e-3 1.19e-2 6.37e-2 0.370 1.265",
    ("erf", "ntk"): "1.44e-5 2.06e-4 1.27e-3 4.98e-3 3.46e-2 1.46e-1 0.791 3.238",
    ("erf", "jntk"): "1.2e-11 5.3e-10 7.6e-9 6.1e-8 1.52e-6 1.89e-5 4.27e-4 6.55e-3",
}
LARGEST = "381.1 575.8 1007.4 1607.3 3610.0 7505.9 21040 56234"
FIRES = {  # 128 rows of the forest fires, depths 1, 2, 3, 6, 11
    "gelu": "1.0e-7 1.3e-6 5.8e-6 1.26e-4 3.27e-3",
    "erf": "1.1e-6 1.26e-5 7.7e-5 4.14e-3 0.566",
}


def agrees(value: float, printed: str) -> bool:
    """Whether `value` lies within half a unit of the last printed digit (and 1e-4 of the value)."""
    digits, _, power = printed.partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return abs(value - float(printed)) <= unit / 2 + 1e-4 * abs(value)


@pytest.fixture(scope="module")
def sphere() -> np.ndarray:
    return data.sphere_net(256)


def check(x: np.ndarray, activation: str, kind: str, rows: dict[int, str]) -> None:
    for depth, matrix in sweep(Mlp(1, activation), x, tuple(rows), kind=kind):
        found = extremes(matrix)
        if kind == "jntk" and depth == 1:  # 12 and 100 times the rounding of λ_max
            assert found.smallest == pytest.approx(float(rows[1]), rel=0.2)
        else:
            assert agrees(found.smallest, rows[depth]), (depth, found, rows[depth])


@pytest.mark.parametrize("activation", ["gelu", "erf"])
def test_ntk_on_the_sphere(sphere, activation):
    printed = SPHERE[activation, "ntk"].split()
    check(sphere, activation, "ntk", dict(zip(DEPTHS, printed, strict=True)))


@pytest.mark.parametrize(("activation", "depth"), [("gelu", 2), ("gelu", 6), ("erf", 3)])
def test_jacobian_ntk_on_the_sphere_in_part(sphere, activation, depth):
    printed = SPHERE[activation, "jntk"].split()[DEPTHS.index(depth)]
    check(sphere, activation, "jntk", {depth: printed})


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "erf"])
def test_jacobian_ntk_on_the_sphere_in_full(sphere, activation):
    printed = SPHERE[activation, "jntk"].split()
    check(sphere, activation, "jntk", dict(zip(DEPTHS, printed, strict=True)))


@pytest.mark.slow
def test_largest_eigenvalues_on_the_sphere(sphere):
    for (_, matrix), printed in zip(sweep(Mlp(1), sphere, DEPTHS), LARGEST.split(), strict=True):
        assert agrees(extremes(matrix).largest, printed)


def fires(n: int) -> np.ndarray:
    return data.split(data.algerian(), n, statistics="all").x_train


@pytest.mark.parametrize("activation", ["gelu", "erf"])
def test_jacobian_ntk_of_the_forest_fires_in_part(data_root, activation):
    printed = FIRES[activation].split()
    check(fires(128), activation, "jntk", {3: printed[2]})


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "erf"])
def test_jacobian_ntk_of_the_forest_fires_in_full(data_root, activation):
    printed = FIRES[activation].split()
    check(fires(128), activation, "jntk", dict(zip((1, 2, 3, 6, 11), printed, strict=True)))
    if activation == "gelu":  # all 244 rows
        assert agrees(extremes(gram(Mlp(11), fires(244))).smallest, "3.877e-4")


def test_lanczos_equals_the_full_decomposition_and_falls_back_to_it(sphere):
    matrix = gram(Mlp(3, "erf"), sphere[:40])
    exact = np.linalg.eigvalsh(matrix)
    found = extremes(matrix)
    assert found.method == "cholesky" and found.resolved
    assert found.smallest == pytest.approx(exact[0], rel=1e-6)  # the matrix itself is rounded
    assert found.largest == pytest.approx(exact[-1], rel=1e-10)
    twice = gram(Mlp(3, "erf"), np.concatenate([sphere[:40], sphere[:40]]))
    twice -= 1e-9 * np.eye(len(twice))
    assert extremes(twice).method == "eigvalsh" and not extremes(twice).resolved
    values = np.linalg.eigvalsh(gram(Mlp(6), np.concatenate([sphere[:9], sphere[:9]])))
    assert effective_rank(values) == 45  # half of 90
