"""The table of strategies/README.md that says who gives what is that of the code."""

from __future__ import annotations

import re

from strategies.base.method import method_names
from tests.parts import DOCUMENT, table


def test_the_document_has_the_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert table() in text, "write it anew: python -m tests.parts --write"
    assert f"Of the {len(method_names())} methods here" in text


def test_every_method_is_counted_once_for_every_part() -> None:
    rows = re.findall(r"^\| (\w+ `\w+`) \| (\d*) \| (\d*) \| (\d*) \|$", table(), re.MULTILINE)
    assert {row[0] for row in rows} >= {"client `train`", "server `aggregate`", "server `check`"}
    assert all(sum(int(cell or 0) for cell in row[1:]) == len(method_names()) for row in rows)
