"""Every value that a device or a server sends is held to its declaration, and refused in few words.

The cases are made from the declarations: a field that is added is tested at once.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from server_app.records.csv_files import iterate_rows
from server_app.records.recorder import Recorder
from server_app.records.round_result import Failure
from server_app.records.run_directory import RunDirectory
from server_app.records.summary import as_json
from strategies.base.checked import Checked
from strategies.base.messages import (
    MOST_CLASSES,
    ClientInfo,
    Control,
    MetricRow,
    ReplyInfo,
    SetUpProblem,
    metrics_record,
)
from strategies.base.parsing import parse_run_config
from strategies.base.payload import ARRAYS, MANIFEST, PayloadError
from strategies.base.received_text import clipped, harmless_cell, shown, visible
from strategies.base.replies import read_metrics
from strategies.base.wire import MOST_ENTRIES, read_entries, write_entries
from tests.unit.test_roster import a_client_info

LONGEST_MESSAGE = 250
"""Signs of the longest refusal; what it quotes of the value is a part of it."""
LONGEST_QUOTE = 80

SOUND: list[Checked] = [
    Control(run_name="r", token="t", session="s", round=1),
    ReplyInfo(
        client_id=0, round=1, num_examples=5, compute_s=0.5, worker="w", rounds_trained=0
    ),
    SetUpProblem(problem="DataError: no such folder", who="3"),
    a_client_info(0),
]  # fmt: skip
FIELDS = [(sound, key) for sound in SOUND for key in type(sound).declared()]
HUGE = "x" * 20_000_000

WRONG: dict[str, list[Any]] = {
    "int": [-1, 2**63, 10**400, True, 1.0, math.nan, "1", "", None, [1], b"1", HUGE],
    "float": [-0.5, math.nan, math.inf, -math.inf, 1.7e308, True, 1, "1.0", None, [1.0]],
    "bool": [0, 1, 1.0, "true", None, [True]],
    "str": [
        HUGE, "a\nround 10/10", "\x1b[2J", "\x1b]0;title\x07", "a\u202eb", "\u2066a", "\u2028",
        "\x7f", "\x9b2J", "\ud800", "\r", "\t", "\0", 1, True, None, ["a"], b"a",
    ],
    "list[int]": [
        [1] * 2_000_000, [-1], [True], [1.0], [math.nan], ["1"], [HUGE] * 3, [None], [[1]],
        "0 1", 1, None, [10**30],
    ],
}  # fmt: skip
CASES = [
    (sound, key, value)
    for sound, key in FIELDS
    for value in WRONG[str(type(sound).declared()[key].type)]
]


def refusal(sound: Checked, values: dict[str, Any]) -> str:
    with pytest.raises(PayloadError) as caught:
        type(sound).from_record(values)
    text = str(caught.value)
    assert len(text) <= LONGEST_MESSAGE, text[:500]
    assert text.isprintable(), text
    return text


def test_every_field_refuses_what_it_is_not_declared_as() -> None:
    assert len(CASES) > 400
    for sound, key, value in CASES:
        text = refusal(sound, {**sound.to_record(), key: value})
        assert key in text, (text, key)
        assert "x" * LONGEST_QUOTE not in text


def test_every_field_has_to_be_there() -> None:
    for sound, key in FIELDS:
        values = dict(sound.to_record())
        del values[key]
        assert key in refusal(sound, values)


@pytest.mark.parametrize("key", ["labels", "a\nb", "\x1b[2J", HUGE, ""])
def test_undeclared_fields_are_refused(key: str) -> None:
    for sound in SOUND:
        text = refusal(sound, {**sound.to_record(), key: 1})
        assert text.endswith("key is not declared")


def test_what_is_sound_comes_back() -> None:
    for sound in SOUND:
        assert type(sound).from_record(sound.to_record()) == sound


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"classes": [2, 2]}, "classes"),
        ({"task": "multilabel"}, "task"),
        ({"task": "chess"}, "task"),
        ({"metric": "map"}, "metric"),
        ({"metric": "=1+1"}, "metric"),
        ({"class_counts": [10**12, 10**12]}, "class_counts"),
        ({"train_examples": 10**12}, "train_examples"),
    ],
)
def test_client_information_that_contradicts_itself_is_refused(
    changes: dict[str, Any], field: str
) -> None:
    info = a_client_info(0)
    assert field in refusal(info, {**info.to_record(), **changes})


@pytest.mark.parametrize(
    "record",
    [
        {"pre/accuracy": [1.7e308, 1.0]},
        {"pre/accuracy": [1.5, 1.0]},
        {"pre/map": [1e90, 1.0]},
        {"post/validation_miou": [-0.1, 1.0]},
        {"final/map_head": [1.1, 1.0]},
        {"train/loss": [1.7e308, 1.0]},
        {"train/loss": [1.0, 1e300]},
        {"train/loss": [1.0] * 1_000_000},
        {"train/=HYPERLINK": [1.0, 1.0]},
        {"train/" + HUGE: [1.0, 1.0]},
        {"train/\x1b[2J": [1.0, 1.0]},
        {HUGE: 5},
        {f"train/{number}": [1.0, 1.0] for number in range(100_000)},
    ],
)
def test_metrics_out_of_bounds_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(PayloadError) as caught:
        read_metrics(record)
    assert str(caught.value).startswith("metrics: ")
    assert len(str(caught.value)) <= LONGEST_MESSAGE
    assert str(caught.value).isprintable()


def test_losses_of_other_tasks_may_exceed_one() -> None:
    rows = [MetricRow("train", "map_loss", 3.5, 4), MetricRow("pre", "loss", 2.0, 4)]
    assert read_metrics(metrics_record(rows)) == rows


# The manifest of a payload ------------------------------------------------------------------------


def manifest(text: str, **more: Any) -> RecordDict:
    return RecordDict({ARRAYS: ArrayRecord(), MANIFEST: ConfigRecord({"entries": text, **more})})


@pytest.mark.parametrize(
    "content",
    [
        manifest("[" + ",".join(["[]"] * 1_000_000) + "]"),
        manifest(json.dumps([["k", "float32", [0]]] * 20_000)),
        manifest("[" * 3_000_000),
        manifest(json.dumps([["k" * 1_000_000, "float32", [1]]])),
        manifest(json.dumps([["k" * 500, "f" * 500, [1]]])),
        manifest(json.dumps([["k", "float32", [2**47] * 32]])),
        manifest(json.dumps([[["k"] * 1000] * 100])),
        manifest("[]", more="x"),
        manifest("[]", **{HUGE: "x"}),
        RecordDict(
            {
                ARRAYS: ArrayRecord({HUGE: Array("float32", (0,), "numpy.ndarray", b"")}),
                MANIFEST: ConfigRecord({"entries": "[]"}),
            }
        ),
        RecordDict(
            {
                ARRAYS: ArrayRecord({"\x1b[2J": Array("float32", (0,), "numpy.ndarray", b"")}),
                MANIFEST: ConfigRecord({"entries": "[]"}),
            }
        ),
    ],
    ids=range(11),
)
def test_manifests_out_of_bounds_are_refused_at_once(content: RecordDict) -> None:
    started = time.process_time()
    with pytest.raises(PayloadError) as caught:
        read_entries(content)
    assert time.process_time() - started < 1
    assert len(str(caught.value)) <= LONGEST_MESSAGE
    assert str(caught.value).isprintable()


def test_who_has_too_many_arrays_hears_of_it_before_sending() -> None:
    entries = [(f"k{number}", np.zeros(0, np.float32)) for number in range(MOST_ENTRIES + 1)]
    with pytest.raises(PayloadError, match="manifest: 10001 entries, at most 10000"):
        write_entries(entries)
    assert len(read_entries(write_entries(entries[:-1]))) == MOST_ENTRIES


# Records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\uff1d1"])
def test_a_formula_becomes_a_text(text: str) -> None:
    assert harmless_cell(text) == "'" + text
    assert harmless_cell(harmless_cell(text)) == "'" + text


@pytest.mark.parametrize("text", ["", " ", "a=b", "cnn5", "1", "'=1"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert harmless_cell(text) == text


def test_no_cell_of_a_device_is_a_formula(tmp_path: Path) -> None:
    run = parse_run_config({"output-dir": str(tmp_path), "run-name": "run"})
    directory = RunDirectory.open(run)
    info = a_client_info(0, model="=cmd|' /C calc'!A0", device="@SUM(1)", data_notes="-1+1")
    directory.write_clients({0: info})
    recorder = Recorder(directory.path)
    recorder.begin(0)
    recorder.add_failures(1, [Failure(0, "train", "=HYPERLINK(1)")])
    directory.release()
    for name in ("clients.csv", "failures.csv"):
        with (directory.path / name).open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert len(cells) > 4
        assert not [cell for cell in cells if cell[:1] in tuple("=+-@")]
    again = RunDirectory.open(dataclasses.replace(run, run_name="", resume="run"))
    assert again.refuse(info) is None  # the very client, though its row has an apostrophe more
    assert again.refuse(a_client_info(0)) is not None
    again.release()


def test_client_information_as_long_as_it_may_be_can_be_read_back(tmp_path: Path) -> None:
    counts = [10**12 // MOST_CLASSES] * MOST_CLASSES
    info = a_client_info(
        0, num_classes=MOST_CLASSES, classes=list(range(MOST_CLASSES)), class_counts=counts,
        train_examples=sum(counts),
    )  # fmt: skip
    assert ClientInfo.from_record(info.to_record()) == info
    directory = RunDirectory.open(
        parse_run_config({"output-dir": str(tmp_path), "run-name": "run"})
    )
    directory.write_clients({0: info})
    directory.release()
    (row,) = iterate_rows(directory.path / "clients.csv")
    assert len(row["class_counts"].split()) == MOST_CLASSES


def test_summaries_hold_no_infinity_and_no_nan() -> None:
    summary = {"a": math.inf, "b": {"c": [1.5, math.nan, -math.inf]}, "d": None, "e": "inf"}

    def refused(text: str) -> None:
        raise AssertionError(text)

    found = json.loads(as_json(summary), parse_constant=refused)
    assert found == {"a": None, "b": {"c": [1.5, None, None]}, "d": None, "e": "inf"}


# Texts --------------------------------------------------------------------------------------------


def test_visible_texts_are_one_printable_line() -> None:
    assert visible("Größe 漢字 x=1") == "Größe 漢字 x=1"
    assert visible("a\nb\x1b[31m\u202e\x07\ud800") == "a\\nb\\x1b[31m\\u202e\\x07\\ud800"
    every = "".join(map(chr, [*range(0x300), *range(0x2000, 0x2070), 0xFEFF, 0xE0001]))
    assert visible(every).isprintable()


@pytest.mark.parametrize(
    "value", [HUGE, HUGE.encode(), [HUGE] * 5, [1] * 10**6, "\U000e0001" * 60, [[[[1]]]], 10**400]
)
def test_shown_values_are_short(value: Any) -> None:
    assert len(shown(value)) <= LONGEST_MESSAGE
    assert shown(value).isprintable()


def test_short_values_are_shown_whole() -> None:
    assert [shown(v) for v in ("a", 1, True, None, [1, 2], [])] == [
        "'a'", "1", "True", "None", "[1, 2]", "[]"
    ]  # fmt: skip
    assert clipped("abc", 2) == "ab..."
