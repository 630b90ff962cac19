# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Leddam: from nothing to a forecast
#
# Leddam (Yu et al., ICML 2024) forecasts many related series at once. It embeds the past of each
# series, splits the embedding by one *trainable* smoothing kernel into a main part and a residual,
# lets two attention branches work on the residual (between series, and along delayed copies of
# one series), and maps both parts to the future.
#
# This notebook trains the `tiny` variant on generated series (about half a minute on two CPU
# cores) and shows its claims and its figures. Start it inside a clone of rflib, in `colab/`.

# %%
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

root = next((p for p in (Path.cwd(), *Path.cwd().parents) if (p / "setup.cfg").is_file()), None)
if importlib.util.find_spec("rflib") is None:
    if root is None:
        raise SystemExit("start this notebook inside a clone of rflib")
    install = [sys.executable, "-m", "pip", "install", "-q", f"{root}[data,report]"]
    subprocess.run(install, check=True)
if root is not None and str(root) not in sys.path:
    sys.path.insert(0, str(root))

# %%
from IPython.display import Image, Markdown

from experiments.leddam import main
from rflib.run import Run, load_config

config = load_config("leddam", "tiny")
workdir = Path(tempfile.mkdtemp()) / "leddam-tiny"
with Run.open(workdir, config, experiment="leddam", variant="tiny", quiet=True) as run:
    main(config, run)

# %% [markdown]
# What the run says of the paper's claims. Generated series cannot decide most of them: the default
# variant (`python -m experiments.leddam`) works on the real ETT data.

# %%
report = (workdir / "report.md").read_text()
Markdown("## Claims" + report.partition("## Claims")[2].partition("## Metrics")[0])

# %% [markdown]
# The forecast of one test window, beside DLinear and the last day repeated.

# %%
Image(workdir / "figures" / "forecast-synthetic-96.png")

# %% [markdown]
# The kernel before and after training: 25 weights and a bias, shared by all series.

# %%
Image(workdir / "figures" / "kernel.png")

# %% [markdown]
# How the channel attention spreads over the series, mean over all test windows.

# %%
Image(workdir / "figures" / "attention-synthetic-96.png")

# %% [markdown]
# ## What comes next
#
# `predict` continues a CSV file that has the columns of the training data, dates optional, in the
# file's own units. Here the file holds the generated series that the model was trained on; for
# your own, train with `load_config("leddam", "tiny", {"data.path": "my.csv"})`.

# %%
from experiments.leddam import predict
from rflib.data import write_series
from rflib.methods.leddam.generator import generate

series = generate(config.data.seed, rows=config.data.rows, channels=config.data.channels)
csv = write_series(workdir.parent / "my.csv", series.values, ("0", "1", "2", "3", "OT"))
forecast = workdir.parent / "forecast.csv"
predict(config, workdir, {"input": str(csv), "output": str(forecast)})
print("".join(forecast.read_text().splitlines(keepends=True)[:5]))
