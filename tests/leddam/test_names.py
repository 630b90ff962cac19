"""Every name that a config may give is a forecaster that takes a step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.leddam as file
from experiments.forecasting import forecasters, models, quality, studies
from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.ablations import ABLATIONS
from rflib.run import load_config
from tests.leddam.forecasters import SMALL


def _step(name: str, **overrides: Any) -> tuple[Any, Any]:
    """(step, what it is called with) of a model by name, small."""
    config = load_config("leddam", overrides=SMALL | {"model.names": (name,)} | overrides)
    forecaster = forecasters.forecasters(config, 3, "ETTh1", 8)[name]
    series = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    task = models.task(
        forecaster.module, loss="mse", series=jnp.asarray(series), batch=lambda _: np.arange(4)
    )
    return models.step(config, forecaster, task, epoch=5), (task.data, np.arange(4))


def _once(name: str, **overrides: Any) -> tuple[Any, Any, Any]:
    """(state before, state after one step, metrics); compiled without optimisation."""
    step, batch = _step(name, **overrides)
    options = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}

    def both(key: jax.Array) -> Any:
        state = step.init(key)
        return state, *step.update(state, batch, key)

    key = jax.random.key(0, impl="unsafe_rbg")
    return jax.jit(both).lower(key).compile(compiler_options=options)(key)


def test_the_names_are_the_models_the_arms_and_three_splits_of_every_model() -> None:
    names = set(forecasters.TITLES)
    assert {"leddam", "dlinear-ld", "lstm+ld", "informer+mov", "scinet+raw"} <= names
    assert {f"leddam-{name}" for name in ABLATIONS if name != "full"} <= names
    assert len(names) == 10 + 9 + 3 + 1 + 3 * 10
    assert len(set(forecasters.TITLES.values())) == len(names)


STEPPED = [name for name in forecasters.TITLES if not name.endswith(("+raw", "+mov"))]


@pytest.mark.parametrize("name", [name for name in forecasters.TITLES if name not in STEPPED])
def test_every_wiring_is_built_with_the_size_of_its_data(name: str) -> None:
    """Their steps are that of the backbone and, but for what is frozen, that of +ld."""
    config = load_config("leddam", overrides=SMALL | {"model.names": (name,)})
    module: Any = forecasters.forecasters(config, 3, "ETTh1", 8)[name].module
    assert (module.n_series, module.seq_len, module.pred_len) == (3, 16, 8)
    assert (module.split, module.kernel_size) == (name[-3:], 3)


@pytest.mark.parametrize("name", STEPPED)
def test_every_model_takes_a_step_that_keeps_its_state(name: str) -> None:
    """Traced, not executed: shapes, types and structure of all that a step computes."""
    step, batch = _step(name)
    key = jax.random.key(0)
    state = jax.eval_shape(step.init, key)
    after, metrics = jax.eval_shape(step.update, state, batch, key)
    assert trees.signature(after) == trees.signature(state)
    assert metrics["loss"].shape == ()


def test_steps_of_arms_move_almost_all_parameters() -> None:
    """Executed for two: what the models compute has tests of its own."""
    for name in ("leddam-no_channel", "lstm+mov"):
        before, after, metrics = _once(name)
        assert np.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
        moved = jax.tree.map(
            lambda a, b: (np.asarray(a) != b).any(), before["params"], after["params"]
        )
        assert np.mean(jax.tree.leaves(moved)) > 0.9  # the biases of keys never get a gradient


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    config = load_config("leddam", overrides={"model.names": ("lstm+lb",)})
    with pytest.raises(UserError, match=r"config.model.names='lstm\+lb'.*did you mean 'lstm\+ld'"):
        forecasters.forecasters(config, 3, "ETTh1", 8)


def test_arms_and_plug_ins_take_the_settings_of_their_model() -> None:
    overrides: dict[str, Any] = {"model.names": ("leddam-no_auto", "leddam+ld", "lstm+mov")}
    found = forecasters.forecasters(load_config("leddam", overrides=overrides), 7, "ETTh1", 192)
    arm, plugged, lstm = (found[name] for name in overrides["model.names"])
    module: Any = plugged.module
    assert arm.module == module.backbone.copy(ablation="no_auto") and module.backbone.d_model == 512
    assert (arm.batch, arm.lr) == (plugged.batch, plugged.lr) == (128, 1e-4)
    assert (lstm.batch, lstm.lr, lstm.epochs) == (128, 1e-3, 12)
    assert arm.flops is not None and plugged.flops is None


def test_the_kernel_has_a_rate_of_its_own() -> None:
    """Adam's first step is the rate in every coordinate with a gradient."""
    for factor in (1.0, 0.1):
        before, after, _ = _once("nlinear+ld", **{"optim.ld_lr_mult": factor})
        moved = jax.tree.map(lambda a, b: np.abs(b - a).max(), before["params"], after["params"])
        kernel = moved.pop("decomposition")["kernel"]
        np.testing.assert_allclose(kernel, factor * 5e-3, rtol=1e-3)
        np.testing.assert_allclose(max(jax.tree.leaves(moved)), 5e-3, rtol=1e-3)


def test_a_negative_rate_of_the_kernel_is_refused() -> None:
    with pytest.raises(UserError, match="ld_lr_mult"):
        _step("dlinear-ld", **{"optim.ld_lr_mult": -1.0})


def test_variants_have_known_names_and_the_arms_of_their_claims() -> None:
    names = {variant: load_config("leddam", variant).model.names for variant in file.VARIANTS}
    assert all(name in forecasters.TITLES for each in names.values() for name in each)
    arms = {model for _, pairs in studies.CLAIMS.values() for pair in pairs for model in pair}
    assert arms <= set(names["default"]) and arms <= set(names["ett_full"])
    assert {f"leddam-{name}" for name in ABLATIONS if name != "full"} <= set(names["ett_full"])
    order = {each for name in quality.KINDS.values() for each in (name, f"{name}-positions")}
    assert order == set(names["attn_order"])
    plugged = {name.split("+")[0] for name in names["plugin"]}
    assert plugged == {"lstm", "lightts", "scinet", "transformer", "informer"}
    assert len(names["plugin"]) == 15 and len(names["plugin_small"]) == 6
