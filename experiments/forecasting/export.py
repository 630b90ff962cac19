"""The verb `export`: a trained model as one archive of arrays, and the NumPy code that reads it."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from experiments.forecasting.trained import load_trained
from rflib.core.errors import UserError
from rflib.methods.leddam import numpy_forecast
from rflib.methods.leddam.export import export_arrays
from rflib.run import files


def export(config: Any, workdir: Path, *, output: Path, **choice: str | None) -> None:
    """Writes `output`, an .npz archive, and beside it numpy_forecast.py, which needs NumPy only.

    config: the run's. choice: data, horizon, model and seed; None stands for the run's first.

    Raises:
        UserError: a name that does not end in .npz, or a model other than Leddam and DLinear.
    """
    if output.suffix != ".npz":
        raise UserError(f"--output {output} must end in .npz")
    trained = load_trained(config, workdir, **choice)
    arrays = export_arrays(
        trained.module,
        {"params": trained.view["params"], "extra": trained.view["extra"]},
        mean=trained.standardiser.mean,
        scale=trained.standardiser.scale,
        columns=trained.columns,
    )
    data, save = io.BytesIO(), np.savez_compressed
    save(data, **arrays)  # pyright: ignore[reportArgumentType]
    files.write_bytes(output, data.getvalue())
    code = output.with_name("numpy_forecast.py")
    files.write_text(code, Path(numpy_forecast.__file__).read_text())
    count = sum(each.size for each in arrays.values() if each.dtype == np.float32)
    print(f"{output}: {trained.phase} at step {trained.step}, {count} weights; {code.name} beside "
          "it turns it into forecasts with NumPy alone")  # fmt: skip
