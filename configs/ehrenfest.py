"""The Ehrenfest process (Winkler et al., ICML 2024): diffusion on integers, with scores or ratios.

    python -m experiments.ehrenfest --config configs/ehrenfest.py:tiny
    python -m experiments.ehrenfest
    python -m experiments.ehrenfest --config.data.path=images.npz --workdir runs/mine
    python -m experiments.ehrenfest sample --workdir runs/mine --output samples

tiny: a mixture on the line, a letter on a 17 x 17 grid, and digits, all too short to be good.
default, digits: 8 x 8 digits with 17 grey values: four losses of the jump process, D3PM and DDPM.
mixture1d: the paper's first figure with an analytic score; no training.
letterE: six losses on a law over a 33 x 33 grid, judged by the exact law that they lead to.
mnist_wide: a plain DDPM network drives the jump process without retraining.
paper: CIFAR-10 with the authors' sizes, for an accelerator; bring the images as data.path.

Sizes, steps and networks of everything but `paper` are ours: the paper's images do not fit a CPU.
"""

from ml_collections import ConfigDict

VARIANTS = {
    "tiny": "a mixture, a letter and digits, briefly; 60 s on 2 cores",
    "default": "8 x 8 digits, four losses against D3PM and DDPM; 20 min on 2 cores",
    "digits": "the default",
    "digits_full": "digits with a U-Net, three seeds, 5000 samples; a day on 2 cores",
    "mixture1d": "a mixture on the line with its analytic score; 1 min on 2 cores",
    "letterE": "six losses on a letter over 33 x 33 states, three seeds; 15 min on 2 cores",
    "letterE_full": "15,000 steps of letterE; an hour on 2 cores",
    "mnist_wide": "14 x 14 digits of 256 grey values, a DDPM transferred; 20 min on 2 cores",
    "paper": "CIFAR-10, from scratch and a DDPM transferred; days on an accelerator",
    "paper_cifar": "the same as paper",
}
PARTS = ("mixture", "letter", "images", "transfer")


def get_config(variant: str = "default") -> ConfigDict:
    """The config of one of VARIANTS."""
    c = ConfigDict()
    c.seed = 0  # root of the first training's randomness, >= 0
    c.more_seeds = ()  # further trainings of every model
    c.steps = 3000  # updates of a model of images
    c.batch = 128  # images a step
    c.parts = ("images",)  # | mixture | letter | images | transfer

    c.data = ConfigDict()
    c.data.name = "digits"  # | mnist | mnist_pooled | cifar
    c.data.path = ""  # own images: .npz with `images` (and `labels`) or a folder of PNG files
    c.data.levels = 0  # V, grey values of own images; 0: found in them
    c.data.held_out = 0.1  # share of own images for testing, [0, 1)
    c.data.embedding = "small"  # | wide | wide257 | expanded: how values become states

    c.process = ConfigDict()
    c.process.schedule = "song"  # | cosine | cosine_ddpm: of letters and images
    c.process.bmin = 0.1  # of song
    c.process.bmax = 20.0  # of song
    c.process.t_min = 0.01  # where sampling stops, > 0
    c.process.t_max = 0.99  # where it starts, <= 1

    c.mixture = ConfigDict()
    c.mixture.sizes = (25, 100, 400)  # S, particles
    c.mixture.t_max = 2.0  # with λ = 1
    c.mixture.shown = 100  # S of the path plot
    c.mixture.paths = 40  # paths drawn
    c.mixture.samples = 20_000  # of the histograms
    c.mixture.steps = 400  # of their samplers

    c.letter = ConfigDict()
    c.letter.size = 32  # S
    c.letter.losses = ("ou", "ratio", "gauss", "taylor1", "taylor2", "ce")  # what is trained
    c.letter.steps = 5000  # updates of a network
    c.letter.batch = 512  # points a step
    c.letter.width = 256  # units of each of three layers
    c.letter.ema = 0.995  # decay of the averaged weights
    c.letter.every = 1000  # steps between two exact laws; 0: at the end only
    c.letter.grid = 100  # times at which the rates are tabulated
    c.letter.samples = 200_000  # tau-leaping samples of the first seed
    c.letter.leaps = (100, 500)  # their numbers of steps

    c.model = ConfigDict()
    c.model.names = ("ou", "taylor2", "ratio", "ce", "d3pm", "ddpm")  # also taylor1, gauss, tauldr
    c.model.net = "residual"  # | unet
    c.model.width = 512  # of the residual network
    c.model.blocks = 4  # of the residual network
    c.model.base = 32  # channels of the U-Net
    c.model.mult = (1, 2)  # channels by level
    c.model.res_blocks = 2  # a level of the U-Net
    c.model.attention = (1,)  # levels with attention
    c.model.dropout = 0.0  # of the U-Net, [0, 1)
    c.model.d3pm_steps = 200  # T of D3PM

    c.loss = ConfigDict()
    c.loss.head = "ratio"  # | ratio_lin: output of the ratio losses, exp or 1 + delta out
    c.loss.normalise = "delta"  # | none: residuals of the ratio losses divided by delta
    c.loss.target_clip = 3.0  # of gauss, > 0
    c.loss.resid_clip = 10.0  # of gauss, > 0

    c.optim = ConfigDict()
    c.optim.lr = 1e-3  # Adam, > 0
    c.optim.final = 1e-5  # at the end of the cosine
    c.optim.warmup = 200  # steps up to lr, linear
    c.optim.clip = 1.0  # norm of the gradient
    c.optim.ema = 0.999  # decay of the averaged weights, [0, 1)
    c.optim.scan = 50  # updates a compiled call; 1 for convolutions on a CPU

    c.sampler = ConfigDict()
    c.sampler.step = "tau_leap"  # | euler | midpoint
    c.sampler.steps = 200  # network evaluations, correctors aside
    c.sampler.init = "binomial"  # | gaussian, for S above 4096
    c.sampler.rate_at = "shift"  # | here, as the authors do
    c.sampler.floor = 0.0  # least rate, >= 0
    c.sampler.final_denoise = True  # the last step gives the network's clean image
    c.sampler.ablation = (20, 50, 1000)  # further numbers of steps
    c.sampler.ablated = ("ou", "ce")  # of these models
    c.sampler.correctors = (2, 10)  # leaps after each step near the end, of the posterior model
    c.sampler.corrector_schedule = "constant"  # | decreasing | increasing | nonlinear
    c.sampler.corrector_start = 0.1  # time below which it is active
    c.sampler.corrector_mult = 1.5  # length of its leap in steps
    c.sampler.batch = 500  # images at once

    c.transfer = ConfigDict()
    c.transfer.table = 1000  # T of the discrete-time DDPM
    c.transfer.first = 1e-4  # β of its first step
    c.transfer.last = 0.02  # β of its last step
    c.transfer.steps = (100, 250, 1000)  # of the three samplers that it drives
    c.transfer.weights = ""  # .npz of a converted network instead of training one

    c.features = ConfigDict()
    c.features.steps = 600  # updates of the classifier whose features measure images
    c.features.batch = 128  # images a step
    c.features.accuracy = 0.96  # on held-out images, below which its numbers do not count

    c.eval = ConfigDict()
    c.eval.samples = 1000  # images a model
    c.eval.shown = 64  # images in a grid

    c.mesh = ConfigDict()
    c.mesh.data = -1  # devices over which the rows of a batch are spread; -1: all

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 1000  # steps; 0: at the end only
    c.checkpoint.keep = 1  # newest ones

    c.log = ConfigDict()
    c.log.every = 100  # steps, a multiple of optim.scan

    c.expect = ConfigDict()
    c.expect.slope = (-1.15, -0.85)  # of log TV against log S
    c.expect.exact = 1e-3  # TV at which a law counts as reached
    c.expect.transfer = 1.1  # distance of transferred jumps over the diffusion's that is no worse
    c.expect.seeds = 3  # trainings below which a comparison of losses stays undecided
    return _VARIANTS[variant](c)


def _digits(c: ConfigDict) -> ConfigDict:
    return c


def _tiny(c: ConfigDict) -> ConfigDict:
    c.parts = ("mixture", "letter", "images")
    c.steps = 100
    c.mixture.sizes = (25, 100)
    c.mixture.samples = 2000
    c.mixture.steps = 100
    c.letter.size = 8
    c.letter.steps = 200
    c.letter.every = 100
    c.letter.batch = 128
    c.letter.width = 64
    c.letter.ema = 0.95
    c.letter.grid = 40
    c.letter.samples = 5000
    c.letter.leaps = (100,)
    c.letter.losses = ("ou", "ratio", "ce")
    c.model.names = ("ou", "ratio", "ce", "ddpm")
    c.model.width = 128
    c.model.blocks = 2
    c.optim.warmup = 20
    c.optim.ema = 0.9
    c.sampler.steps = 50
    c.sampler.ablation = ()
    c.sampler.correctors = ()
    c.features.steps = 100
    c.eval.samples = 200
    c.sampler.batch = 200
    return c


def _digits_full(c: ConfigDict) -> ConfigDict:
    c.more_seeds = (1, 2)
    c.steps = 8000
    c.model.names = ("ou", "taylor2", "taylor1", "ratio", "gauss", "ce", "tauldr", "d3pm", "ddpm")
    c.model.net = "unet"
    c.optim.scan = 1
    c.eval.samples = 5000
    return c


def _mixture(c: ConfigDict) -> ConfigDict:
    c.parts = ("mixture",)
    return c


def _letter(c: ConfigDict) -> ConfigDict:
    c.parts = ("letter",)
    c.more_seeds = (1, 2)
    return c


def _letter_full(c: ConfigDict) -> ConfigDict:
    c = _letter(c)
    c.letter.steps = 15_000
    c.letter.batch = 1024
    return c


def _wide(c: ConfigDict) -> ConfigDict:
    c.parts = ("transfer",)
    c.data.name = "mnist_pooled"
    c.data.embedding = "wide"
    c.sampler.init = "gaussian"
    c.sampler.batch = 250
    c.eval.samples = 500
    c.features.steps = 1000
    c.steps = 6000
    return c


def _paper(c: ConfigDict) -> ConfigDict:
    c = _wide(c)
    c.parts = ("images", "transfer")
    c.data.name = "cifar"
    c.steps = 500_000
    c.batch = 256
    c.model.names = ("ou", "taylor2", "gauss", "ddpm")
    c.model.net = "unet"
    c.model.base = 128
    c.model.mult = (1, 2, 2, 2)
    c.model.dropout = 0.1
    c.optim.lr = c.optim.final = 2e-4
    c.optim.warmup = 5000
    c.optim.ema = 0.9999
    c.optim.scan = 1
    c.sampler.steps = 1000
    c.sampler.ablation = (2000,)
    c.sampler.ablated = ("ou",)
    c.eval.samples = 50_000
    return c


_VARIANTS = {
    "tiny": _tiny,
    "default": _digits,
    "digits": _digits,
    "digits_full": _digits_full,
    "mixture1d": _mixture,
    "letterE": _letter,
    "letterE_full": _letter_full,
    "mnist_wide": _wide,
    "paper": _paper,
    "paper_cifar": _paper,
}
