"""The profiles that were certified, as files: to be judged again, and read by other programs."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.persuading import searching
from experiments.persuading.equilibria import best
from experiments.persuading.verdicts import STAGES
from rflib.run.files import write_json
from rflib.train.task import Metrics


def keep(config: Any, folder: Path, found: Mapping[str, Metrics]) -> None:
    """Writes what was found into `folder`.

    certified.csv: a row a certified profile, whatever it says (gains in spans, the largest over
    senders). "<game>-<method>.json": the best local equilibrium after snap, if there is one, with
    the keys pi_0, pi_1, ... that the verb `certify` reads, and its certificate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, game in found.items():
        for method in searching.methods(config):
            rows += _rows(config, name, method, game)
            own = best(config, game, method, "after")
            if own is None:
                continue
            rest = dict(own)
            policies = {f"pi_{j}": policy for j, policy in enumerate(rest.pop("profile"))}
            write_json(folder / f"{name}-{method}.json", policies | rest | {"tie": config.tie})
    with (folder / "certified.csv").open("w", newline="") as file:
        names = dict.fromkeys(key for row in rows for key in row)
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _rows(config: Any, name: str, method: str, game: Metrics) -> list[dict[str, Any]]:
    rows = []
    for place, each in enumerate(game["methods"][method]["found"]):
        for stage, words in STAGES.items():
            own = each[stage]
            row = {"game": name, "method": method, "rank": place, "seed": each["seed"]}
            row |= {"stage": words}
            row |= {f"U_{j}": value for j, value in enumerate(own["utilities"])}
            row |= {
                f"gain within {delta:g}": gain
                for delta, gain in zip(config.verify.deltas, own["gains"], strict=True)
            }
            row |= {"global gain": own["gap"], "kind": own["kind"], "margin": own["cliff"]}
            rows.append(row)
    return rows
