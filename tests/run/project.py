"""A project of one small experiment in a temporary folder, and ways to run it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rflib

ROOT = Path(rflib.__file__).resolve().parents[1]
SHARED = ("__init__", "__main__", "reproduce", "report")

EXPERIMENT = '''"""Fits a line; a toy.

Longer words.
"""

import time

from rflib.run import REQUIRED, Verb, cli


def main(config, run):
    from rflib.core.errors import NotFinite, UserError
    from rflib.train import preemption

    run.log(0, {"start": config.model.rate})
    for step in range(1, config.steps + 1):
        if config.trouble == "crash":
            raise RuntimeError("boom")
        if config.trouble == "user":
            raise UserError("data is missing")
        if config.trouble == "nan":
            raise NotFinite("loss is NaN at step 1")
        if config.trouble == "slow":
            time.sleep(0.05)
            preemption.check()
        run.log(step, {"loss": 1 / step}, phase="fit")
        run.progress(step, config.steps, {"loss": 1 / step}, 10.0, "fit")
    run.metric("options", list(run.options))
    run.claim("C1", "the loss falls", measured=1 / config.steps, paper=0.5, verdict="refuted")


def predict(config, workdir, flags):
    print("rate", config.model.rate, "sizes", config.data.sizes, "flags", flags)
    with open(flags["input"]):
        pass


if __name__ == "__main__":
    flags = {"input": (REQUIRED, "a CSV file"), "output": ("out.csv", "where to")}
    cli(main, verbs={"predict": Verb(predict, flags, "forecasts a file")})
'''

CONFIG = '''"""Config of a toy."""

from ml_collections import ConfigDict, config_dict

VARIANTS = {"tiny": "3 steps, seconds", "default": "100 steps, a minute"}


def get_config(variant="default"):
    config = ConfigDict()
    config.seed = 7  # any whole number
    config.steps = 3 if variant == "tiny" else 100  # updates
    config.trouble = ""  # what goes wrong
    config.data = _data()
    config.model = ConfigDict({
        "rate": 0.1,  # learning rate, > 0
        "bias": True,  # add one
    })
    return config


def _data():
    d = ConfigDict()
    d.path = None  # a CSV file
    d.sizes = (1, 2)  # any
    d.limit = config_dict.placeholder(int)  # rows
    return d
'''


def write(folder: Path, name: str = "toy") -> Path:
    """Writes experiments/<name>.py and configs/<name>.py beside copies of the shared commands."""
    for part in ("experiments", "configs"):
        (folder / part).mkdir(exist_ok=True)
    for shared in SHARED:
        shutil.copy(ROOT / "experiments" / f"{shared}.py", folder / "experiments")
    (folder / "experiments" / f"{name}.py").write_text(EXPERIMENT)
    (folder / "configs" / f"{name}.py").write_text(CONFIG)
    return folder


def start(folder: Path, module: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Starts `python -m <module> <arguments>` in the project."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(folder: Path, module: str, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command in the project."""
    process = start(folder, module, *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err
