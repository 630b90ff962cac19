"""Lists the experiments: what each does, its variants and their cost, and its last verdicts.

python -m experiments
"""

from pathlib import Path
from typing import Any

from rflib.core.errors import UserError
from rflib.run import catalogue


def main(flags: Any, words: list[str]) -> int:
    found = catalogue.systems()
    if words:
        catalogue.select(found, words[0])
        raise UserError(f"python -m experiments.{words[0]} runs that experiment")
    runs = Path("runs")
    reports = catalogue.reports(runs) if runs.is_dir() else []
    for system in found:
        print(f"{system.name}\n  {system.line}")
        for variant, line in system.variants.items():
            print(f"  {variant.ljust(10)} {line}")
        for report in reports:
            if report["experiment"] == system.name:
                variant = f" ({report['variant']})" if report["variant"] else ""
                print(f"  {report['workdir']}{variant}: {catalogue.verdicts(report)}")
        print()
    print("python -m experiments.<name> [--config configs/<name>.py:<variant>]   (--help: more)")
    return 0


if __name__ == "__main__":
    catalogue.command(main, [], __doc__)
