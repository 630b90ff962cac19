"""The Ehrenfest experiment: its config, a small run of its parts, and what decides its claims."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.ehrenfest as file
from experiments import ehrenfest
from experiments.jumps import (
    generating,
    image_verdicts,
    images,
    judging,
    letter,
    letter_verdicts,
    mixture,
)
from experiments.jumps.sample import sample
from rflib.core.errors import UserError
from rflib.diffusion.metrics import total_variation
from rflib.run import Run, load_config
from rflib.run import record as records
from rflib.run.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = [
    "data", "process", "mixture", "letter", "model", "loss", "optim", "sampler", "transfer",
    "features", "eval", "mesh", "checkpoint", "log", "expect",
]  # fmt: skip
SMALL = {
    "parts": ("letter", "images", "transfer"),
    "steps": 4,
    "batch": 16,
    "mixture.sizes": (16, 36),
    "mixture.shown": 16,
    "letter.size": 4,
    "letter.steps": 4,
    "letter.every": 2,
    "letter.batch": 16,
    "letter.width": 8,
    "letter.grid": 6,
    "letter.samples": 50,
    "letter.leaps": (5,),
    "letter.losses": ("ou", "ratio"),
    "model.names": ("ou", "ddpm"),
    "model.width": 8,
    "model.blocks": 1,
    "optim.scan": 2,
    "log.every": 2,
    "sampler.steps": 3,
    "sampler.batch": 12,
    "transfer.table": 20,
    "transfer.last": 0.5,
    "transfer.steps": (3,),
    "mesh.data": 1,
    "features.steps": 2,
    "features.batch": 16,
    "eval.samples": 20,
    "eval.shown": 9,
}


def small(**changes: Any) -> Any:
    """The tiny variant, shrunk."""
    return load_config(
        "ehrenfest", "tiny", SMALL | {k.replace("__", "."): v for k, v in changes.items()}
    )


def opened(path: Path, config: Any) -> Run:
    return Run.open(path, config, experiment="ehrenfest", variant="tiny", quiet=True)


def report(path: Path) -> dict[str, Any]:
    return json.loads((path / "report.json").read_text())


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 labelled 4 x 4 images with 5 grey values."""
    path = tmp_path_factory.mktemp("own") / "images.npz"
    rng = np.random.default_rng(0)
    np.savez(path, images=rng.integers(0, 5, (40, 4, 4)), labels=np.arange(40) % 2)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, own: Path) -> tuple[Path, Any]:
    """The directory and config of a small run on a letter and own images."""
    path = tmp_path_factory.mktemp("ehrenfest") / "run"
    config = small(data__path=str(own))
    with opened(path, config) as run:
        ehrenfest.main(config, run)
    return path, config


# The config.


def test_all_variants_have_the_same_keys_and_sections_in_the_order_of_the_design() -> None:
    keys = [list(records.flat(file.get_config(variant))) for variant in file.VARIANTS]
    assert all(each == keys[0] for each in keys)
    text = (ROOT / "configs" / "ehrenfest.py").read_text()
    assert re.findall(r"    c\.(\w+) = ConfigDict\(\)", text) == SECTIONS


def test_every_leaf_of_the_config_has_a_comment() -> None:
    text = (ROOT / "configs" / "ehrenfest.py").read_text()
    body = text[: text.index("def _digits(")].splitlines()
    leaves = [line for line in body if re.match(r"    c\.[\w.]+ = (?!ConfigDict)", line)]
    assert len(leaves) > 60
    assert [line for line in leaves if "  # " not in line] == []


# A run.


def test_a_run_ends_with_its_claims_tables_figures_and_weights(
    finished: tuple[Path, Any],
) -> None:
    path, _ = finished
    found = report(path)
    verdicts = {claim["id"]: claim["verdict"] for claim in found["claims"]}
    assert {"C1 grid", "C4b", "C5 trained", "C4c letter ratio", "C6 images ddpm"} <= verdicts.keys()
    assert "C4a transfer" in verdicts
    # One training of each decides no comparison.
    assert verdicts["C4c letter ratio"] == verdicts["C6 images ddpm"] == "undecided"
    for name in ("letter_curve", "letter_laws", "images"):
        assert (path / "figures" / f"{name}.png").stat().st_size > 5000, name
    table = (path / "tables" / "images.csv").read_text()
    assert "half of the data" in table and "DDPM" in table
    for name in ("model-ou-0", "samples-ddpm-0-3", "letter-ou"):
        assert (path / "arrays" / f"{name}.npz").is_file()


def test_a_finished_run_says_the_same_again_and_draws_nothing(
    finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = finished
    before = report(path)["claims"]

    def never(*arguments: Any, **named: Any) -> None:
        raise AssertionError("finished work was done again")

    monkeypatch.setattr(generating.drawing, "draw", never)
    monkeypatch.setattr(letter, "reached", never)
    with opened(path, config) as run:
        ehrenfest.main(config, run)
    assert report(path)["claims"] == before


def test_sample_writes_integers_of_the_data_and_a_grid(
    finished: tuple[Path, Any], tmp_path: Path
) -> None:
    path, config = finished
    flags: dict[str, str | None] = dict.fromkeys(("model", "trained", "steps", "correctors"))
    flags |= {"output": str(tmp_path / "new" / "drawn.png"), "count": "5", "seed": "3"}
    sample(config, path, flags)
    with np.load(tmp_path / "new" / "drawn.npz") as archive:
        values = archive["images"]
    assert values.shape == (5, 4, 4, 1) and values.dtype == np.int32
    assert values.min() >= 0 and values.max() <= 4
    assert (tmp_path / "new" / "drawn.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "ratio"}, "--model"),
        ({"trained": "7"}, "no trained model ou of seed 7"),
        ({"count": "-1"}, "--count"),
    ],
)
def test_a_mistake_in_the_flags_of_sample_is_named(
    finished: tuple[Path, Any], tmp_path: Path, change: dict[str, str], message: str
) -> None:
    flags: dict[str, str | None] = dict.fromkeys(
        ("model", "trained", "count", "steps", "correctors", "seed")
    )
    flags |= {"output": str(tmp_path / "x"), **change}
    with pytest.raises(UserError, match=re.escape(message)):
        sample(finished[1], finished[0], flags)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": ("leter",)}, "did you mean 'letter'"),
        ({"model__names": ("ou", "dppm")}, "did you mean 'ddpm'"),
        ({"model__names": ("ratio",), "data__embedding": "wide"}, "embedding='small'"),
        ({"data__path": "/nowhere"}, "does not exist"),
    ],
)
def test_a_mistake_in_the_config_is_named(
    tmp_path: Path, own: Path, change: dict[str, Any], message: str
) -> None:
    config = small(**{"parts": ("images",), "data__path": str(own)} | change)
    with (
        pytest.raises(UserError, match=re.escape(message)),
        opened(tmp_path / "run", config) as run,
    ):
        ehrenfest.main(config, run)


# The mixture.


def test_errors_at_two_sizes_fall_like_one_over_the_size() -> None:
    found = {f"S={size}": mixture.of_size(size, 2.0) for size in (25, 100)}
    np.testing.assert_allclose(
        [each["score_shift"] for each in found.values()], [0.04212, 0.01258], rtol=0.02
    )
    assert max(each["exact"] for each in found.values()) < 1e-6
    for name in ("transition", "drift", "diffusion"):
        assert -1.15 < (mixture.slope(*mixture.by_size(found, name)) or 0) < -0.85


def test_conditional_expectations_are_marginal_ratios_for_three_chains() -> None:
    found = mixture.other_chains()
    assert set(found) == {"Ehrenfest", "uniform", "absorbing"}
    assert max(found.values()) < 1e-10


def test_slopes_need_two_sizes() -> None:
    assert mixture.slope([4], [1.0]) is None
    assert abs((mixture.slope([10, 100], [1e-1, 1e-3]) or 0) + 2) < 1e-12


# The letter.


def test_rows_of_the_letter_follow_its_law_and_depend_on_step_and_seed() -> None:
    found = letter.letter(small())
    rows = letter._batch(found, 20_000, 1)
    drawn = rows(3)
    np.testing.assert_array_equal(drawn, rows(3))
    assert not np.array_equal(drawn, rows(4))
    flat = np.ravel_multi_index(tuple(drawn.T), found.law.shape)
    law = np.bincount(flat, minlength=found.law.size).reshape(found.law.shape) / len(drawn)
    noise = 0.5 * np.sum(np.sqrt(2 * found.law / (np.pi * len(drawn))))
    assert total_variation(law, found.law) < 1.5 * noise


def test_rates_that_no_step_can_follow_are_cut_and_counted(monkeypatch: Any) -> None:
    config = small()
    found = letter.letter(config)
    monkeypatch.setattr(letter, "MOST_SUB_STEPS", 64)
    ts = letter._times(config, found)
    n = found.process.size + 1
    table = tuple(jnp.ones((len(ts), 2, n, n)).at[:, 0, 0, 0].set(1e9) for _ in range(2))
    law = letter.reached(config, found, (table[0], table[1]), ts)
    assert 0 < law.cut < 0.1
    np.testing.assert_allclose(law.law.sum(), 1, atol=1e-3)
    assert law.law.min() > -1e-5


# Images.


def test_comparisons_need_enough_trainings_and_no_overlap() -> None:
    low, high = np.array([1.0, 1.1, 1.2]), np.array([2.0, 2.1, 2.2])
    assert letter_verdicts.compare(low, high, 3) == ("holds", "")
    assert letter_verdicts.compare(high, low, 3)[0] == "refuted"
    assert letter_verdicts.compare(low, high - 1, 3)[0] == "undecided"
    assert letter_verdicts.compare(low[:2], high[:2], 3)[0] == "undecided"


def test_tiles_keep_the_values_and_have_gaps() -> None:
    values = np.arange(2 * 3 * 3).reshape(2, 3, 3, 1) % 10
    grid = image_verdicts.tiled(values, 2, 9)
    assert grid.shape == (5, 9)
    np.testing.assert_array_equal(grid[1:4, 1:4], values[0, ..., 0])
    np.testing.assert_array_equal(grid[1:4, 5:8], values[1, ..., 0])
    assert (grid[0] == 3).all() and (grid[:, 4] == 3).all()


def test_weights_of_another_head_keep_everything_but_the_head() -> None:
    old = {"in": {"kernel": np.ones((2, 2))}, "out": {"kernel": np.ones((2, 1))}}
    new = {"in": {"kernel": np.zeros((2, 2))}, "out": {"kernel": np.zeros((2, 3))}}
    found = images.fitted(old, new)
    assert found["in"]["kernel"].min() == 1 and found["out"]["kernel"].max() == 0


def test_images_without_labels_are_judged_by_their_pixels(own: Path, tmp_path: Path) -> None:
    with np.load(own) as archive:
        np.savez(tmp_path / "plain.npz", images=archive["images"])
    config = small(data__path=str(tmp_path / "plain.npz"))
    found = images.problem(config)
    with opened(tmp_path / "run", config) as run:
        judge = judging.judge(config, run, found)
    assert judge.features is None
    same = judging.measure(judge, judge.everything)
    assert same.keys() == {"tv_pixel", "nearest"} and same["tv_pixel"] == 0


@pytest.mark.parametrize("name", ["d3pm", "tauldr", "gauss"])
def test_further_models_have_finite_losses_and_gradients(own: Path, name: str) -> None:
    config = small(data__path=str(own), model__d3pm_steps=5)
    found = images.problem(config)
    net, value = images.network(config, found, name), images.value(config, found, name)
    k0 = found.embedding.encode(found.images.train[:8])
    params = net.init(jax.random.key(0), jnp.zeros(k0.shape), jnp.full(8, 0.5))["params"]

    def total(params: Any, key: Any) -> Any:
        return value(lambda p, x, t: net.apply({"params": p}, x, t), params, key, k0)[0]

    result, gradient = jax.jit(jax.value_and_grad(total))(params, jax.random.key(1))
    assert np.isfinite(float(result))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.abs(gradient["out"]["kernel"]).max() > 0


def test_cells_are_models_seeds_steps_and_correctors() -> None:
    config = small(
        more_seeds=(1,), model__names=("ou", "ce"), sampler__ablation=(5,), sampler__correctors=(2,)
    )
    names = {cell.name for cell in generating.cells(config)}
    assert names == {
        "ou-0-3", "ou-1-3", "ce-0-3", "ce-1-3", "ou-0-5", "ce-0-5", "ce-0-3-c2",
    }  # fmt: skip
    assert seeds(config) == (0, 1)
