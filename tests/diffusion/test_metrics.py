"""Distances against closed forms and slow, literal implementations."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from rflib.core.errors import UserError
from rflib.diffusion import metrics

RNG = np.random.default_rng(0)


def test_total_variation_and_divergence_of_small_laws():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    assert metrics.total_variation(p, q) == 0.5
    np.testing.assert_allclose(metrics.kl_divergence(p, q), np.log(2))
    assert metrics.kl_divergence(q, p) == np.inf
    assert metrics.kl_divergence(p, p) == 0


def test_marginal_variation_compares_histograms_of_each_coordinate():
    one, other = np.array([[0, 1], [0, 2]]), np.array([[0, 1], [1, 1], [0, 1], [1, 1]])
    np.testing.assert_allclose(metrics.marginal_total_variation(one, other, 3), [0.5, 0.5])
    with pytest.raises(UserError, match="0 … 1"):
        metrics.marginal_total_variation(one, other, 2)


def test_frechet_distance_equals_the_general_matrix_square_root():
    a, b = RNG.normal(size=(40, 5)) @ RNG.normal(size=(5, 5)), RNG.normal(size=(50, 5)) + 1
    c, d = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    literal = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(c + d - 2 * sqrtm(c @ d).real)
    np.testing.assert_allclose(metrics.frechet_features(a, b), literal, rtol=1e-8)
    np.testing.assert_allclose(metrics.frechet_features(a, a), 0, atol=1e-8)


def test_frechet_distance_of_commuting_gaussians_and_singular_covariances():
    found = metrics.frechet(np.zeros(2), np.diag([4.0, 0.0]), np.ones(2), np.diag([1.0, 0.0]))
    np.testing.assert_allclose(found, 2 + 1, atol=1e-12)


def test_kernel_distance_is_unbiased_and_equals_the_double_sum():
    x, y = RNG.normal(size=(7, 3)), RNG.normal(size=(5, 3))
    k = lambda a, b: (a @ b / 3 + 1) ** 3  # noqa: E731
    within = [
        np.mean([k(z[i], z[j]) for i in range(len(z)) for j in range(len(z)) if i != j])
        for z in (x, y)
    ]
    cross = np.mean([k(a, b) for a in x for b in y])
    np.testing.assert_allclose(metrics.mmd(x, y), sum(within) - 2 * cross)
    same = [metrics.mmd(*RNG.normal(size=(2, 20, 2))) for _ in range(400)]
    assert abs(np.mean(same)) < 4 * np.std(same) / 20
    mean, error = metrics.kernel_distance(RNG.normal(size=(60, 3)), RNG.normal(size=(60, 3)) + 1)
    assert mean > 5 * error > 0


def test_score_is_the_number_of_classes_for_certain_and_one_for_flat_predictions():
    certain = np.tile(np.eye(4), (10, 1))
    np.testing.assert_allclose(metrics.inception_score(certain, 2)[0], 4)
    np.testing.assert_allclose(metrics.inception_score(np.full((40, 4), 0.25), 2)[0], 1)


def test_nearest_distance_is_zero_for_copies_and_brute_force_otherwise():
    data, samples = RNG.normal(size=(30, 4)), RNG.normal(size=(6, 4))
    brute = [min(np.linalg.norm(s - d) for d in data) for s in samples]
    np.testing.assert_allclose(metrics.nearest_distance(samples, data), brute)
    np.testing.assert_allclose(metrics.nearest_distance(data[:3], data), 0, atol=1e-6)


def test_similarity_is_one_for_equal_images_and_falls_with_noise():
    image = RNG.uniform(size=(2, 16, 16, 1))
    np.testing.assert_allclose(metrics.ssim(image, image, 1.0), 1)
    values = [
        metrics.ssim(image, image + s * RNG.normal(size=image.shape), 1.0).mean()
        for s in (0.05, 0.2, 1.0)
    ]
    assert 1 > values[0] > values[1] > values[2] > -0.2


def test_similarity_of_flat_images_is_the_luminance_term():
    one, other = np.full((1, 16, 16, 1), 0.2), np.full((1, 16, 16, 1), 0.6)
    expected = (2 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4)
    np.testing.assert_allclose(metrics.ssim(one, other, 1.0), expected, rtol=1e-9)


def test_perceptual_distance_compares_directions_of_channels():
    one = RNG.normal(size=(2, 3, 3, 4))
    np.testing.assert_allclose(metrics.perceptual_distance([one], [3 * one]), 0, atol=1e-12)
    np.testing.assert_allclose(metrics.perceptual_distance([one, one], [-one, one]), 2)
