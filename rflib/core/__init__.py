"""The bottom room: trees, keys, readable checks and errors. Imports jax and numpy only."""
