"""Diffusion in continuous and discrete state spaces: schedules, losses, samplers, jump processes.

Pure functions of (parameters, key, arrays). No network and no training loop lives here: networks
are in `rflib.nn`, training in `rflib.train`.
"""
