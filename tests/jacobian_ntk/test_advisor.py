"""Advice before training: its table, its choice, its times, against direct computation."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import advisor, data
from rflib.methods.jacobian_ntk.dynamics import decompose, make_targets, predict
from rflib.methods.jacobian_ntk.kernels import gram
from rflib.methods.jacobian_ntk.network import Mlp


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    part = data.split(data.generated(30, 3, seed=1), 16)
    return part.x_train, part.y_train


@pytest.fixture(scope="module")
def advice(rows) -> advisor.Advice:
    return advisor.advise(*rows, lam=0.5, kappa=0.5, activations=("erf",), depths=(1, 3, 6))


def test_table_holds_the_extreme_eigenvalues(rows, advice):
    x, _ = rows
    assert [row.depth for row in advice.table] == [1, 3, 6] and advice.rows == 16
    for row in advice.table[1:2]:
        matrix = gram(Mlp(row.depth, "erf"), x)
        values = np.linalg.eigvalsh(matrix)
        assert row.jntk_largest == pytest.approx(values[-1], rel=1e-9)
        assert row.jntk_smallest == pytest.approx(values[0], abs=1e-12 * values[-1])
        plain = np.linalg.eigvalsh(matrix[::4, ::4])[0]
        assert row.ntk_smallest == pytest.approx(plain, rel=1e-6)
        assert row.ntk_smallest >= row.jntk_smallest  # the NTK is a block of the JNTK
        assert row.resolved == (values[0] > advisor.RESOLUTION * values[-1])


def test_choice_is_the_shallowest_resolved_architecture(advice):
    def row(depth, smallest, activation="erf"):
        clear = smallest > advisor.RESOLUTION
        return advisor.DepthRow(activation, depth, 1.0, smallest, 1.0, clear)

    table = [row(1, 1e-12), row(6, 1e-3), row(3, 1e-6), row(3, 1e-5, "gelu")]
    assert advisor.recommend(table) == table[3]
    assert advisor.recommend([row(1, 1e-12), row(4, 1e-9)]).depth == 4
    assert advice.net == Mlp(advisor.recommend(advice.table).depth, "erf", kappa=0.5)


def test_times_are_those_of_the_dynamics(rows, advice):
    x, y = rows
    kernel, targets = gram(advice.net, x), make_targets(y, 3)
    modes, free = (decompose(kernel, 16, lam=lam) for lam in (0.5, 0.0))
    assert advice.scales.fastest == pytest.approx(16 / modes.values[-1])
    assert advice.scales.stable_step == pytest.approx(2 * advice.scales.fastest)

    def apart(t):
        both = [predict(each, kernel, targets, times=[t])[0, :, 0] for each in (modes, free)]
        return np.sqrt(np.mean((both[0] - both[1]) ** 2)), np.sqrt(np.mean((both[1] - y) ** 2))

    assert 0 < advice.binds < np.inf
    assert apart(advice.binds)[0] == pytest.approx(0.05, rel=1e-4)  # rms(y) = 1
    assert max(apart(t)[0] for t in np.linspace(0, 0.99 * advice.binds, 20)) < 0.05
    assert apart(advice.fitted)[1] == pytest.approx(0.5, rel=1e-4)
    error, signs = advice.leave_one_out
    assert error > 0 and 0.5 <= signs <= 1


def test_a_penalty_too_small_to_matter_never_binds(rows):
    x, y = rows
    kernel = gram(Mlp(2, "erf"), x)
    weak, strong = (
        advisor.binding_time(kernel, y, decompose(kernel, 16, lam=lam))[0] for lam in (1e-3, 1.0)
    )
    assert strong < weak
    free = decompose(kernel, 16, lam=0.0)
    assert advisor.binding_time(kernel, y, free)[0] == np.inf


def test_many_rows_are_sampled_and_mistakes_explained(rows):
    x, y = rows
    found = advisor.advise(x, y, activations=("erf",), depths=(3,), rows=8)
    assert found.rows == 8
    with pytest.raises(UserError, match=r"lam=0 must lie in \(0"):
        advisor.advise(x, y, lam=0)
    with pytest.raises(UserError, match="x has 16 rows and y 15"):
        advisor.advise(x, y[:15])
