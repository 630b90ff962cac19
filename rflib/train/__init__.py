"""The shared training harness: Task, Step, Study, fit, study, mesh and rules, checkpoints."""
