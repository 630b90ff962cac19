"""One table of claims from the report.json files of finished runs.

python -m experiments.report runs/
"""

from pathlib import Path
from typing import Any

from rflib.core.errors import UserError
from rflib.run import catalogue


def main(flags: Any, words: list[str]) -> int:
    roots = words or ["runs"]
    reports = [report for root in roots for report in catalogue.reports(Path(root))]
    if not reports:
        raise UserError(f"no report.json under {', '.join(roots)}")
    print(catalogue.table(reports))
    return 0


if __name__ == "__main__":
    catalogue.command(main, [], __doc__)
