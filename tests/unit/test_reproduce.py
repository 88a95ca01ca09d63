"""Presets of the papers' tables: all of them hold together; what the page says; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main
from deploy.compare.cells import Spread
from deploy.compare.plan import Plan
from deploy.compare.results import Row
from deploy.reproduce import estimate
from deploy.reproduce.estimate import distinct_steps, in_words, seconds_of
from deploy.reproduce.listing import BEGIN, DOCUMENT, END, plan_of, table
from deploy.reproduce.loads import Step, check_shapes, steps_a_round
from deploy.reproduce.page import html, markdown
from deploy.reproduce.preset import Preset
from deploy.reproduce.preset_file import PRESETS, find_preset, preset_names, read_preset
from deploy.reproduce.result import HEADS, OTHER_SCALE, result_of
from models import InputShape
from strategies.base.method import method_names
from strategies.base.options import ConfigError
from tests.unit.test_compare import write_run

MINIMAL = """\
clients = 4
methods = ["local", "fedre"]
not-registered = ["fedy", "moon"]
claims = ["better <everywhere>"]

[paper]
name = "FedX"
table = "Table 9"
text = "its text"

[settings]
dataset = "digits"
num-rounds = 3

[expected.fedre]
best = [80.0, 1.5]
uplink-a-round = 2048

[expected.fedy]
best = 70

[scale.cpu]
words = "two rounds"

[scale.cpu.settings]
num-rounds = 2
"""


def preset_of(folder: Path, text: str = MINIMAL) -> Preset:
    path = folder / "fedx-table-9.toml"
    path.write_text(text)
    return read_preset(path)


def plan_at(preset: Preset, scale: str = "full", *, changes: Any = None) -> Plan:
    return preset.plan(scale, [0, 1], Path("/nonexistent"), changes or {})


def row_of(label: str, complete: int = 2, finals: Any = None, **cells: Spread | str) -> Row:
    return Row("", label, label, complete, 2, cells, {}, finals or {}, {})


# All presets ------------------------------------------------------------------------------------


def test_every_preset_holds_together() -> None:
    """Methods, keys and cells exist, and every model fits its data, small and large."""
    models: dict[tuple[str, str, bool], tuple[Step, int]] = {}
    for name in preset_names():
        preset = find_preset(name)
        assert not set(preset.labels) & set(preset.absent), name
        assert preset.expected or preset.claims or preset.gaps, name
        for scale in preset.scales:
            plan = plan_of(preset, scale)
            assert {run.method for run in plan.runs} <= set(method_names())
            for step in distinct_steps(plan):
                large = isinstance(step.shape, InputShape) and step.shape.image_size > 32
                alike = step.model, step.task, large
                models.setdefault(alike, (step, plan.runs[0].run.feature_dim))
    for step, width in models.values():
        check_shapes(step, width)


def test_the_document_lists_every_preset() -> None:
    listed = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]
    assert listed == f"\n{table()}\n", "python -m deploy.reproduce.listing --write"


def test_numbers_are_the_papers() -> None:
    """A few cells, by hand from the texts."""
    assert find_preset("fedre-main-cifar100-practical").expected["fedre"]["best"].value == 46.36
    cells = find_preset("fedin-table-1-cifar10-noniid").expected["fedin-noise"]
    assert (cells["final"].value, cells["final"].spread) == (77.3, 2.5)
    assert (cells["rounds-to-target"].value, cells["speed"].value) == (52, 2.1)
    muscle = find_preset("fedmuscle-table-1-setup1-voc").expected["fedmuscle"]
    assert (muscle["client-5"].value, muscle["delta"].value) == (66.57, 26.7)
    share = find_preset("fedmrl-figure-3-cifar100-k100").expected["fedmrl"]
    assert share["clients-better-than-fedproto"].value == 99


# The page ---------------------------------------------------------------------------------------


def cells_by_line(preset: Preset, scale: str, rows: list[Row]) -> list[dict[str, str]]:
    page = result_of(preset, scale, plan_at(preset, scale), rows)
    return [dict(zip(HEADS, line, strict=True)) for line in page.cells]


def test_every_cell_has_a_line(tmp_path: Path) -> None:
    preset = preset_of(tmp_path)
    fedre = row_of("fedre", best=Spread(0.825, 0.01), uplink_per_round=Spread(2048.0, 0.0))
    lines = cells_by_line(preset, "full", [row_of("local", complete=0), fedre])
    assert [(line["method"], line["here"], line["difference"]) for line in lines] == [
        ("local", "not run", ""),
        ("fedre", "82.50", "+2.50"),
        ("fedre", "2,048", "+0"),
        ("fedy", "not run: Wildflower has no such method", ""),
        ("moon", "not run: the preset has no setting for it yet", ""),
    ]
    assert lines[1]["paper"] == "80.00 ± 1.50"
    assert lines[1]["spread over seeds"] == "1.00"
    assert lines[0]["paper"] == "not in the text"
    assert lines[1]["seeds"] == "2 of 2"


def test_a_scale_has_overrides_of_its_own(tmp_path: Path) -> None:
    """They win over the method's own, which it keeps at full scale."""
    item = '{ name = "fedre", overrides = { lr = 0.5, batch-size = 8 } }'
    text = MINIMAL.replace('"fedre"]', f"{item}]") + "\n[scale.cpu.overrides.fedre]\nlr = 0.1\n"
    preset = preset_of(tmp_path, text)
    found = [
        next(run.run for run in plan_at(preset, scale).runs if run.method == "fedre")
        for scale in ("full", "cpu")
    ]
    assert [(run.lr, run.batch_size) for run in found] == [(0.5, 8), (0.1, 8)]


def test_another_scale_is_labelled_and_not_compared(tmp_path: Path) -> None:
    preset = preset_of(tmp_path)
    rows = [row_of("fedre", best=Spread(0.5, None))]
    line = cells_by_line(preset, "cpu", rows)[1]
    assert (line["difference"], line["spread over seeds"]) == (OTHER_SCALE, "one seed")
    page = result_of(preset, "cpu", plan_at(preset, "cpu"), rows)
    for text in (markdown(page), html(page, "x")):
        assert "two rounds" in text
        assert "not the paper" in text
    assert "better &lt;everywhere&gt;" in html(page, "x")
    assert "Reduced" not in markdown(result_of(preset, "full", plan_at(preset), rows))


def test_cells_of_single_clients_and_of_pairs(tmp_path: Path) -> None:
    text = MINIMAL.replace(
        "best = [80.0, 1.5]", "client-1 = 50\nclients-better-than-local = 87\nspeed = 2.0"
    )
    finals = {0: {0: 0.5, 1: 0.6}, 1: {0: 0.5, 1: 0.8}}
    rows = [
        row_of("local", finals={0: {0: 0.4, 1: 0.6}, 1: {0: 0.4, 1: 0.7}}),
        row_of("fedre", finals=finals, rounds_over_reference=Spread(0.5, 0.1)),
    ]
    here = [line["here"] for line in cells_by_line(preset_of(tmp_path, text), "full", rows)]
    assert here[1:4] == ["70.00", "75.0", "2.0"]
    rows = [row_of("fedre", finals=finals, rounds_over_reference="")]
    here = [line["here"] for line in cells_by_line(preset_of(tmp_path, text), "full", rows)]
    assert here[1:4] == ["70.00", "not run: local is missing", "not reached"]
    rows = [row_of("fedre", rounds_over_reference=Spread(0.0, None))]
    assert cells_by_line(preset_of(tmp_path, text), "full", rows)[3]["here"] == "not comparable"


def test_complete_runs_are_set_beside_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command as a whole, on runs that are there already."""
    preset = find_preset("fedre-main-cifar10-practical")
    plan = preset.plan("cpu", [0, 1], tmp_path, {}, ["fedre"])
    for run, best in zip(plan.runs, (0.5, 0.75), strict=True):
        write_run(run, [0.25, best], clients=plan.clients)
    words = ["--scale", "cpu", "--seeds", "0,1", "--methods", "fedre"]
    assert main(["reproduce", preset.name, *words, "--output-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    line = "| fedre | accuracy %, best round | 82.60 | 62.50 | not compared | 17.68 | 2 of 2 |"
    page = tmp_path / f"{plan.name}-paper.html"
    for text in (printed, page.with_suffix(".md").read_text()):
        assert line in text
        assert "| local | accuracy %, best round | 81.20 | not run: not asked for |" in text
    assert "Wildflower reproduction" in page.read_text()
    assert (tmp_path / f"{plan.name}.html").is_file()


def test_clients_may_share_a_gpu(tmp_path: Path) -> None:
    preset = preset_of(tmp_path)
    plan = preset.plan("full", [0], tmp_path, {}, gpus=0.25)
    assert plan.federation == {"client-resources-num-gpus": 0.25}
    assert plan_at(preset).federation == {}


# How long it takes ------------------------------------------------------------------------------


def test_an_estimate_counts_every_step(tmp_path: Path) -> None:
    preset = preset_of(tmp_path)
    changes = {"batch-size": 32, "validation-fraction": 0.0, "models": "cnn5, cnn1"}
    plan = plan_at(preset, changes=changes)
    counts = steps_a_round(plan.runs[0], plan.clients)
    # 1,797 digits, three quarters to train on, four clients: 337 each, 11 steps of 32.
    assert {step.model: count for step, count in counts.items()} == {"cnn5": 22, "cnn1": 22}
    seconds = {str(step): 0.5 for step in counts}
    assert seconds_of(plan, seconds) == 2 * 2 * 3 * 44 * 0.5  # methods, seeds, rounds
    assert seconds_of(plan, {}) is None
    assert [in_words(s) for s in (59.0, 119.0, 7300.0, 2e5)] == ["59 s", "2 min", "2 h", "2.3 d"]


def test_dry_run_measures_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "measured_step", lambda step, device: 0.25)
    words = ["reproduce", "fedre-main-cifar10-practical", "--scale", "cpu", "--dry-run"]
    assert main([*words, "--output-dir", str(tmp_path / "out"), "--seeds", "0"]) == 0
    printed = capsys.readouterr().out
    shape = "classification, 1x32x32 images, 10 classes, batch 32"
    assert f"one step of cnn5, {shape}: 0.25 s" in printed
    assert "about 25 min: steps of local training alone" in printed
    assert "data: digits\n" in printed
    assert not (tmp_path / "out").exists()


def test_a_step_is_measured() -> None:
    step = Step("cnn5", "classification", InputShape(1, 32, 10), 2)
    (seconds,) = estimate.measure([step, step]).values()
    assert 0 < seconds < 10


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["fedre-main-cifar10-practicl"], "did you mean fedre-main-cifar10-practical?"),
        (["fedre-main"], "presets that begin so: fedre-main-cifar10-pathological, "),
        (["fedre-nothing-at-all"], "there are fedre-communication-cifar100-practical, "),
        (["fedmrl-homo-k10-classes2"], "it is a run-config for `flwr run --run-config`"),
        (["fedre-toy"], "cannot be run here: the text does not say what the synthetic data are"),
        (["fedin-table-2", "--methods", "fedinn"], "did you mean fedin?"),
        (["fedin-table-2", "--scale", "cpu"], "the preset states no scale 'cpu'"),
        (["fedin-table-2", "--seeds", "a"], "--seeds = 'a': expected whole numbers"),
        (["fedin-table-1-svhn-iid", "--data-dir", "/nonexistent"], "data-dir = '/nonexistent'"),
        (["fedin-table-1-svhn-iid", "--data-dir", "/nonexistent"], "with --data-dir"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("claims", "claim", "'claim': unknown key; did you mean claims?"),
        ("best = 70", "bets = 70", "'bets' is no quantity; did you mean best?"),
        ("best = 70", 'best = "70"', "expected.fedy.best = '70': expected a number"),
        ("[expected.fedre]", "[expected.fedra]", "unknown method in expected; did you mean fedre?"),
        ("clients = 4", "", "missing: clients"),
        ('methods = ["local", "fedre"]', "", "give methods, or not-built"),
        ("[scale.cpu.settings]", "[scale.cpu.overrides.fedra]", "did you mean fedre?"),
        ('words = "two rounds"', "", "scale.cpu.words = None: expected a text"),
        ('table = "Table 9"', "", "paper.table = None: expected a text"),
        ("clients = 4", "clients = ", "cannot be read as a preset"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"fedx-table-9\.toml") as caught:
        preset_of(tmp_path, MINIMAL.replace(old, new))
    assert reason in str(caught.value)


def test_a_base_is_read_without_what_the_comparison_sets(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('method = "fedmrl"\nalpha = 0.5\n\n[fedmrl]\nd1 = 7\n')
    preset = preset_of(tmp_path, 'base = "base.toml"\n' + MINIMAL)
    settings = preset.scale("full").settings
    assert (settings["alpha"], settings["fedmrl.d1"], settings["num-rounds"]) == (0.5, 7, 3)
    assert "method" not in settings
    assert PRESETS.is_dir()
