"""Kim and Yang (ICML 2024): what a Jacobian penalty does to a wide network, without training it.

    python -m experiments.jacobian_ntk --config configs/jacobian_ntk.py:tiny
    RFLIB_DATA=... python -m experiments.jacobian_ntk
    python -m experiments.jacobian_ntk --config.data.path=my.csv --config.data.label=y
    python -m experiments.jacobian_ntk advise my.csv --label y

Six studies, each a variant of its own: kernel_init (finite kernels against their limits, by width),
constancy (the kernel of a network while it is trained), dynamics (trained networks against the
solution of the limit), spectrum (smallest eigenvalues by depth, in float64, float32 and by Monte
Carlo), features (accuracy and robustness of eigen-features) and regression (accuracy against
stopping time). Rows are the 244 days of the Algerian forest fires and points of a net on S^3.

tiny: all six at the smallest sizes that still show something; under a minute on 2 CPU cores.
default: all six; networks up to width 2048, matrices up to 2928 rows; under 25 minutes on 2 cores.
paper: widths to 8192 and all rows; made for an accelerator.
"""

from collections.abc import Callable

from ml_collections import ConfigDict

STUDIES = ("kernel_init", "constancy", "dynamics", "spectrum", "features", "regression")
VARIANTS = {
    "tiny": "all six studies at the smallest sizes; under a minute on 2 cores",
    "default": "all six studies, widths to 2048, 244 days; under 25 minutes on 2 cores",
    "paper": "all six studies, widths to 8192, ten splits; an accelerator",
    "kernel_init": "finite kernels against their limits by width; 2 minutes on 2 cores",
    "constancy": "the kernel of a network while it is trained; 4 minutes on 2 cores",
    "dynamics": "trained networks against the limit's trajectory; 4 minutes on 2 cores",
    "spectrum": "smallest eigenvalues by depth; 6 minutes on 2 cores",
    "features": "accuracy and robustness of eigen-features; 4 minutes on 2 cores",
    "regression": "accuracy against stopping time and penalty; 2 minutes on 2 cores",
}


def get_config(variant: str = "default") -> ConfigDict:
    """The config of one of VARIANTS."""
    c = ConfigDict()
    c.seed = 0  # root of all randomness, >= 0
    c.exp = STUDIES  # which of the studies are run, in this order
    c.steps = 512  # gradient-descent steps of a trained network, all rows in each

    c.data = ConfigDict()
    c.data.name = "algerian"  # | digits-3-8 | digits-parity | breast_cancer | diabetes | generated
    c.data.path = ""  # a CSV file of your own, or the file or directory of the Algerian set
    c.data.label = ""  # of your own file: the column of labels; "": the last one
    c.data.positive = ""  # of your own file: the cell that stands for +1; "": labels are numbers
    c.data.columns = ()  # of your own file: the columns of inputs; (): all but the label
    c.data.region = False  # Algerian: the region (0, 1) instead of the day of the year
    c.data.missing = "generate"  # | fail: what to do without the Algerian file
    c.data.standardise = "all"  # | train: the rows whose mean and deviation are used
    c.data.unit = True  # scale rows to unit norm, as the theory has them
    c.data.split = 0  # seed of the order of rows, of which the first ones are for training

    c.model = ConfigDict()
    c.model.activation = "gelu"  # gelu | erf | sin | ...; of the finite networks
    c.model.depth = 2  # hidden layers of trained networks, >= 1
    c.model.kappa = 0.1  # output multiplier of trained networks, > 0

    c.optim = ConfigDict()
    c.optim.lr = 1.0  # step of gradient descent, > 0
    c.optim.lam = 0.01  # coefficient of the Jacobian penalty, >= 0
    c.optim.reduction = "mean"  # | sum: of the loss over rows
    c.optim.vectorise = 512  # widest networks whose repeats are trained all at once

    c.mesh = ConfigDict()
    c.mesh.data = -1  # devices over which vectorised repeats are spread; -1: all that are left
    c.mesh.model = 1  # devices over which the units of wider networks are spread

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 128  # steps; 0: only at the end
    c.checkpoint.keep = 1  # newest ones

    c.log = ConfigDict()
    c.log.every = 32  # steps

    c.kernel_init = ConfigDict()
    c.kernel_init.points = 64  # of the net on S^3
    c.kernel_init.widths = (64, 128, 256, 512, 1024, 2048)  # hidden units, ascending
    c.kernel_init.depths = (1, 2, 3)  # hidden layers
    c.kernel_init.repeats = 10  # networks a width and depth
    c.kernel_init.resamples = 10_000  # of the bootstrap
    c.kernel_init.check_points = 6  # rows of the check against automatic differentiation
    c.kernel_init.draw_widths = (16, 64, 256)  # of the distribution of (f, df/dx) over networks
    c.kernel_init.draws = 4000  # networks a width of that distribution

    c.constancy = ConfigDict()
    c.constancy.rows = 128  # training rows
    c.constancy.widths = (64, 128, 256, 512, 1024)  # hidden units, ascending
    c.constancy.repeats = 10  # networks a width

    c.dynamics = ConfigDict()
    c.dynamics.rows = 64  # training rows
    c.dynamics.test_rows = 84  # rows behind them at which trajectories are compared as well
    c.dynamics.widths = (64, 128, 256, 512, 1024, 2048)  # hidden units, ascending
    c.dynamics.repeats = 5  # networks a width
    c.dynamics.linearised = 1024  # widest networks whose own linearisation is solved too; 0: none

    c.spectrum = ConfigDict()
    c.spectrum.rows = 244  # rows, in the order of data.split
    c.spectrum.depths = (1, 2, 3, 4, 6, 8, 11, 14)  # hidden layers, ascending
    c.spectrum.activations = ("gelu", "erf")  # of the limit kernels
    c.spectrum.single = True  # the float32 curve as well
    c.spectrum.sphere = 256  # points of the net on S^3 for the table of references; 0: left out
    c.spectrum.sampled_rows = 16  # rows of the Monte-Carlo curves; 0: left out
    c.spectrum.sampled_depths = (1, 2, 3, 6)  # their hidden layers
    c.spectrum.joint = 50_000  # Gaussian draws a layer, all rows together
    c.spectrum.pairs = 10_000  # Gaussian draws a layer and pair of rows
    c.spectrum.sampled_repeats = 3  # independent Monte-Carlo matrices

    c.features = ConfigDict()
    c.features.rows = 160  # training rows; all others are test rows
    c.features.nets = (("gelu", 11), ("erf", 6))  # activation and depth
    c.features.lams = (0.0, 1e-3, 1e-2, 1e-1, 1.0)  # penalties; 0 is the plain NTK
    c.features.splits = (0,)  # seeds of the order of rows
    c.features.eps = 0.05  # Euclidean radius of perturbations, >= 0
    c.features.attacked = 64  # features of largest eigenvalue that are attacked; 0: none
    c.features.attack_lam = 0.01  # the one penalty of `lams` whose features are attacked
    c.features.attack_steps = 10  # of projected gradient descent
    c.features.tol = 1e-10  # smallest kept eigenvalue, as a share of the largest

    c.regression = ConfigDict()
    c.regression.rows = 160  # training rows; all others are test rows
    c.regression.activation = "erf"  # of the limit kernel
    c.regression.depth = 3  # hidden layers
    c.regression.lams = (0.0, 1e-2, 1.0)  # penalties; 0 is the plain NTK
    c.regression.times = (1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 1e5, 1e6)  # kappa = 1, mean loss
    c.regression.eps = (0.05, 0.1)  # Euclidean radii of perturbations
    c.regression.ridges = (1e-6, 1e-4, 1e-2)  # ridges rho > 0 of the selection by evidence

    c.expect = ConfigDict()
    c.expect.slope = (-0.65, -0.35)  # of log error on log width
    c.expect.agree = 0.95  # share of test rows above which network and kernel agree in sign enough
    c.expect.exact = 1e-10  # largest relative difference that counts as none
    c.expect.noise = 1.5  # largest error of a covariance over its sampling error (ours)
    c.expect.weak = 0.3  # rank correlation below which there is little link (ours)
    c.expect.positive = (("gelu", 11), ("erf", 6))  # first depth of positive definite JNTK: paper's
    c.expect.resolution = 3.5e-3  # smallest eigenvalue that the paper's depths correspond to (ours)
    c.expect.depths = (1, 2, 3, 4, 6, 8, 11, 14)  # hidden layers of the references below
    c.expect.sphere = _sphere()
    return _VARIANTS[variant](c)


def _sphere() -> ConfigDict:
    """Smallest JNTK eigenvalues on 256 points of a net on S^3, by depth: ours, in float64."""
    s = ConfigDict()
    s.gelu = (1.0e-12, 2.49e-5, 2.12e-4, 1.09e-3, 1.19e-2, 6.37e-2, 0.37, 1.265)  # > 0
    s.erf = (1.2e-11, 5.3e-10, 7.6e-9, 6.1e-8, 1.52e-6, 1.89e-5, 4.27e-4, 6.55e-3)  # > 0
    return s


def _default(c: ConfigDict) -> ConfigDict:
    return c


def _tiny(c: ConfigDict) -> ConfigDict:
    c.steps = 64
    c.checkpoint.every = 0
    c.kernel_init.points = 16
    c.kernel_init.widths = (64, 128, 256)
    c.kernel_init.depths = (1, 2)
    c.kernel_init.repeats = 3
    c.kernel_init.resamples = 1000
    c.kernel_init.check_points = 3
    c.kernel_init.draw_widths = (16, 64)
    c.kernel_init.draws = 1000
    c.constancy.rows = 32
    c.constancy.widths = (64, 256)
    c.constancy.repeats = 3
    c.dynamics.rows = 16
    c.dynamics.test_rows = 16
    c.dynamics.widths = (64, 256)
    c.dynamics.repeats = 3
    c.dynamics.linearised = 0
    c.spectrum.rows = 64
    c.spectrum.depths = (1, 2, 3, 6)
    c.spectrum.single = False
    c.spectrum.sphere = 0
    c.spectrum.sampled_rows = 0
    c.features.rows = 48
    c.features.nets = (("erf", 6),)
    c.features.lams = (0.0, 1e-2)
    c.features.attacked = 4
    c.features.attack_steps = 3
    c.regression.rows = 64
    c.regression.times = (10, 100, 1e3, 1e4, 1e6)
    return c


def _paper(c: ConfigDict) -> ConfigDict:
    wide = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    c.kernel_init.points = 256
    c.kernel_init.widths = wide
    c.constancy.rows = 244
    c.constancy.widths = wide
    c.dynamics.widths = wide
    c.spectrum.depths = tuple(range(1, 15))
    c.spectrum.pairs = 1_000_000
    c.spectrum.joint = 1_000_000
    c.features.splits = tuple(range(10))
    return c


def _only(name: str) -> Callable[[ConfigDict], ConfigDict]:
    def change(c: ConfigDict) -> ConfigDict:
        c.exp = (name,)
        return c

    return change


_VARIANTS = {
    "tiny": _tiny,
    "default": _default,
    "paper": _paper,
    **{name: _only(name) for name in STUDIES},
}
