"""The table of what default runs take from their papers, against the registered defaults."""

from __future__ import annotations

import re

import pytest

from deploy.run import parse_assignments
from strategies.base.method import Training, get_method, method_names
from strategies.base.parsing import default_run_config
from strategies.base.run_config import RunConfig
from tests.documents import ROOT

README = (ROOT / "deploy" / "comparisons" / "README.md").read_text(encoding="utf-8")
COLUMNS = ("rounds", "clients", "epochs", "batch", "published", "default", "evaluated", "source")
DASH = "\N{EN DASH}"
Row = dict[str, str]


def read_rows() -> dict[str, Row]:
    table = README.split("| method | rounds | clients, a round |")[1].split("\n\n")[0]
    rows = {}
    for line in table.splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.strip("`")] = dict(zip(COLUMNS, cells, strict=True))
    return rows


ROWS = read_rows()
EVERY = ROWS.pop("every default run")


def in_words(training: Training) -> str:
    names = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
    text = f"{names[training.optimizer]} {training.lr:g}"
    text += f", momentum {training.momentum:g}" if training.momentum else ""
    return text + (f", decay {training.weight_decay:g}" if training.weight_decay else "")


def test_the_first_row_has_the_defaults_of_a_run() -> None:
    run = RunConfig()
    assert EVERY["rounds"] == str(run.num_rounds)
    assert EVERY["epochs"] == str(run.local_epochs)
    assert EVERY["batch"] == str(run.batch_size)
    assert run.sample_fraction == 1
    assert EVERY["clients"] == "10, all"
    assert "num-supernodes=10 " in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_method_has_a_row() -> None:
    assert set(ROWS) == set(method_names())


@pytest.mark.parametrize("name", ROWS)
def test_what_is_registered_is_what_the_table_says(name: str) -> None:
    method = get_method(name)
    assert ROWS[name]["default"] == in_words(method.training)
    assert ROWS[name]["evaluated"] == method.evaluate_when


@pytest.mark.parametrize("name", ROWS)
def test_bold_is_what_both_have_in_common(name: str) -> None:
    row = ROWS[name]
    used = EVERY | {"published": row["default"]}
    for column in ("rounds", "clients", "epochs", "batch", "published"):
        bold = re.fullmatch(r"\*\*(.*)\*\*", row[column])
        same = (bold[1] if bold else row[column]) == used[column]
        assert bool(bold) == same, f"{column}: {row[column]}"
        assert row[column] == DASH or re.search(r"\d", row[column])
    assert row["source"]


@pytest.mark.parametrize("name", ROWS)
def test_the_keys_named_are_at_their_defaults(name: str) -> None:
    known = default_run_config()
    for text in re.findall(r"`([a-z.0-9-]+=[^`]+)`", ROWS[name]["source"]):
        for key, value in parse_assignments([text]).items():
            assert "." not in key or key.startswith(f"{name}."), key
            assert known[key] == value, key
