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
# # Jacobian NTK: what a penalty on the input-Jacobian does, without training
#
# Kim and Yang (ICML 2024) train a network on squared error plus a penalty on its *input-Jacobian*.
# As the width grows, the network together with its Jacobian follows a linear equation: its kernel,
# the Jacobian NTK, says which function training arrives at, how fast, and whether the data can be
# fitted with a given Jacobian at all.
#
# This notebook compares small networks with that limit (the `tiny` variant, a minute on two CPU
# cores) and then asks for advice on a CSV file. Start it inside a clone of rflib, in `colab/`.

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

# %% [markdown]
# ## One kernel, two lines
#
# All blocks (values and derivatives in both inputs) of a network of three hidden layers.

# %%
import jax
import jax.numpy as jnp

from rflib.methods.jacobian_ntk.kernels import jacobian_ntk
from rflib.methods.jacobian_ntk.network import Mlp

x = jax.random.normal(jax.random.key(0), (5, 3))
blocks = jacobian_ntk(Mlp(depth=3, activation="gelu"), x / jnp.linalg.norm(x, axis=1)[:, None])
print(blocks.shape, "[rows, rows, 1 + d, 1 + d]")

# %% [markdown]
# ## Networks against the limit

# %%
from IPython.display import Image, Markdown

from experiments.jacobian_ntk import main
from rflib.run import Run, load_config

changes = {"exp": ("dynamics", "regression")}
config = load_config("jacobian_ntk", "tiny", changes)
workdir = Path(tempfile.mkdtemp()) / "jacobian_ntk-tiny"
with Run.open(workdir, config, experiment="jacobian_ntk", variant="tiny", quiet=True) as run:
    main(config, run)

# %% [markdown]
# Lines: the solution of the limit, from each network's own start. Marks: the network in training.

# %%
Image(workdir / "figures" / "trajectories.png")

# %% [markdown]
# The limit itself, at any stopping time: the end of training does not depend on the penalty's
# coefficient, the way there does.

# %%
Image(workdir / "figures" / "stopping.png")

# %%
report = (workdir / "report.md").read_text()
Markdown("## Claims" + report.partition("## Claims")[2].partition("## Metrics")[0])

# %% [markdown]
# ## Your own data
#
# `advise` reads a CSV file with numbers and a label and says which depth and width resolve it, how
# long training takes, and from when on the penalty matters.

# %%
import numpy as np

from experiments.jacobian_ntk import VERBS, advise

rng = np.random.default_rng(0)
points = rng.normal(size=(24, 3))
labels = np.sign(points[:, 0] + points[:, 1] * points[:, 2])
csv = workdir.parent / "my.csv"
lines = [",".join(map(str, (*point, label))) for point, label in zip(points, labels, strict=True)]
csv.write_text("\n".join(["a,b,c,label", *lines]) + "\n")
flags = {name: default for name, (default, _) in VERBS["advise"].flags.items()}
advise(None, Path(), {**flags, "csv": str(csv), "lam": "0.1"})
