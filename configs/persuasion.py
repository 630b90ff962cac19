"""Equilibria of games with several senders (Hossain et al., ICML 2024), learned and certified.

    python -m experiments.persuasion --config configs/persuasion.py:tiny
    python -m experiments.persuasion
    python -m experiments.persuasion --config.game.path=my-game.json --workdir runs/mine
    python -m experiments.persuasion certify game.npz policies.npz

tiny: common interest and two random games, small networks; proves that everything runs.
default: six sizes of games, five of each, three seeds of every network; two CPU cores.
paper: larger games, for an accelerator; the paper's own sizes are not known to us.
surfaces, approx, equilibria, ground_truth, hardness, optimiser: one part of the default each.

Strata of profiles: Dirichlet(.1), (.3), (1) and (3) rows, deterministic rows, and profiles next to
a change of the receiver's action. The paper's layer sizes, thresholds and tables are not known to
us: every number here is ours.
"""

from ml_collections import ConfigDict

VARIANTS = {
    "tiny": "common interest and two random games, small networks; 60 s on 2 cores",
    "default": "30 random games of six sizes, three seeds, all parts; half an hour on 2 cores",
    "paper": "more senders, states and signals; hours on an accelerator",
    "surfaces": "a slice of one utility and of the networks that learned it; 1 min on 2 cores",
    "approx": "how well three networks approximate the utilities of 30 games; 12 min on 2 cores",
    "equilibria": "local equilibria of 30 games against full revelation; 25 min on 2 cores",
    "ground_truth": "common to opposed interests, where the optimum is known; 4 min on 2 cores",
    "hardness": "time of an exact best response against the others' signals; 2 min on 2 cores",
    "optimiser": "extra-gradient against ascent and optimism; 4 min on 2 cores",
}
PARTS = ("surfaces", "approx", "equilibria", "ground_truth", "hardness", "optimiser")
SIZES = ((2, 2, 2, 2), (2, 2, 3, 3), (2, 3, 3, 3), (3, 2, 2, 2), (3, 3, 3, 2), (4, 2, 2, 2))


def get_config(variant: str = "default") -> ConfigDict:
    """The config of one of VARIANTS."""
    c = ConfigDict()
    c.seed = 0  # root of the first network's randomness, >= 0
    c.more_seeds = (1, 2)  # further networks for every game, trained at once
    c.steps = 2000  # updates of a network
    c.batch = 256  # profiles a step
    c.parts = PARTS  # what is run
    c.tie = "sum"  # rule for ties: index | sum | sender:j | adversarial:j | uniform

    c.game = ConfigDict()
    c.game.path = ""  # .npz or .json of your own game; "": generated ones
    c.game.generator = "uniform"  # rflib/methods/persuasion/data.py lists all
    c.game.sizes = SIZES  # (senders, states, actions, signals of each sender), a class each
    c.game.count = 5  # games a class
    c.game.seed = 0  # of the first game of a class, >= 0
    c.game.reject_degenerate = True  # draw again where nothing depends on what is revealed
    c.game.thetas = (0.0, 0.25, 0.5, 0.75, 1.0)  # from opposed to common interest, [0, 1]
    c.game.with_truth = False  # add the game of common interest to the first class

    c.data = ConfigDict()
    c.data.profiles = 20_000  # profiles a game
    c.data.validation = 0.1  # share of them that is not trained on, [0, 1)
    c.data.test = 5_000  # fresh profiles a game
    c.data.mixture = (0.2, 0.2, 0.2, 0.2, 0.1, 0.1)  # shares of the six strata, sum 1
    c.data.drop_last = False  # leave the last, implied, probability of every row out of the input

    c.model = ConfigDict()
    c.model.kinds = ("dnl", "relu", "delu", "relu-matched", "delu-matched")  # what is trained
    c.model.hidden = 64  # H, units of the first layer
    c.model.inner = 64  # Z, units of the second layer or of the hypernetwork
    c.model.features = 16  # m, features of a piece
    c.model.piece = "tanh"  # | multilinear | linear; of dnl
    c.model.ste = False  # gradient through the activation pattern, in training only
    c.model.ste_temperature = 0.1  # > 0
    c.model.per_sender = False  # a network a sender instead of an output a sender

    c.optim = ConfigDict()
    c.optim.lr = 3e-3  # Adam, > 0; falls to 0 along a cosine
    c.optim.scan = 100  # updates a compiled call; divides steps

    c.search = ConfigDict()
    c.search.starts = 300  # profiles with Dirichlet(1) rows
    c.search.steps = 500  # of the game's dynamics
    c.search.eta = 0.1  # step size, > 0
    c.search.param = "softmax"  # | projection | entropy
    c.search.kinds = ("dnl", "relu-matched", "delu-matched")  # networks searched
    c.search.optimisers = ("extragradient", "optimistic", "simultaneous")  # of the first of them
    c.search.baselines = ("annealed", "zeroth", "iterated", "random")  # without a network
    c.search.rounds = 12  # of iterated exact best response
    c.search.iterated_starts = 16  # of it, as it is exact and slow

    c.verify = ConfigDict()
    c.verify.deviations = 1000  # K, sampled deviations a sender
    c.verify.deltas = (0.01, 0.05, 0.2)  # radii of the neighbourhood, maximum norm
    c.verify.ratios = (0.01, 0.05, 0.1, 0.5)  # epsilon / delta, in units of a sender's span
    c.verify.delta = 0.05  # radius that decides, one of deltas
    c.verify.ratio = 0.1  # epsilon / delta that decides, one of ratios
    c.verify.shortlist = 20  # profiles a network that are verified by sampling
    c.verify.top = 1  # profiles a game and method that get exact certificates
    c.verify.exact_cap = 5000  # most linear programs of a local certificate
    c.verify.global_cap = 5000  # most action profiles of a global certificate
    c.verify.reach_cap = 0  # most programs for a global gain with fewer signals than states
    c.verify.null = 10  # random profiles a game, as a control

    c.snap = ConfigDict()
    c.snap.delta = 0.1  # radius of a move
    c.snap.starts = 300  # starts that are snapped in the game of common interest, the first ones
    c.snap.rounds = 4  # most rounds through the senders
    c.snap.kappa = 1e-5  # margin of the receiver's obedience, in units of max u - min u

    c.pareto = ConfigDict()
    c.pareto.tau = 1e-6  # loss that does not count, in units of a sender's span
    c.pareto.tau_prime = 1e-4  # gain that counts, in units of a sender's span

    c.refine = ConfigDict()
    c.refine.rounds = 2  # of new samples around what was found; ground_truth's aligned game only
    c.refine.delta = 0.1  # radius of the new samples
    c.refine.profiles = 5_000  # new samples a round

    c.hardness = ConfigDict()
    c.hardness.games = ((2, 2), (3, 2), (3, 3), (2, 3))  # (states, actions)
    c.hardness.signals = 10  # most signals of the other sender
    c.hardness.repeats = 3  # games a point
    c.hardness.budget = 3_000  # most action profiles of the unpruned program

    c.mesh = ConfigDict()
    c.mesh.data = -1  # devices over which the rows of a batch are spread; -1: all that are left

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 0  # steps; 0: at the end only
    c.checkpoint.keep = 1  # newest ones

    c.log = ConfigDict()
    c.log.every = 500  # steps, a multiple of optim.scan

    c.evals = ConfigDict()
    c.evals.every = 0  # steps between validations; 0: at the end only
    c.evals.patience = 0  # validations without a better mean before the end; 0: no early stop
    c.evals.segments = 200  # segments on which jumps are located

    c.expect = ConfigDict()
    c.expect.optimum = 0.57  # utility a sender that counts as found in the game of common interest
    c.expect.share = 1 / 3  # share of starts that must find it
    c.expect.slope = 0.5  # slope of log time against T in units of log A that supports hardness
    c.expect.majority = 0.5  # share of games that counts as most of them
    c.expect.bootstrap = 10_000  # resamples of the games
    return _VARIANTS[variant](c)


def _tiny(c: ConfigDict) -> ConfigDict:
    c.more_seeds = ()
    c.steps = 1000
    c.game.sizes = SIZES[:1]
    c.game.count = 2
    c.game.with_truth = True
    c.game.thetas = (0.0, 1.0)
    c.data.profiles = 5_000
    c.data.test = 2_000
    c.model.kinds = ("dnl", "relu", "delu")
    c.model.hidden = c.model.inner = 32
    c.model.features = 8
    c.search.kinds = ("dnl", "relu", "delu")
    c.search.starts = 64
    c.search.steps = 300
    c.search.iterated_starts = 4
    c.verify.deviations = 400
    c.verify.shortlist = 5
    c.verify.null = 5
    c.snap.starts = 12
    c.refine.rounds = 0
    c.hardness.games = ((2, 2),)
    c.hardness.signals = 7
    c.hardness.repeats = 1
    return c


def _default(c: ConfigDict) -> ConfigDict:
    return c


def _paper(c: ConfigDict) -> ConfigDict:
    c.game.sizes = ((2, 4, 4, 4), (3, 3, 3, 3), (4, 3, 3, 3), (4, 4, 4, 4))
    c.game.count = 20
    c.data.profiles = 100_000
    c.model.hidden = c.model.inner = 128
    c.model.features = 32
    c.steps = 20_000
    return c


def _only(part: str):
    def change(c: ConfigDict) -> ConfigDict:
        c.parts = (part,)
        if part in ("surfaces", "optimiser"):
            c.game.sizes = SIZES[:1]
        return c

    return change


_VARIANTS = {
    "tiny": _tiny,
    "default": _default,
    "paper": _paper,
    **{part: _only(part) for part in PARTS},
}
