"""flax.linen modules and functions that two or more methods use."""
