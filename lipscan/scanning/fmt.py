"""Number formats of a scan's table, report and terminal output."""

import math


def many(count: int, what: str) -> str:
    """A count with its noun, in the plural if necessary."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def short(value: float | None, digits: int = 3) -> str:
    """A number with at most `digits` significant digits and separated thousands; empty if unknown.

    Examples
    --------
    >>> [short(value) for value in (0.07, 3.9, 647.93, 999.7, 199450.0, 7.2e9, math.nan)]
    ['0.07', '3.9', '648', '1,000', '199,000', '7.2e9', '']
    """
    if value is None or math.isnan(value):
        return ""
    said = float(f"{value:.{digits}g}")
    if 10**digits <= said < 1e6:
        return f"{said:,.0f}"
    return f"{said:.{digits}g}".replace("e+0", "e").replace("e+", "e")


def factor(value: float | None) -> str:
    """A ratio in three digits, or in as many as distinguish it from 1; 1 if stored numbers cannot tell it from 1.

    Examples
    --------
    >>> factor(2.3456), factor(0.9997), factor(1.00012), factor(1.000004)
    ('2.35', '0.9997', '1.0001', '1')
    """
    if value is not None and abs(value - 1) < 1e-5:  # stored numbers have six digits
        return "1"
    return next(said for digits in range(3, 7) if (said := short(value, digits)) != "1")


def small(value: float | None) -> str:
    """An error, as its order of magnitude."""
    return "0" if value == 0 else "" if value is None or math.isnan(value) else f"{value:.0e}"


def times(log10: float) -> str:
    """Factor by which a bound is too high, from its base 10 logarithm; near 1 with enough digits to distinguish it from
    1.

    Examples
    --------
    >>> [times(log10) for log10 in (0.41, 2.53, 5.08, 151.2)]
    ['2.6', '340', '1.2e5', '1e151']
    """
    if math.isnan(log10):
        return ""
    if abs(log10) < 0.01:
        return factor(10**log10)
    if log10 < 4:
        return f"{10**log10:.2g}" if log10 < 2 else f"{round(10**log10, -1):.0f}"
    exponent = math.floor(log10)
    return f"{10 ** (log10 - exponent):.1f}e{exponent}" if log10 < 15 else f"1e{log10:.0f}"


def up(value: float) -> str:
    """An upper bound rounded up to three digits.

    Examples
    --------
    >>> up(2.7101), up(2.71), up(1234.0)
    ('2.72', '2.71', '1,240')
    """
    said = float(f"{value:.3g}")
    if math.isfinite(value) and said < value:
        said += 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return short(said)


def range_of(low: str, high: str) -> str:
    """Two numbers as a range, or one number if both are written alike."""
    return low if low == high else f"{low} to {high}"
