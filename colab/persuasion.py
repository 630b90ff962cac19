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
# # Persuasion: what should competing platforms tell a driver?
#
# Several informed senders publish information to one decision maker, who then does what is best
# for itself (Hossain et al., ICML 2024). Here two ride-hailing platforms know where demand is hot
# and a driver chooses where to go. Telling everything is always an equilibrium. Is there a stable
# outcome that is better for both platforms?
#
# Start this notebook inside a clone of rflib, in `colab/`. It takes under a minute.

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

# %% [markdown]
# The game is data: a prior over three states (quiet everywhere, region 1 hot, region 2 hot), the
# driver's utility `u[state, action]` and the platforms' utilities `v[platform, state, action]`.
# Your own game is an `.npz` or `.json` file with these arrays.

# %%
import numpy as np

from rflib.methods.persuasion.data import GENERATORS
from rflib.methods.persuasion.game import full_revelation, no_information, spans
from rflib.methods.persuasion.mediated import dominance_possible, frontier

game = GENERATORS["ride_hailing"](0)
known, silent = full_revelation(game, "sum"), no_information(game, "sum")
print("prior             ", game.mu.round(3))
print(
    "tell everything   ", known.utilities.round(4), " driver earns", round(float(known.receiver), 4)
)
print(
    "tell nothing      ",
    silent.utilities.round(4),
    " driver earns",
    round(float(silent.receiver), 4),
)
bound = dominance_possible(game, "sum")
print(f"could both gain?   {bound.possible}: at most {bound.gain:.1%} of a platform's span each")

# %% [markdown]
# Search for equilibria. With games this small best responses are exact linear programs, so both
# platforms can simply answer each other in turns. (`python -m experiments.persuasion` learns the
# utilities with networks and follows their gradients instead, for games in which that is too
# much.)

# %%
from rflib.methods.persuasion.generators import random_profile
from rflib.methods.persuasion.iterated import iterated_best_response

rng = np.random.default_rng(0)
found = [
    iterated_best_response(game, random_profile(game, rng), rounds=8, tie="sum") for _ in range(8)
]
for each in found:
    gain = (each.utilities - known.utilities) / spans(game)
    print(
        each.utilities.round(4),
        "gain over telling everything",
        gain.round(3),
        "gap",
        f"{each.gap:.0e}",
    )

# %% [markdown]
# Certify the best one: what could either platform gain, near its policy and by any policy at all?
# The certificate is exact.

# %%
from rflib.methods.persuasion.certificate import certify

best = max(found, key=lambda each: each.utilities.sum() - 1e9 * (not each.settled))
certificate = certify(game, best.profile, tie="sum")
print("equilibrium:", certificate.equilibrium, "| kind:", certificate.kind)
print("largest gain of a platform by any deviation:", f"{certificate.gap:.1e}")
print(
    "smallest margin of the driver's decisions (how close to a cliff):", round(certificate.cliff, 6)
)
for j, policy in enumerate(best.profile):
    print(f"platform {j}, rows: states, columns: signals\n", np.asarray(policy).round(3))

# %%
from IPython.display import display
from matplotlib import pyplot

hull = frontier(game)
hull = hull[np.argsort(hull[:, 0])]
figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
axis.plot(*hull.T, color="0.6", label="what a mediator could reach")
axis.plot(*known.utilities, "x", color="0", markersize=10, label="tell everything")
axis.plot(*silent.utilities, "+", color="0", markersize=10, label="tell nothing")
points = np.array([each.utilities for each in found if each.settled])
axis.plot(*points.T, "o", color="0.3", fillstyle="none", label="exact equilibria")
axis.set_xlabel("utility of platform 0")
axis.set_ylabel("utility of platform 1")
above = (points > known.utilities + 1e-6).all(1).mean()
axis.set_title(f"{above:.0%} of the equilibria found are better for both than full revelation")
axis.legend()
display(figure)
pyplot.close(figure)

# %% [markdown]
# ## Your own game, without Python
#
#     python -m experiments.persuasion certify game.json policies.json
#
# prints the same certificate for your files in about two seconds, and
#
#     python -m experiments.persuasion --config.game.path=game.json --workdir runs/mine
#
# learns its utilities, searches and certifies what it finds.
