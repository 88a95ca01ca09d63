"""The project's Markdown files: where they are, and how their lines are wrapped.

python -m tests.documents    wrap the prose of all documents anew
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("server_app", "client_app", "strategies", "models", "data", "deploy", "tests", ".github")
WIDTH = 100
"""Columns of a line of prose, as of a line of code."""

_LONGEST_CODE = 60
"""Inline code of up to this length is not broken."""

_SPACE = "\x00"
"""Stands for a space at which a line may not be broken."""

_ITEM = re.compile(r"( *)([-*] |\d+\. )?")


def print_or_write(document: Path, begin: str, end: str, made: str) -> None:
    """Print what is made, or with `--write` put it between these two lines of a document."""
    if "--write" not in sys.argv:
        print(made, end="")
        return
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    document.write_text(f"{before}{begin}\n{made}\n{end}{after}", encoding="utf-8")


def documents() -> list[Path]:
    """Return all documents as paths below the root, sorted."""
    found = [*ROOT.glob("*.md")]
    for name in FOLDERS:
        found += (ROOT / name).rglob("*.md")
    return sorted(path.relative_to(ROOT) for path in found)


def text_of(document: Path) -> str:
    """Return the text of a document."""
    return (ROOT / document).read_text(encoding="utf-8")


def files_in(document: Path) -> dict[str, str]:
    """Return the Python files that a document shows in whole, by the name said just before."""
    blocks = re.findall(
        r"`(\w+\.py)`[^`]*\n\n```python\n(.*?)^```", text_of(document), re.MULTILINE | re.DOTALL
    )
    return dict(blocks)


def wrapped(text: str) -> str:
    """Return a text with its paragraphs and list items filled to `WIDTH` columns.

    Code blocks, tables, headings and comments stay as they are.
    """
    lines: list[str] = []
    block: list[str] = []
    code = False
    for line in [*text.splitlines(), ""]:
        fence = line.lstrip().startswith("```")
        apart = code or fence or not line.strip() or line.startswith(("|", "#", "<!--"))
        if apart or _ITEM.match(line)[2]:  # type: ignore[index]
            lines += _filled(block)
            block = []
        if apart:
            lines.append(line)
        else:
            block.append(line)
        code = code != fence
    return "\n".join(lines).rstrip("\n") + "\n"


def _filled(block: list[str]) -> list[str]:
    if not block:
        return []
    indent, bullet = _ITEM.match(block[0]).groups("")  # type: ignore[union-attr]
    text = " ".join(line.strip() for line in block).removeprefix(bullet)
    kept = re.sub(rf"`[^`]{{,{_LONGEST_CODE - 2}}}`", lambda m: m[0].replace(" ", _SPACE), text)
    return [
        line.replace(_SPACE, " ")
        for line in textwrap.wrap(
            kept, WIDTH, initial_indent=indent + bullet,
            subsequent_indent=indent + " " * len(bullet),
            break_long_words=False, break_on_hyphens=False,
        )
    ]  # fmt: skip


def main() -> None:
    """Wrap every document and name those that changed."""
    for document in documents():
        text = text_of(document)
        if wrapped(text) != text:
            (ROOT / document).write_text(wrapped(text), encoding="utf-8")
            print(document)


if __name__ == "__main__":
    main()
