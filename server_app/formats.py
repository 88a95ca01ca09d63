"""How numbers are written, on the console, in reports and in comparisons."""

from __future__ import annotations

import math

THIN = "\u202f"
"""The space between number and unit on pages; the console takes an ordinary one, or none."""

NOT_EVALUATED, NOT_RECORDED = "not evaluated", "not recorded"


def percent(share: float | None, digits: int = 1, space: str = THIN) -> str:
    """Write 0.831 as "83.1 %", None as "not evaluated"."""
    return NOT_EVALUATED if share is None else f"{100 * share:.{digits}f}{space}%"


def change(percentage: float) -> str:
    """Write a relative change with its sign: 9.86 as "+9.9 %"."""
    return f"{percentage:+.1f}{THIN}%"


def human(number: float | None, unit: str = "", space: str = THIN) -> str:
    """Write three figures and a decimal prefix: 1234567 as "1.23 M"; None as "not recorded"."""
    if number is None or not math.isfinite(number):
        return NOT_RECORDED
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    index = 0
    while abs(number) >= 999.5 and index < len(prefixes) - 1:
        number, index = number / 1000, index + 1
    figures = f"{number:.0f}" if index == 0 and number == int(number) else f"{number:.3g}"
    return f"{figures}{space}{prefixes[index]}{unit}".rstrip(THIN + " ")


def size(number: float | None) -> str:
    """Write bytes with a decimal prefix (1 kB = 1000 B)."""
    return human(number, "B")


def grouped(number: float | None) -> str:
    """Write a whole number with thin spaces between thousands; None as "not recorded"."""
    if number is None or not math.isfinite(number):
        return NOT_RECORDED
    return f"{number:,.0f}".replace(",", THIN)


def duration(seconds: float | None) -> str:
    """Write seconds as a person would say them."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_RECORDED
    if seconds < 60:
        return f"{seconds:.3g}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{THIN}min {rest:02d}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60:02d}{THIN}min"
