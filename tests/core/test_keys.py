"""Keys by name: the same in every process, different for different names, free of call order."""

import itertools
import subprocess
import sys

import jax
import numpy as np

from rflib.core.keys import named


def bits(key):
    return tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())


def test_names_give_the_same_key_in_another_process_with_another_hash_seed():
    script = (
        "import jax; from rflib.core.keys import named;"
        "print(jax.random.key_data(named(jax.random.key(5), 'eval', 'test', 3)).tolist())"
    )
    environment = {"PYTHONHASHSEED": "123", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    here = jax.random.key_data(named(jax.random.key(5), "eval", "test", 3)).tolist()
    assert done.stdout.strip() == str(here)


def test_different_names_orders_and_cuts_give_different_keys():
    root = jax.random.key(0)
    words = ["init", "Init", "step", "eval", "", "a", "b", "ab", "ba", 0, 1, 2**31]
    paths = [(), *((w,) for w in words), *itertools.permutations(words, 2)]
    assert len({bits(named(root, *path)) for path in paths}) == len(paths)


def test_names_fold_one_after_the_other():
    root = jax.random.key(0)
    assert bits(named(named(root, "a"), "b", 3)) == bits(named(root, "a", "b", 3))
    assert bits(named(root)) == bits(root)
    assert bits(named(root, 7)) == bits(jax.random.fold_in(root, 7))


def test_it_works_within_jit_and_over_a_batch_of_keys():
    seeds = jax.vmap(jax.random.key)(np.arange(3))
    many = jax.jit(jax.vmap(lambda key: named(key, "batch")))(seeds)
    assert [bits(key) for key in many] == [bits(named(key, "batch")) for key in seeds]
