"""One run of an experiment: directory, metrics, progress, figures, claims, report, command line.

Nothing here imports jax at module level: a mistake in a config or a flag is answered at once.
"""

from rflib.run.claims import VERDICTS as VERDICTS
from rflib.run.cli import cli as cli
from rflib.run.config import load_config as load_config
from rflib.run.run import Run as Run
from rflib.run.verbs import REQUIRED as REQUIRED
from rflib.run.verbs import Verb as Verb
