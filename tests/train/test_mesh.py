"""Laws of meshes, sharding rules and the placement of rows."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rflib.core.errors import UserError
from rflib.train import mesh as meshes
from rflib.train.mesh import fsdp, host_value, make_mesh, place_rows, replicated, rows, shardings
from tests.spawn import together


def leaf(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        (None, {"data": 8}),
        ({"data": -1, "model": 2}, {"data": 4, "model": 2}),
        ({"model": 8, "data": -1}, {"model": 8, "data": 1}),
        ({"data": 4, "model": 2}, {"data": 4, "model": 2}),
        ({"data": 3}, {"data": 3}),
        ({"data": 1}, {"data": 1}),
    ],
)
def test_mesh_sizes(axes, sizes):
    mesh = make_mesh(axes)
    assert dict(mesh.shape) == sizes
    assert list(mesh.devices.flat) == jax.devices()[: mesh.size]
    assert set(mesh.axis_types) == {AxisType.Auto}


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"data": 16}, "data=16: the product 16 must be at most the 8 devices"),
        ({"data": -1, "model": 3}, "the product 3 must divide the 8 devices"),
        ({"data": -1, "model": -1}, "at most one of them -1"),
        ({"data": 0}, "sizes must be at least 1"),
        ({"data": -2}, "sizes must be at least 1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_named(axes, said):
    with pytest.raises(UserError) as error:
        make_mesh(axes)
    assert said in str(error.value)


def test_ordinary_code_runs_on_sharded_rows():
    # With Explicit axes, jax.make_mesh's default, both lines raise.
    x = place_rows({"x": np.ones((16, 4), np.float32)}, make_mesh())["x"]
    gradient = jax.jit(jax.grad(lambda w: jnp.sum((x @ w) ** 2)))(jnp.ones((4,)))
    np.testing.assert_allclose(gradient, 16 * 4 * 2 * np.ones(4))
    assert jax.jit(lambda x: x.reshape(-1)[:7])(x).shape == (7,)


def test_the_first_rule_found_in_the_name_decides():
    mesh = make_mesh({"data": 4, "model": 2})
    tree = {
        "params": {"encoder": {"kernel": leaf(8, 6), "bias": leaf(6)}, "head": [leaf(6, 4)]},
        "key": jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8)),
    }
    rules = [
        ("encoder/kernel$", P("data", "model")),
        ("kernel|head/0", P(None, ("model",))),
        ("^key$", P(("data", "model"))),
    ]
    placed = shardings(tree, rules, mesh)
    assert jax.tree.map(lambda sharding: sharding.spec, placed) == {
        "params": {
            "encoder": {"kernel": P("data", "model"), "bias": P()},
            "head": [P(None, ("model",))],
        },
        "key": P(("data", "model")),
    }
    assert all(sharding.mesh == mesh for sharding in jax.tree.leaves(placed))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (P(None, None, "data"), "3 entries for 2 dimensions"),
        (P("data"), "dimension 0 of length 6 is not divisible by 4"),
        (P(None, ("data", "model")), "dimension 1 of length 12 is not divisible by 8"),
        (P("rows"), "there is no axis 'rows'"),
        (P("model", "model"), "axis 'model' is used twice"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(spec, said):
    mesh = make_mesh({"data": 4, "model": 2})
    with pytest.raises(UserError) as error:
        shardings({"params": {"w": leaf(6, 12)}}, [("w$", spec)], mesh)
    for part in (said, "params/w", "(6, 12)", str(spec), "data=4, model=2", "'w$'"):
        assert part in str(error.value)


def test_fsdp_cuts_the_largest_dimension_that_divides():
    mesh, rule = make_mesh({"data": 4, "model": 2}), fsdp(min_bytes=4 * 96)
    assert rule(leaf(4, 24), mesh) == P(None, "data")
    assert rule(leaf(24, 24), mesh) == P("data")
    assert rule(leaf(2, 27, 8), mesh) == P(None, None, "data")
    assert rule(leaf(4, 23, dtype="int8"), mesh) == P(), "smaller than min_bytes"
    assert rule(leaf(97, 7), mesh) == P(), "nothing divides"
    assert rule(leaf(), mesh) == P()
    assert fsdp("model", 1)(leaf(6, 4), mesh) == P("model")
    with pytest.raises(UserError, match="fsdp axis='modle'"):
        fsdp("modle")(leaf(6), mesh)


def test_a_rule_may_be_any_function():
    mesh = make_mesh()
    placed = shardings(
        {"w": leaf(3, 8), "b": leaf(8)},
        [("", lambda x, _: P(*(None,) * (x.ndim - 1), "data"))],
        mesh,
    )
    assert placed["w"].spec == P(None, "data")
    assert placed["b"].spec == P("data")


def test_a_state_born_sharded_is_the_state():
    mesh = make_mesh()
    make = lambda key: {"w": jax.random.normal(key, (64, 8)), "n": jnp.zeros((), int)}  # noqa: E731
    key = jax.random.key(0)
    where = shardings(jax.eval_shape(make, key), [("w", fsdp(min_bytes=1))], mesh)
    state = jax.jit(make, out_shardings=where)(key)
    assert state["w"].addressable_shards[0].data.shape == (8, 8)
    np.testing.assert_array_equal(state["w"], make(key)["w"])


@pytest.mark.parametrize("axes", [{"data": 1}, {"data": 8}, {"data": 4, "model": 2}, {"model": 8}])
@pytest.mark.parametrize("lead", [0, 1, 2])
def test_rows_are_spread_after_the_leading_axes(axes, lead):
    mesh = make_mesh(axes)
    shape = (*(3, 5)[:lead], 8, 4)
    batch = {
        "x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape),
        "label": np.arange(np.prod(shape[:-1]), dtype=np.int32).reshape(shape[:-1]),
        "scale": np.float32(2),
        "flag": np.array(True),
        "on device": jnp.ones(shape, jnp.bfloat16),
    }
    placed = place_rows(batch, mesh, lead)
    for name, value in batch.items():
        assert placed[name].dtype == value.dtype
        assert not placed[name].weak_type
        np.testing.assert_array_equal(placed[name], value)
        where = rows(mesh, lead) if np.ndim(value) else replicated(mesh)
        assert placed[name].sharding.is_equivalent_to(where, np.ndim(value))
    piece = placed["x"].addressable_shards[0].data.shape
    assert piece == (*shape[:lead], 8 // mesh.shape.get("data", 1), 4)


@pytest.mark.parametrize("axes", [{"data": 1}, {"data": 8}])
def test_placing_rows_works_under_a_transfer_guard_and_copies(axes):
    mesh, host = make_mesh(axes), np.ones((8, 2), np.float32)
    with jax.transfer_guard("disallow"):
        placed = jax.block_until_ready(place_rows({"x": host}, mesh))
    assert placed["x"].sharding.mesh == mesh
    host[:] = 7  # a loader may use its buffer again once the rows are on the device
    if mesh.size == 1:
        np.testing.assert_array_equal(placed["x"], np.ones((8, 2)))


def test_rows_that_do_not_divide_are_named():
    with pytest.raises(UserError) as error:
        place_rows({"a": np.ones(8), "images": np.ones((12, 3))}, make_mesh())
    assert "batch leaf images of shape (12, 3) has 12 rows" in str(error.value)
    assert "data=8" in str(error.value)
    with pytest.raises(UserError, match=r"\(itself\) of shape \(8, 6\) has 6 rows"):
        place_rows(np.ones((8, 6)), make_mesh(), lead=1)


def test_one_device_takes_rows_in_faster_than_device_put():
    mesh = make_mesh({"data": 1})
    batch = {"x": np.ones((64, 7), np.float32), "y": np.ones(64, np.int32)}
    where = rows(mesh)

    def best(call) -> float:
        call()
        times = []
        for _ in range(200):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(lambda: place_rows(batch, mesh)) < best(lambda: jax.device_put(batch, where))


def test_host_value_gives_numpy_and_key_integers():
    mesh = make_mesh()
    spread = NamedSharding(mesh, P("data"))
    key = jax.random.key(3)
    tree = {
        "x": jax.device_put(jnp.arange(16.0), spread),
        "key": key,
        "plain": np.ones(2),
        "none": None,
    }
    host = host_value(tree)
    assert all(isinstance(value, np.ndarray) for value in jax.tree.leaves(host))
    np.testing.assert_array_equal(host["x"], np.arange(16.0))
    np.testing.assert_array_equal(host["key"], jax.random.key_data(key))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"JAX_NUM_PROCESSES": "2"}, "not JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID"),
        (
            dict.fromkeys(("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"), "x"),
            "=x",
        ),
        ({}, "no cluster was recognised"),
    ],
)
def test_a_wrong_environment_is_named_before_anything_starts(monkeypatch, variables, said):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as error:
        meshes.initialize_distributed()
    assert said in str(error.value)
    assert "JAX_PROCESS_ID" in str(error.value)
    assert not jax.distributed.is_initialized()


TWO = """
    import jax, numpy as np
    from rflib.core.errors import UserError
    from rflib.train import mesh as meshes
    meshes.initialize_distributed()
    meshes.initialize_distributed()
    mesh, index = meshes.make_mesh(), jax.process_index()
    own = np.arange(6.0, dtype=np.float32).reshape(1, 2, 3) + 10 * index
    placed = meshes.place_rows({"x": own, "n": np.int32(4)}, mesh, lead=1)
    total = jax.jit(lambda x: x.sum(), out_shardings=meshes.replicated(mesh))(placed["x"])
    host = meshes.host_value(placed | {"total": total})
    print("HOST", host["x"][0, :, 0].tolist(), host["n"], host["total"])
    for tree, where in [
        ({"x": np.ones((2, 3, 1))}, mesh),
        ({"x": np.ones((3, 2, 1))}, meshes.make_mesh({"model": 2})),
        ({"x": np.ones((2, 2))}, meshes.make_mesh({"data": 1, "model": 2})),
    ]:
        try:
            meshes.place_rows(tree, where)
            print("PLACED")
        except UserError as error:
            print("ERROR", error)
    try:
        meshes.make_mesh({"data": 1})
    except UserError as error:
        print("ERROR", error)
"""


@pytest.mark.multiprocess
def test_two_processes_give_their_own_rows():
    for out in together(TWO):
        assert "HOST [0.0, 3.0, 10.0, 13.0] 4 90.0" in out
        assert out.count("PLACED") == 1
        assert "a mesh axis named 'data'" in out
        assert "processes [0, 1] would share rows" in out
        assert "uses 1 of 2 devices" in out
