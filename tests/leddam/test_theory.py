"""Closed forms of Leddam's size and work (ICML 2024) against the model itself."""

import jax
import pytest

from rflib.core import trees
from rflib.methods.leddam import theory
from rflib.methods.leddam.model import Leddam
from rflib.nn import variables

PRESETS = [  # series, horizon, D, layers, position table, trainable parameters
    ("ETTh1", 7, 96, 256, 1, "sincos", 1_129_206),
    ("ETTh1", 7, 720, 512, 1, "sincos", 4_995_542),
    ("ETTh2", 7, 96, 256, 1, "no", None),
    ("ETTm1", 7, 96, 512, 1, "sincos", None),
    ("ETTm2", 7, 336, 512, 1, "sincos", None),
    ("Weather", 21, 96, 256, 1, "sincos", 1_132_846),
    ("Electricity", 321, 96, 256, 3, "no", 3_237_606),
    ("Solar", 137, 96, 512, 3, "no", 12_760_390),
    ("Traffic", 862, 720, 256, 3, "no", 3_564_834),
]


@pytest.mark.parametrize(("name", "n", "s", "d", "layers", "pe", "exact"), PRESETS)
def test_parameter_count_is_the_closed_form_and_the_official_integer(
    name, n, s, d, layers, pe, exact
):
    module = Leddam(n, 96, s, d_model=d, n_layers=layers, pe_type=pe)
    shapes = jax.eval_shape(lambda key: variables.init(module, key, (1, 96, n)), jax.random.key(0))
    count = theory.parameter_count(n, 96, s, d_model=d, n_layers=layers, pe_type=pe)
    assert trees.size(shapes["params"]) == count
    if exact is not None:
        assert count == exact
    if pe == "no":
        assert trees.size(shapes["extra"]["frozen"]) == n * d


def test_training_flops_count_the_products_of_the_forward_pass_three_times():
    n, t, s, d = 7, 96, 96, 256
    embed, heads = n * t * d, 2 * n * d * s
    blocks = 2 * n * (4 * d * d + 2 * d * 2 * d) + 2 * n * n * d
    expected = 3 * 2 * (embed + heads + blocks)
    assert theory.training_flops(n, t, s, d_model=d, n_layers=1) == expected
