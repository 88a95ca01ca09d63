"""What a client tells the server is declared, documented, and no more than is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server_app.records.run_reader import read_run
from strategies.base.messages import ClientInfo
from strategies.base.method import get_method, method_names
from strategies.base.payload import rules_of
from tests.disclosures import DOCUMENT, tables
from tests.support import run_federation


def test_the_document_has_the_tables() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert tables() in text, "write them anew: python -m tests.disclosures --write"


def test_every_field_of_every_payload_is_named() -> None:
    rows = dict(re.findall(r"^\| ([\w-]+) \| (.*) \| .* \|$", tables(), re.MULTILINE))
    for name in method_names():
        assert re.findall(r"`(\w+)`", rows[name]) == list(rules_of(get_method(name).uplink))
    assert all(f"`{name}`" in tables() for name in ClientInfo.declared())


def test_counts_by_class_travel_only_where_they_are_used() -> None:
    counting = {
        name
        for name in method_names()
        if any("counts" in field for field in rules_of(get_method(name).uplink))
    }
    assert counting == {"fedproto", "fedgen"}  # the first for its weighted mean alone


@pytest.mark.parametrize("shares", [True, False])
def test_the_histogram_is_told_where_the_run_says_so(tmp_path: Path, shares: bool) -> None:
    run = run_federation(
        tmp_path, 2, num_rounds=1, subset=0.08, image_size=16, feature_dim=16, models="cnn5, cnn2",
        share_class_counts=shares, report=True,
    )  # fmt: skip
    for row in run.rows("clients"):
        counts = [int(count) for count in row["class_counts"].split()]
        assert sum(counts) == (int(row["train_examples"]) if shares else 0)
        assert row["classes"]
    clients = read_run(run.path).clients
    assert [bool(card.class_counts) for card in clients] == [shares, shares]
    page = run.text("report.html")
    for card in clients:  # bars for the classes there are, whether or not it is told how many
        assert f"<small>{len(card.classes)}</small>" in page
        assert (f"class {card.classes[0]}: " in page) == shares
