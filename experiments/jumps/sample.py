"""The verb `sample`: images of a finished run's model as PNG and .npz."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.jumps import drawing, images
from experiments.jumps.image_verdicts import tiled
from rflib.core.checks import one_of
from rflib.core.errors import UserError
from rflib.run.config import freeze
from rflib.run.seeds import seeds


def sample(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    """Writes <output>.png and <output>.npz (`images`, integers) with what the flags ask for."""
    name = one_of("--model", flags["model"] or config.model.names[0], list(config.model.names))
    seed = _whole("seed of training", flags["trained"] or str(seeds(config)[0]))
    path = workdir / "arrays" / f"model-{name}-{seed}.npz"
    if not path.is_file():
        raise UserError(f"{workdir} has no trained model {name} of seed {seed}: {path} is missing")
    count = _whole("--count", flags["count"] or "64", least=1)
    steps = _whole("--steps", flags["steps"] or str(config.sampler.steps), least=1)
    correct = _whole("--correctors", flags["correctors"] or "0")
    changed: Any = ConfigDict(config)  # a copy that can be changed
    changed.sampler.batch = min(count, config.sampler.batch)
    config = freeze(changed)
    found = images.problem(config)
    call = drawing.sampler(config, found, name, steps, correct)
    key = jax.random.key(_whole("--seed", flags["seed"] or "0"))
    drawn = drawing.draw(config, call, images.read_weights(path), key, count)
    target = Path(flags["output"] or "").expanduser()
    target = target.with_suffix("") if target.suffix in (".png", ".npz") else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        top = found.images.levels - 1
        write_png(target.with_suffix(".png"), drawn.values, top)
        np.savez_compressed(target.with_suffix(".npz"), images=drawn.values)
    except OSError as error:
        raise UserError(f"--output={target}: {error.strerror}") from error
    print(json.dumps({"model": name, "images": count, "evaluations": round(drawn.evaluations)}))
    print(f"{target}.png and {target}.npz: values 0 to {top}")


def write_png(path: Path, values: np.ndarray, top: int) -> None:
    """A grid of images [n, h, w, c] with values 0 … top, enlarged so that pixels can be seen."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("a PNG is written with pillow: pip install 'rflib[digits]'") from error
    columns = int(np.ceil(np.sqrt(len(values))))
    grid = np.round(tiled(values, columns, top) * (255 / top)).astype(np.uint8)
    factor = max(1, 512 // max(grid.shape[:2]))
    Image.fromarray(grid.repeat(factor, 0).repeat(factor, 1)).save(path)


def _whole(name: str, text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"{name}={text!r} must be a whole number of at least {least}")
    return int(text)
