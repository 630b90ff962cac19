"""rflib: machine-learning systems of ICML 2024 as pure JAX functions, with one training harness."""

__version__ = "0.1.0"
