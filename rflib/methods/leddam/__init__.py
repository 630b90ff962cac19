"""Leddam (ICML 2024): forecasting with a learnable decomposition and dual attention."""
