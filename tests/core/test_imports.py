"""Importing rflib is cheap: what is heavy is imported where it is used."""

import subprocess
import sys

import pytest

HEAVY = ("orbax", "matplotlib", "tensorboardX", "pooch", "grain", "torch", "pandas", "IPython")


@pytest.mark.parametrize(
    "module", ["rflib", "rflib.run", "rflib.train.loop", "rflib.data", "rflib.methods.leddam"]
)
def test_a_module_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(m for m in sys.modules if '.' not in m))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert module.partition(".")[0] in found.stdout.split()
    assert not set(HEAVY) & set(found.stdout.split())
    if module in ("rflib", "rflib.run"):  # a mistake in a flag is answered before jax is there
        assert "jax" not in found.stdout.split()
