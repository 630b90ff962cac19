"""Games and profiles as files: `.npz`, or JSON with the same keys.

A game has mu [W], u [W, A], v [n, W, A] and S [n] (signals of each sender), and may have a name
and a seed. A profile has one array a sender, pi_0 [W, S_0], ..., pi_{n-1}; rows are states.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rflib.core.checks import nearest, one_of, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion.game import TOLERANCE, Game, Profile, check_profile, make_game
from rflib.methods.persuasion.generators import GENERATORS as GENERATORS

ARRAYS = ("mu", "u", "v", "S")
LARGEST, SMALLEST = 1e6, 1e-3  # of utilities; differences of them that ties cannot be taken for
Location = str | Path


def _suffix(path: Location) -> str:
    return one_of(f"the ending of {path}", Path(path).suffix.lower(), (".npz", ".json"))


# `rflib.data.read_npz` would do, but its room imports jax, which costs a certificate two seconds.
def _read(path: Location) -> dict[str, Any]:
    suffix = _suffix(path)
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        if suffix == ".json":
            found = json.loads(content)
            if not isinstance(found, dict):
                raise UserError(f"{path}: must hold one JSON object, not a {type(found).__name__}")
            return found
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except UserError:
        raise
    except (ValueError, EOFError, OSError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in reason:
            reason = "not an archive of plain arrays, and nothing is unpickled"
        raise UserError(f"{path}: {reason}") from error


def _write(path: Location, values: Mapping[str, Any]) -> None:
    path = Path(path).expanduser()
    if _suffix(path) == ".json":
        plain = {
            name: getattr(value, "tolist", lambda v=value: v)() for name, value in values.items()
        }
        content = (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()
    else:
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in values.items()}
        np.savez(buffer, **arrays)
        content = buffer.getvalue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _named(path: Location, found: Mapping[str, Any], name: str) -> Any:
    if name not in found:
        near = nearest(name, found) or list(found)
        raise UserError(f"{path}: no array {name!r}; there is {', '.join(near) or 'nothing'}")
    return found[name]


def write_game(path: Location, game: Game) -> None:
    """Writes a game as .npz or .json. Raises UserError for another ending or a full disk."""
    values: dict[str, Any] = {"mu": game.mu, "u": game.u, "v": game.v}
    values |= {"S": np.array(game.signals), "name": game.name}
    _write(path, values if game.seed is None else values | {"seed": game.seed})


def _check_units(name: str, values: np.ndarray) -> None:
    """Raises a UserError for utilities in whose units a tolerance of 1e-9 does not mean a tie."""
    largest, differ = float(np.abs(values).max()), float(np.ptp(values, axis=-1).max())
    if largest > LARGEST or 0 < differ < SMALLEST:
        raise UserError(
            f"{name} reaches {largest:.3g} and differs between actions by up to {differ:.3g}: take "
            f"units in which it stays below {LARGEST:g} and differs by {SMALLEST:g} or more or not "
            f"at all, as sums within {TOLERANCE:g} of each other are ties"
        )


def read_game(path: Location) -> Game:
    """The game of a file.

    Raises:
        UserError: no such file, a wrong ending, a missing array, whatever `make_game` refuses, or
            utilities above 1e6 or that differ between actions by less than 1e-3 (but by 0).
    """
    found = _read(path)
    mu, u, v, signals = (_named(path, found, name) for name in ARRAYS)
    seed = found.get("seed")
    try:
        name = str(found.get("name") or Path(path).stem)
        seed = None if seed is None else positive_int("seed", np.asarray(seed).item(), zero=True)
        game = make_game(mu, u, v, signals, name, seed)
        for what, values in (("u", game.u), *((f"v[{j}]", own) for j, own in enumerate(game.v))):
            _check_units(what, values)
        return game
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error


def write_policies(path: Location, profile: Profile) -> None:
    """Writes a profile as .npz or .json with the keys pi_0, pi_1, ..."""
    _write(path, {f"pi_{j}": np.asarray(policy) for j, policy in enumerate(profile)})


def _policy_names(game: Game) -> set[str]:
    return {f"pi_{j}" for j in range(game.n_senders)}


def read_policies(path: Location, game: Game) -> list[np.ndarray]:
    """The profile [W, S_j] of a file, checked against its game.

    Raises:
        UserError: no such file, a wrong ending, a missing policy, or a policy that has a wrong
            shape or is no probability distribution in every state, or one of a sender too many.
    """
    found = _read(path)
    profile = [_named(path, found, f"pi_{j}") for j in range(game.n_senders)]
    more = sorted({name for name in found if name.startswith("pi_")} - _policy_names(game))
    if more:
        raise UserError(f"{path}: {', '.join(more)}: the game has {game.n_senders} senders")
    try:
        profile = check_profile(game, profile)
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    if profile[0].ndim != 2:
        raise UserError(f"{path}: pi_0 has shape {profile[0].shape}; one profile has (W, S_0)")
    return profile
