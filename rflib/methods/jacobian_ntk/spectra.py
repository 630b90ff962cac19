"""Extreme eigenvalues of Gram matrices, and what counts as zero among them. NumPy, float64."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Matrix = Float[np.ndarray, "P P"]


class Extremes(NamedTuple):
    """Smallest and largest eigenvalue; method: "cholesky" or, where that fails, "eigvalsh"."""

    smallest: float
    largest: float
    method: str

    @property
    def resolved(self) -> bool:
        """Whether the smallest one is above the rounding of the matrix, 100 ε λ_max."""
        return bool(self.smallest > 100 * np.finfo(np.float64).eps * self.largest)


def extremes(matrix: Matrix) -> Extremes:
    """λ_min and λ_max of a symmetric matrix: Lanczos, on its inverse for λ_min.

    One Cholesky factorisation instead of a full decomposition: five times faster at P = 2928. It
    fails where λ_min is at round-off or below; all eigenvalues are then computed.
    """
    import scipy.linalg

    matrix = np.asarray(matrix, np.float64)
    size = len(matrix)
    if size >= 64:
        try:
            factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=True)
        except scipy.linalg.LinAlgError:
            factor = None
        if factor is not None:
            solve = partial(scipy.linalg.cho_solve, factor, check_finite=False)
            low, high = 1 / largest(solve, size), largest(lambda v: matrix @ v, size)
            return Extremes(low, high, "cholesky")
    every = scipy.linalg.eigvalsh(matrix)
    return Extremes(float(every[0]), float(every[-1]), "eigvalsh")


def largest(times: Callable[[np.ndarray], np.ndarray], size: int, *, tol: float = 0.0) -> float:
    """The largest eigenvalue of a symmetric operator v -> times(v) on R^size, by Lanczos.

    tol: relative; 0 is rounding. The start vector is fixed.
    """
    import scipy.sparse.linalg as sparse

    operator = sparse.LinearOperator((size, size), matvec=times, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    start = np.random.default_rng(0).normal(size=size)
    found = sparse.eigsh(operator, 1, which="LA", v0=start, tol=tol, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
    return float(found[0])


def effective_rank(values: Float[np.ndarray, "P"], tol: float = 1e-10) -> int:
    """How many eigenvalues exceed tol · λ_max."""
    return int(np.sum(values > tol * np.max(values))) if len(values) else 0
