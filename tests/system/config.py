"""The config of `tests.system.job`; every key is read there."""

from ml_collections import config_dict


def get_config(variant: str = "default") -> config_dict.ConfigDict:
    """The variant "stopping" ends early."""
    config = config_dict.ConfigDict()
    config.seed = 3
    config.steps = 200
    config.scan = 1  # updates a call
    config.width = 16  # of the hidden layer
    config.rate = 1e-2  # of Adam
    config.log = 10  # steps between two lines
    config.eval = 20  # steps between two evals; 0: none
    config.save = 20  # steps between two checkpoints
    config.patience = 0  # evals without a new best before the run stops; 0: never
    config.hang = 300.0  # seconds without a step that are a hang
    if variant == "stopping":
        config.steps = 1000
        config.rate = 5e-2
        config.patience = 3
    return config
