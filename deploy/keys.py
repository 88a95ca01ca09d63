"""The tables of run-config keys, made from the classes that parse them.

python -m deploy.keys            print them
python -m deploy.keys --write    put them into server_app/README.md
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from server_app.records.run_directory import write_atomically
from strategies.base.method import get_method, method_names
from strategies.base.options import key_of, nested_options
from strategies.base.run_config import RunConfig

DOCUMENT = Path(__file__).parents[1] / "server_app" / "README.md"
BEGIN, END = "<!-- keys: python -m deploy.keys --write -->\n", "<!-- end of keys -->\n"
HEAD = "| key | default | expected | meaning |\n|---|---|---|---|\n"

_ENTRY = re.compile(r"^(\w[\w, ]*?)(?: : .*)?\n((?:    .*\n|\n)+)", re.MULTILINE)


def meanings(config: type) -> dict[str, str]:
    """Return what a configuration's docstring says of each field, by name.

    Fields that the docstring explains together (`a, b`) have one text. A class that inherits
    fields inherits their texts.
    """
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        document = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        section = document.partition("Attributes\n----------\n")[2]
        for names, text in _ENTRY.findall(re.split(r"\n\w+\n-+\n", section)[0] + "\n"):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def table(config: type, prefix: str = "") -> str:
    """Return the table of a configuration's keys; empty if it has none.

    Raises
    ------
    ValueError
        A field that the docstring does not explain.
    """
    rows = "".join(_rows(config, prefix))
    for inner, options in nested_options(config).values():
        rows += "".join(_rows(options, prefix + inner))
    return HEAD + rows if rows else ""


def _rows(config: type, prefix: str) -> Iterator[str]:
    texts = meanings(config)
    for field in dataclasses.fields(config):
        if "rule" not in field.metadata:
            continue
        if field.name not in texts:
            raise ValueError(
                f"{config.__module__}.{config.__qualname__}: no word on {field.name}; explain it "
                "under Attributes in the docstring"
            )
        value = field.default
        shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
        cells = (prefix + key_of(field.name), shown, field.metadata["rule"].expected())
        escaped = [cell.replace("|", r"\|") for cell in (*cells, texts[field.name])]
        yield f"| {' | '.join(escaped)} |\n"


def document_tables() -> str:
    """Return the tables of all keys, the run's first, then each method's."""
    parts = [table(RunConfig)]
    for name in method_names():
        if own := table(get_method(name).config, name + "."):
            parts.append(f"### Keys of {name}\n\n{own}")
    return "\n".join(parts)


def put_between(document: Path, begin: str, end: str, made: str) -> None:
    """Replace what stands between two lines of a document, atomically."""
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    write_atomically(document, f"{before}{begin}\n{made}\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(prog="python -m deploy.keys", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    if not parser.parse_args(arguments).write:
        print(document_tables(), end="")
        return 0
    put_between(DOCUMENT, BEGIN, END, document_tables())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
