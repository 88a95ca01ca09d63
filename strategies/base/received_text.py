"""Text that came over a network, made fit for a terminal, a file and a spreadsheet.

What a device says ends in the server's terminal, in CSV files and in a report. Three things must
not happen there: signs that steer a terminal or turn the order of a line round, lines that look as
if the server had said them, and cells that a spreadsheet would run as formulas.
"""

from __future__ import annotations

LONGEST_SHOWN = 60
"""Signs of a received value that a message quotes at most."""
LONGEST_ITEM = 20
"""The same of a value in a list."""
FORMULA_STARTS = "=+-@\uff1d\uff0b\uff0d\uff20"
"""What a spreadsheet takes for the start of a formula; some take the wide forms as well."""


def visible(text: str) -> str:
    r"""Return a text on one line in which every sign that cannot be printed is an escape.

    A line break becomes `\n`, ESC `\x1b`, and a sign that turns the direction of writing, such as
    `\u202e`, is written so, too. Printable signs of every script stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(s if s.isprintable() else s.encode("unicode_escape").decode() for s in text)


def clipped(text: str, longest: int = LONGEST_SHOWN) -> str:
    """Return a text of at most `longest` signs, and dots where some are missing."""
    return text if len(text) <= longest else text[:longest] + "..."


def shown(value: object) -> str:
    """Return a received value in a few words, however large it is."""
    if isinstance(value, list):
        long = len(value) > 5
        few = ", ".join(_quoted(item, LONGEST_ITEM) for item in value[: 3 if long else 5])
        return f"[{few}, ...] ({len(value)} values)" if long else f"[{few}]"
    return _quoted(value, LONGEST_SHOWN)


def _quoted(value: object, longest: int) -> str:
    if isinstance(value, str | bytes) and len(value) > longest:
        unit = "signs" if isinstance(value, str) else "bytes"
        return f"{clipped(repr(value[: longest // 2]), longest)}... ({len(value)} {unit})"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return clipped(repr(value), longest)


def harmless_cell(text: str) -> str:
    """Return a text for a CSV file that no spreadsheet takes for a formula.

    One that could be is given an apostrophe before it, which shows that it is a text.
    """
    return "'" + text if text.lstrip()[:1] in FORMULA_STARTS and text.strip() else text
