"""Errors that end a run, each with the exit status the command line gives it.

Status 0 done, 1 failed, 2 the user's to mend, 3 not finite, 4 stopped but resumable, 5 no valid
checkpoint, 6 hung (which leaves through `os._exit`, so it has no exception here).
"""


class RflibError(Exception):
    """Base of every error that has an exit status of its own."""

    status = 1


class UserError(RflibError, ValueError):
    """Something the user can mend: a config value, a flag, a file, a checkpoint of other shapes."""

    status = 2


class NotFinite(RflibError):
    """A metric, gradient or state leaf became NaN or infinite."""

    status = 3


class Stopped(RflibError):
    """SIGTERM arrived; everything needed to resume is on disk."""

    status = 4


class NoCheckpoint(RflibError):
    """There are checkpoints, and none of them verifies."""

    status = 5


class Retraced(RflibError):
    """A compiled function was called with arguments of another signature."""


class DryRun(RflibError):
    """Not a failure: `--dry` has shown what it shows, and the run ends here."""

    status = 0
