"""The table of strategies/README.md: how many methods give each part of a half themselves.

python -m tests.parts            print it
python -m tests.parts --write    put it into strategies/README.md
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from strategies.base.client import ClientHalf
from strategies.base.method import get_method, method_names
from strategies.base.server import ServerHalf
from tests.documents import print_or_write

DOCUMENT = Path(__file__).parents[1] / "strategies" / "README.md"
BEGIN, END = "<!-- parts: python -m tests.parts --write -->\n", "<!-- end of parts -->\n"
KINDS = ("themselves", "from `common/`", "the default")


def table() -> str:
    """Return the table, the client's parts first, in the order of their declaration."""
    lines = [f"| part | {' | '.join(KINDS)} |", "|---|---:|---:|---:|"]
    for side, base in (("client", ClientHalf), ("server", ServerHalf)):
        for part, value in vars(base).items():
            if callable(value) and not part.startswith("_"):
                found = Counter(_owner(getattr(get_method(m), side), base, part)
                                for m in method_names())  # fmt: skip
                cells = " | ".join(str(found[kind] or "") for kind in KINDS)
                lines.append(f"| {side} `{part}` | {cells} |")
    return "\n".join(lines) + "\n"


def _owner(half: type, base: type, part: str) -> str:
    """Return from where a half has one of its functions."""
    owner = next(cls for cls in half.__mro__ if part in vars(cls))
    if owner is base:
        return KINDS[2]
    return KINDS[1] if owner.__module__.startswith("strategies.common.") else KINDS[0]


def main() -> None:
    """Print the table or write it."""
    print_or_write(DOCUMENT, BEGIN, END, table())


if __name__ == "__main__":
    main()
