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
# # The Ehrenfest process: diffusion on integers
#
# Particles hop between two urns; the number in one of them is a random walk on 0 to S whose limit
# for large S is the noising process of continuous diffusion models (Winkler et al., ICML 2024). Run
# backwards it draws integers. This notebook drives the reversed jumps with the *continuous* score
# of a mixture on the line, trains nothing, and takes about a minute.
#
# Start it inside a clone of rflib, in `colab/`.

# %%
import importlib.util
import subprocess
import sys
from pathlib import Path

root = next((p for p in (Path.cwd(), *Path.cwd().parents) if (p / "setup.cfg").is_file()), None)
if importlib.util.find_spec("rflib") is None:
    if root is None:
        raise SystemExit("start this notebook inside a clone of rflib")
    install = [sys.executable, "-m", "pip", "install", "-q", f"{root}[report]"]
    subprocess.run(install, check=True)
if root is not None and str(root) not in sys.path:
    sys.path.insert(0, str(root))

# %%
import tempfile

from IPython.display import Image, Markdown, display

from experiments.ehrenfest import main
from rflib.run import Run, load_config

config = load_config("ehrenfest", "mixture1d")
workdir = Path(tempfile.mkdtemp()) / "mixture1d"
with Run.open(workdir, config, experiment="ehrenfest", variant="mixture1d", quiet=True) as run:
    main(config, run)

# %% [markdown]
# What the run says of the paper's claims.

# %%
report = (workdir / "report.md").read_text()
display(Markdown("## Claims" + report.partition("## Claims")[2].partition("## Metrics")[0]))

# %% [markdown]
# Paths of the reversed process, jumps beside the diffusion they tend to; how the distance to the
# true law falls with S.

# %%
for figure in sorted((workdir / "figures").glob("*.png")):
    display(Image(figure))

# %% [markdown]
# `python -m experiments.ehrenfest` trains on scikit-learn's 8 x 8 digits (about 20 minutes on two
# cores); `--config.data.path=images.npz` takes integers of your own.
