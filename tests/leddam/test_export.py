"""The NumPy forecast of an exported model equals the model's, and needs NumPy only."""

import io
import math
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import linen as nn

from rflib.core.errors import UserError
from rflib.methods.leddam import numpy_forecast as inference
from rflib.methods.leddam.ablations import ABLATIONS
from rflib.methods.leddam.baselines import DLinear, ITransformer
from rflib.methods.leddam.export import export_arrays
from rflib.methods.leddam.model import Leddam
from rflib.methods.leddam.plugin import PlugIn
from rflib.methods.leddam.quantile_head import QuantileHead
from tests.leddam.forecasters import FAST, shaken, windows

SIZES = {"n_series": 3, "seq_len": 12, "pred_len": 5}
SMALL = {**SIZES, "d_model": 32, "period": 8, "kernel_size": 5}
LEDDAMS = {
    **{name: {"ablation": name} for name in ABLATIONS},
    "two layers, period that divides nothing": {"n_layers": 2, "period": 7, "form": "literal"},
    "series, symmetric kernel": {"decompose_on": "series", "kernel_constraint": "symmetric"},
    "simplex, frozen positions": {"kernel_constraint": "simplex", "pe_type": "no"},
    "bank of kernels": {"more_kernels": (3, 9), "pe_type": "lin1d"},
    "positions": {"positions": True},
    "points with positions": {"positions": True, "ablation": "attn_point"},
    "any number of series": {"per_series": False},
    "one token, no normalisation": {"period": 64, "instance_norm": False},
    "frozen kernel": {"ld_init": "mov_frozen", "decompose_on": "series"},
}


def _agree(module: nn.Module, found: np.ndarray, truth: object) -> None:
    truth = np.asarray(truth, np.float64)
    assert found.shape == truth.shape
    assert np.abs(truth).max() > 0.1
    error = np.abs(found - truth).max() / np.abs(truth).max()
    assert error < 1e-5, f"{type(module).__name__}: {error}"


@pytest.mark.parametrize("options", LEDDAMS.values(), ids=LEDDAMS)
def test_leddam_in_numpy_equals_leddam(options: dict) -> None:
    module = Leddam(**{**SMALL, **options})
    v, x = shaken(module), windows(module)
    found = inference.numpy_forecast(export_arrays(module, v), x)
    _agree(module, found, FAST(module, v, x)[0])


@pytest.mark.parametrize("kind", ["mov_frozen", "softmax_gauss"])
def test_dlinear_in_numpy_equals_dlinear(kind: str) -> None:
    module = DLinear(**SIZES, kernel_size=5, ld_init=kind)
    v, x = shaken(module), windows(module)
    _agree(module, inference.numpy_forecast(export_arrays(module, v), x), FAST(module, v, x)[0])


@pytest.mark.parametrize("levels", [(0.05, 0.3, 0.5, 0.9), (0.5,)])
def test_quantiles_in_numpy_equal_those_of_the_head(levels: tuple[float, ...]) -> None:
    module = QuantileHead(DLinear(**SIZES, kernel_size=5), levels)
    v, x = shaken(module), windows(module)
    arrays, truth = export_arrays(module, v), FAST(module, v, x)[0]
    _agree(module, inference.numpy_quantiles(arrays, x), truth)
    _agree(module, inference.numpy_forecast(arrays, x), truth[..., module.centre])


def test_it_takes_and_gives_the_units_of_the_file_for_one_window_as_for_many() -> None:
    module = DLinear(**SIZES, kernel_size=5)
    v, z = shaken(module), windows(module)
    mean, scale = np.array([5.0, -3.0, 1e3]), np.array([0.1, 4.0, 20.0])
    arrays = export_arrays(module, v, mean=mean, scale=scale, columns=("a", "b", "OT"))
    found = inference.numpy_forecast(arrays, z * scale + mean)
    truth = np.asarray(FAST(module, v, z)[0]) * scale + mean
    np.testing.assert_allclose((found - truth) / scale, 0, atol=1e-4)
    one = inference.numpy_forecast(arrays, z[1] * scale + mean)
    np.testing.assert_allclose(one, found[1], rtol=1e-12)
    assert arrays["columns"].tolist() == ["a", "b", "OT"]


def test_the_archive_is_read_by_a_process_without_jax_and_without_this_library(
    tmp_path: Path,
) -> None:
    module = Leddam(**SMALL)
    v, x = shaken(module), windows(module)
    arrays = export_arrays(module, v)
    data = io.BytesIO()
    np.savez(data, **arrays)  # type: ignore[arg-type]
    (tmp_path / "model.npz").write_bytes(data.getvalue())
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "alone.py").write_text(Path(inference.__file__).read_text())
    program = (
        "import sys, numpy, alone\n"
        "y = alone.numpy_forecast(alone.load('model.npz'), numpy.load('x.npy'))\n"
        "assert not {'jax', 'flax', 'rflib', 'scipy'} & {m.split('.')[0] for m in sys.modules}\n"
        "numpy.save('y.npy', y)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _agree(module, np.load(tmp_path / "y.npy"), FAST(module, v, x)[0])


@pytest.mark.parametrize(
    "module",
    [
        ITransformer(**SIZES, d_model=16, d_ff=16, n_heads=2, n_layers=1),
        PlugIn(DLinear(**SIZES), "ld", kernel_size=5),
        QuantileHead(ITransformer(**SIZES, d_model=16, d_ff=16, n_heads=2), (0.5,)),
    ],
)
def test_other_models_are_refused_by_name(module: nn.Module) -> None:
    inner = module.forecaster if isinstance(module, QuantileHead) else module
    nothing = {"params": {"forecaster": {}}, "extra": {}}
    with pytest.raises(UserError, match=f"{type(inner).__name__} cannot be exported"):
        export_arrays(module, nothing)


def test_what_cannot_be_forecast_is_named() -> None:
    module = DLinear(**SIZES, kernel_size=5)
    arrays, x = export_arrays(module, shaken(module)), windows(module)
    with pytest.raises(ValueError, match=r"shape \(4, 11, 3\); \[12, 3\] is expected"):
        inference.numpy_forecast(arrays, x[:, 1:])
    with pytest.raises(ValueError, match="missing or not finite"):
        inference.numpy_forecast(arrays, np.where(x == x[0, 0, 0], np.nan, x))
    with pytest.raises(ValueError, match="without quantiles"):
        inference.numpy_quantiles(arrays, x)
    with pytest.raises(ValueError, match="no exported model"):
        inference.numpy_forecast({"x": x}, x)
    with pytest.raises(ValueError, match="format 1 of 'lstm'"):
        inference.numpy_forecast({"model": np.asarray('{"format": 1, "kind": "lstm"}')}, x)


def test_the_error_function_is_right_to_its_stated_digits() -> None:
    x = np.linspace(-6, 6, 4001)
    truth = np.array([math.erf(each) for each in x])
    assert np.abs(inference.erf(x) - truth).max() < 1.2e-7
    assert np.abs(inference.gelu(x) - np.asarray(jax.nn.gelu(x, approximate=False))).max() < 1e-6
