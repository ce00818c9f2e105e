"""The verb `python -m lab cases`: make the file of reference cases from their closed forms."""

EXAMPLES = """\
  python -m lab cases                              write lipnb/reference_cases.json from its formulas (seconds)
  python -m lab cases && git diff lipnb            and see which values a change of the formulas changed
"""
LARGEST = 1e-20  # distance of an input from its limit or root


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "cases",
        help="make the reference cases, inputs with known constants",
        epilog=f"examples:\n{EXAMPLES}",
        description="Compare the formula of every small case with the definition of the constant, in fifty digits,\n"
        "then write lipnb/reference_cases.json.",
    )
    verb.set_defaults(run=run)


def run(_):
    """Check every small case, then write the file."""
    from pathlib import Path

    from tqdm import tqdm

    from lab.experiments import exact

    listed = exact.cases()
    errors = {one["name"]: exact.disagreement(one) for one in tqdm(listed, unit="case", disable=None)}
    wrong = {name: error for name, error in errors.items() if error is not None and not error < LARGEST}
    if len(errors) < len(listed) or wrong:
        raise ValueError(f"two cases share a name, or a formula is not the definition's: {wrong}")
    path = Path(__file__).parents[2] / exact.FILE
    path.write_text(exact.text(listed), encoding="utf-8")
    small = [error for error in errors.values() if error is not None]
    print(f"{path}: {len(listed)} cases, {len(small)} of them checked, largest difference {max(small):.0e}")
