"""Make lipnb/reference_cases.json: ``python -m lab.experiments.exact``."""

import sys
from pathlib import Path

from tqdm import tqdm

from lab.experiments.exact import FILE, cases, disagreement, text

LARGEST = 1e-20  # an input at a limit or a root is this close to it


def main():
    """Check every small case against the definition, then write the file."""
    listed = cases()
    errors = {one["name"]: disagreement(one) for one in tqdm(listed, unit="case", disable=None)}
    wrong = {name: error for name, error in errors.items() if error is not None and not error < LARGEST}
    if len(errors) < len(listed) or wrong:
        print(f"two cases share a name, or a formula is not the definition's: {wrong}", file=sys.stderr)
        return 1
    path = Path(__file__).parents[3] / FILE
    path.write_text(text(listed), encoding="utf-8")
    small = [error for error in errors.values() if error is not None]
    print(f"{path}: {len(listed)} cases, {len(small)} of them checked, largest difference {max(small):.0e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
