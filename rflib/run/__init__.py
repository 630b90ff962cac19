"""One run of an experiment: directory, metrics, progress, figures, claims, report, command line.

Nothing here imports jax at module level: a mistake in a config or a flag is answered at once.
"""

from rflib.run.claims import VERDICTS as VERDICTS
from rflib.run.run import Run as Run
