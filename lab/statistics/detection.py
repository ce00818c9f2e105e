"""How often planted faults are found and named, and clean runs called wrong; each rate with its Wilson interval."""

import pandas as pd
from scipy.stats import binomtest

from lipscan.drift.verdict import heights

SAME = ["model", "dtype"]  # clean runs that calibrate a method
METHODS = {  # how each is shown
    "drift": "lipnb drift",
    "cosine_99": "cosine of a layer below 0.99",
    "cosine": "cosine of a layer below 0.999",
    "close": "torch.allclose by layer, its own tolerances",
    "twice": "twice the largest error of an own run, by layer",
    "final": "output's relative difference, above all clean runs",
    "needed": "tolerance that allclose needs, above all clean runs",
    "least_cosine": "cosine of a layer, below all clean runs",
}
BY_LAYER = ("cosine_99", "cosine", "close", "twice")  # those that name a layer: the first that fails
EFFECTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, float("inf"))  # effect of a fault in floors


def rate(hits: pd.Series) -> dict[str, float]:
    """Share of true entries with its 95 % Wilson interval; ``n`` is their number."""
    k, n = int(hits.sum()), len(hits)
    if not n:
        return {"n": 0, "rate": float("nan"), "low": float("nan"), "high": float("nan")}
    interval = binomtest(k, n).proportion_ci(0.95, method="wilson")
    return {"n": n, "rate": k / n, "low": interval.low, "high": interval.high}


def judged(rows: pd.DataFrame, clean: pd.DataFrame) -> pd.DataFrame:
    """Cases with what each method says: ``METHOD_found``, and ``METHOD_layer_right`` for those that name a layer.

    `rows`: cases of `drift-power`, or clean runs. `clean`: table `drift-clean`; methods that compare a number take
    their threshold from the clean runs of the same model and type, none of which is above it.
    """
    runs = clean[clean.part == "run"].groupby(SAME)
    most = runs[["final", "needed"]].max().join(runs.cosine.min()).add_suffix("_clean")
    table = rows.join(most, on=SAME)
    found = {"drift": table.verdict == "bug"}
    found |= {name: table[f"{name}_layer"].notna() for name in BY_LAYER}
    found |= {name: table[name] > table[f"{name}_clean"] * (1 + 1e-9) for name in ("final", "needed")}
    found["least_cosine"] = table.cosine < table.cosine_clean - 1e-12
    new = {f"{name}_found": one for name, one in found.items()}
    if "layer" in table and "named_layer" in table:
        new["drift_layer_right"] = found["drift"] & (table.named_layer == table.layer)
        new["drift_half_right"] = new["drift_layer_right"] & (table.named_part == table.half)
        new |= {f"{name}_layer_right": found[name] & (table[f"{name}_layer"] == table.layer) for name in BY_LAYER}
    return table.assign(**new)


def named(cases: pd.DataFrame, method: str = "drift") -> pd.DataFrame:
    """The cases in which a layer can be named, and those in which a half can be: ``layers``, ``halves``, as masks."""
    one = cases.layer.notna() & cases[f"{method}_found"]
    return pd.DataFrame({"layers": one, "halves": one & (cases.half != "both")})


def found_by(cases: pd.DataFrame, by: list[str], methods: tuple[str, ...] = ("drift",)) -> pd.DataFrame:
    """Rates by columns: ``found`` of all cases; of these found, ``layer`` and, for `lipnb drift`, ``half`` named right.

    `cases`: of `judged`. Returns a row for each group and method, with columns such as ``found``, ``found_low``,
    ``found_high``, ``found_n``.
    """
    lines = []
    for key, group in cases.groupby(by, sort=False, observed=True, dropna=False) if by else [((), cases)]:
        for method in methods:
            line = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)) | {"method": method}
            line |= _columns("found", group[f"{method}_found"])
            at = named(group, method)
            if method == "drift" or method in BY_LAYER:
                line |= _columns("layer", group[f"{method}_layer_right"][at.layers])
            if method == "drift":
                line |= _columns("half", group.drift_half_right[at.halves])
            lines.append(line)
    return pd.DataFrame(lines)


def _columns(name, hits):
    found = rate(hits)
    return {name: found["rate"], f"{name}_low": found["low"], f"{name}_high": found["high"], f"{name}_n": found["n"]}


def compared(cases: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each method: ``false`` alarms on clean `runs`; ``found``, ``layer`` and ``half`` of faults."""
    faults = found_by(cases, [], tuple(METHODS)).set_index("method")
    false = pd.DataFrame({method: _columns("false", runs[f"{method}_found"]) for method in METHODS}).T
    return false.join(faults).rename(index=METHODS).rename_axis("method")


def clean_runs(clean: pd.DataFrame) -> pd.DataFrame:
    """The rows of `drift-clean` of whole runs, as `judged` says of them."""
    return judged(clean[clean.part == "run"], clean)


def clean_layers(clean: pd.DataFrame, leans: float, sure: float) -> pd.DataFrame:
    """A row for each clean layer and window: whether any of its parts is called a fault, ``above``, or ``leaning``.

    `leans`, `sure`: thresholds of the share that leans to one side, alone and in deviations of it by chance.
    """
    parts = clean[clean.part.isin(("layer", "attention", "mlp"))]
    tilt = (parts.signed - parts.floor_signed).abs()
    parts = parts.assign(above=heights(parts) > 1, leaning=tilt > (sure * parts.signed_noise).clip(lower=leans))
    columns = ["above", "leaning"]
    return parts.groupby([*SAME, "run", "window", "layer"])[columns].any().reset_index()


def by_effect(cases: pd.DataFrame) -> pd.DataFrame:
    """Rates of cases by the effect of the fault on its layer's output, in floors of the type."""
    cases = cases[cases.effect.notna()].reset_index(drop=True)
    bins = pd.cut(cases.effect, EFFECTS, include_lowest=True)
    return found_by(cases.assign(effect_bin=bins), ["effect_bin"]).sort_values("effect_bin")


def over_windows(table: pd.DataFrame) -> pd.DataFrame:
    """What can be seen with more windows: a row for each model, type and number of windows.

    ``clean``: largest floors of a clean layer (median token), ``clean_other`` without the runs that round their sums in
    parts. ``seen``: the weakest of the planted strengths from which on all groups of windows are above ``clean``, and
    ``seen_other`` above ``clean_other``; NaN if none is.
    """
    lines = []
    for key, group in table.groupby([*SAME, "windows"], sort=False):
        line = dict(zip([*SAME, "windows"], key, strict=True))
        clean, faults = group[group.strength == 0], group[group.strength > 0]
        for name, rows in (("", clean), ("_other", clean[~clean.run.str.startswith("sums")])):
            top = rows.token_ratio.max()
            least = faults.groupby("strength").token_ratio.min().sort_index(ascending=False)
            seen = least[(least > top).cummin()]
            line |= {f"clean{name}": top, f"seen{name}": seen.index.min() if len(seen) else float("nan")}
        lines.append(line)
    return pd.DataFrame(lines)
