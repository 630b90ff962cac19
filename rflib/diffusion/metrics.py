"""Distances between laws and between sets of features; NumPy, float64.

The features come from whatever network the caller names; so do the distances: a Fréchet distance
on the features of a small classifier is `fid_feat`, never FID.
"""

import numpy as np
from jaxtyping import Float

from rflib.core.checks import positive_int
from rflib.core.errors import UserError

Features = Float[np.ndarray, "n d"]


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """½ Σ |p - q| of two arrays of probabilities of one shape."""
    return 0.5 * float(np.abs(np.asarray(p, np.float64) - np.asarray(q, np.float64)).sum())


def kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Σ p log(p/q) in nats; infinite where q = 0 < p."""
    p, q = (np.asarray(a, np.float64).ravel() for a in (p, q))
    kept = p > 0
    with np.errstate(divide="ignore"):
        return float(np.sum(p[kept] * (np.log(p[kept]) - np.log(q[kept]))))


def marginal_total_variation(
    one: np.ndarray, other: np.ndarray, levels: int
) -> Float[np.ndarray, " d"]:
    """Total variation between the histograms of each coordinate of two sets of integers.

    one, other: integers in 0 … levels - 1 of shape [n, ...] and [m, ...], with d coordinates.
    """
    histograms = []
    for values in (one, other):
        flat = np.asarray(values).reshape(len(values), -1)
        if flat.min() < 0 or flat.max() >= levels:
            raise UserError(
                f"values from {flat.min()} to {flat.max()} do not lie in 0 … {levels - 1}"
            )
        each = np.stack([(flat == level).mean(0) for level in range(levels)])
        histograms.append(each)
    return 0.5 * np.abs(histograms[0] - histograms[1]).sum(0)


def frechet(
    mean: np.ndarray, covariance: np.ndarray, other_mean: np.ndarray, other_covariance: np.ndarray
) -> float:
    """|m - m'|² + tr(C + C' - 2 (C^½ C' C^½)^½), the squared 2-Wasserstein distance of Gaussians.

    Both roots by symmetric eigendecompositions, negative eigenvalues (rounding) taken as 0.
    """
    values, vectors = np.linalg.eigh(np.asarray(covariance, np.float64))
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    middle = np.linalg.eigvalsh(root @ np.asarray(other_covariance, np.float64) @ root)
    trace = np.trace(covariance) + np.trace(other_covariance)
    gap = np.sum(np.square(np.asarray(mean, np.float64) - other_mean))
    return float(gap + trace - 2 * np.sqrt(np.maximum(middle, 0)).sum())


def frechet_features(one: Features, other: Float[np.ndarray, "m d"]) -> float:
    """`frechet` between the means and unbiased covariances of two sets of features.

    It is biased upwards by the size of the sets: compare equal sizes, and print that of two
    halves of the data beside it. FID of images, FVD of videos, by the network of the features.
    """
    moments = []
    for features in (one, other):
        features = _features(features)
        moments += [features.mean(0), np.atleast_2d(np.cov(features, rowvar=False))]
    return frechet(*moments)


def _features(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, np.float64)
    if features.ndim != 2 or len(features) < 2 or not np.all(np.isfinite(features)):
        raise UserError(f"features of shape {features.shape}: finite [n >= 2, d] is needed")
    return features


def kernel_distance(
    one: Features,
    other: Float[np.ndarray, "m d"],
    *,
    subsets: int = 100,
    size: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """(mean, standard error) of the unbiased squared MMD with the kernel (x·y/d + 1)³.

    Over random subsets of min(size, n, m) rows (Bińkowski et al., ICLR 2018: KID on Inception).
    """
    one, other = _features(one), _features(other)
    count = min(positive_int("size", size), len(one), len(other))
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(positive_int("subsets", subsets)):
        x = one[rng.choice(len(one), count, replace=False)]
        y = other[rng.choice(len(other), count, replace=False)]
        values.append(mmd(x, y))
    return float(np.mean(values)), float(np.std(values) / np.sqrt(subsets))


def mmd(x: Features, y: Float[np.ndarray, "m d"]) -> float:
    """Unbiased squared maximum mean discrepancy with the kernel (x·y/d + 1)³; may be negative."""
    kernels = [(a @ b.T / x.shape[1] + 1) ** 3 for a, b in ((x, x), (y, y), (x, y))]
    within = [(k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in kernels[:2]]
    return float(within[0] + within[1] - 2 * kernels[2].mean())


def inception_score(
    probabilities: Float[np.ndarray, "n classes"], splits: int = 10
) -> tuple[float, float]:
    """(mean, std) over `splits` of exp(E KL(p(y|x) || p(y))); from 1 to the number of classes."""
    probabilities = np.asarray(probabilities, np.float64)
    scores = []
    for part in np.array_split(probabilities, positive_int("splits", splits)):
        mean = part.mean(0, keepdims=True)
        logs = np.log(np.maximum(part, 1e-300)) - np.log(np.maximum(mean, 1e-300))
        scores.append(np.exp((part * logs).sum(1).mean()))
    return float(np.mean(scores)), float(np.std(scores))


def nearest_distance(
    samples: Float[np.ndarray, "n d"], data: Float[np.ndarray, "m d"]
) -> Float[np.ndarray, " n"]:
    """Euclidean distance of each sample to its nearest row of `data` (memorisation gives 0)."""
    samples, data = np.asarray(samples, np.float64), np.asarray(data, np.float64)
    square = (samples**2).sum(1)[:, None] + (data**2).sum(1)[None] - 2 * samples @ data.T
    return np.sqrt(np.maximum(square.min(1), 0))


def perceptual_distance(one: list[np.ndarray], other: list[np.ndarray]) -> Float[np.ndarray, " n"]:
    """Mean squared difference of unit-length channel vectors, averaged over layers.

    one, other: maps [n, h, w, c] of each layer. As LPIPS (Zhang et al., CVPR 2018) with equal
    weights; on features of a small classifier its name is `lpips_feat`.
    """
    layers = []
    for a, b in zip(one, other, strict=True):
        units = [
            m / np.maximum(np.linalg.norm(m, axis=-1, keepdims=True), 1e-10)
            for m in (np.asarray(a, np.float64), np.asarray(b, np.float64))
        ]
        layers.append(np.square(units[0] - units[1]).sum(-1).mean((1, 2)))
    return np.mean(layers, 0)


def ssim(
    one: Float[np.ndarray, "n h w c"], other: Float[np.ndarray, "n h w c"], span: float
) -> Float[np.ndarray, " n"]:
    """Structural similarity of images with values in an interval of length `span`; 1 if equal.

    Wang et al. (2004): Gaussian window of deviation 1.5 cut at 5 pixels, K = (.01, .03).
    """
    from scipy.ndimage import gaussian_filter

    def blur(x: np.ndarray) -> np.ndarray:
        return gaussian_filter(x, (0, 1.5, 1.5, 0), truncate=3.5)

    x, y = np.asarray(one, np.float64), np.asarray(other, np.float64)
    mx, my = blur(x), blur(y)
    vx, vy, cov = blur(x * x) - mx**2, blur(y * y) - my**2, blur(x * y) - mx * my
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    score = (2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return score.mean((1, 2, 3))
