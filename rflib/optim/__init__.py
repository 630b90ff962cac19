"""Optimisers of games and of points on simplices: what optax lacks, in its style.

Every optimiser here is a `GameOptimiser`: `init(params)` and `step(params, state, grad_fn)`, where
`grad_fn(params)` is a vector field of the same structure. As in optax a step goes AGAINST it: a
player that minimises contributes its gradient, a player that maximises minus its gradient.
"""
