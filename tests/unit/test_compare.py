"""The comparison file, its plan, and the arithmetic of its table, on hand-made run directories."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from server_app.compare import command as compare
from server_app.compare.output import markdown, table_cells, write_outputs
from server_app.compare.plan import Plan, PlannedRun, make_plan, read_plan
from server_app.compare.results import collect, read_result
from server_app.compare.state import COMPLETE, NEW, PARTIAL, check_states, run_state, start_config
from server_app.flower.text import toml_lines
from server_app.recorder import HEADERS
from strategies.base.method import method_names
from strategies.base.options import ConfigError

REPOSITORY = Path(__file__).parents[2]
SPREAD = 0.25


def content(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    base = {
        "name": "try",
        "output-dir": str(tmp_path),
        "clients": 2,
        "methods": ["local", "fedre"],
        "seeds": [0, 1],
        "settings": {"num-rounds": 3},
        "target-accuracy": 0.5,
    }
    merged = base | {key.replace("_", "-"): value for key, value in changes.items()}
    return {key: value for key, value in merged.items() if value is not ...}


def write_run(
    run: PlannedRun, accuracies: list[float], *, status: str = "completed", **facts: Any
) -> None:
    """Write the files of a run of two clients with 30 and 10 test examples.

    Client 0 is `SPREAD / 2` worse than the given mean, client 1 better; training sends 5 scalars
    up and 7 down a client and round, evaluation 1000.
    """
    directory = run.directory
    directory.mkdir(parents=True)
    info = {"config": run.run.flat() | {"run-name": run.name}, "status": status, "clients": 2}
    (directory / "config.json").write_text(json.dumps(info | facts))
    rows: dict[str, list[tuple[Any, ...]]] = {"metrics": [], "traffic": [], "rounds": []}
    for number, mean in enumerate(accuracies, 1):
        for client, examples in ((0, 30), (1, 10)):
            value = mean + (SPREAD / 2 if client else -SPREAD / 2)
            rows["metrics"].append((number, client, "post", "accuracy", value, examples))
            rows["traffic"].append((number, client, "uplink", 1, 5, 20, "train"))
            rows["traffic"].append((number, client, "downlink", 1, 7, 28, "train"))
            rows["traffic"].append((number, client, "downlink", 1, 1000, 4000, "evaluate"))
        rows["rounds"].append((number, 2.0, 1.0, 2, 0, 2, mean, "", 1, False))
    for name, lines in rows.items():
        with (directory / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEADERS[f"{name}.csv"], *lines])
    if status == "completed":
        last = accuracies[-1]
        summary = {
            "accuracy": {
                "final": last, "best": max(accuracies), "mean_over_clients": last,
                "std_over_clients": SPREAD / 2, "worst_client": last - SPREAD / 2,
            },
            "traffic": {"uplink_scalars_per_round": 10, "downlink_scalars_per_round": 14},
            "time": {"round_s_median": 2.0, "total_s": 2.0 * len(accuracies)},
        }  # fmt: skip
        (directory / "summary.json").write_text(json.dumps(summary))


def plan_of(tmp_path: Path, **changes: Any) -> Plan:
    return make_plan(content(tmp_path, **changes))


# -- the file ----------------------------------------------------------------------------------


def test_runs_are_named_after_variant_label_and_seed(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        methods=[
            "local",
            {"name": "fedre", "label": "fixed", "overrides": {"fedre.resample": False}},
        ],
        variants=[
            {"label": "few", "settings": {"partition": "pathological", "lr": 0.5}},
            {"label": "many"},
        ],
        settings={"num-rounds": 4, "lr": 0.1},
    )  # fmt: skip
    assert [run.name for run in plan.runs][:5] == [
        "try-few-local-seed0", "try-few-fixed-seed0",
        "try-many-local-seed0", "try-many-fixed-seed0",
        "try-few-local-seed1",
    ]  # fmt: skip
    fixed = plan.runs[1]
    assert (fixed.run.lr, fixed.run.partition, fixed.run.num_rounds) == (0.5, "pathological", 4)
    assert fixed.run.method_config.resample is False
    assert plan.runs[3].run.lr == 0.1
    assert fixed.run.min_clients == plan.clients == 2
    assert fixed.directory == tmp_path / fixed.name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sedes": [1]}, "'sedes': unknown key; did you mean seeds?"),
        ({"methods": ["fedra"]}, "'fedra': unknown method; did you mean fedre?"),
        ({"settings": {"num-round": 1}}, "key in settings; did you mean num-rounds"),
        ({"settings": {"num-rounds": "3"}}, "num-rounds = '3': accepted is an integer"),
        ({"settings": {"seed": 1}}, "seed is set by the comparison itself"),
        ({"settings": {"models": "cnn99"}}, "cnn99"),
        ({"methods": [{"name": "fedre", "lable": "x"}]}, "did you mean label?"),
        ({"methods": [{"name": "fedre", "label": "a b"}]}, "label of a method = 'a b'"),
        ({"methods": ["fedre", "fedre"]}, "two runs would be named try-fedre-seed0"),
        ({"methods": "fedre"}, "methods = 'fedre': accepted is a list"),
        ({"methods": []}, "give at least one"),
        ({"variants": [{"label": "x", "settings": {"alpha": -1}}]}, "alpha = -1: accepted is"),
        ({"variants": [{"settings": {}}]}, "label of a variant = None"),
        ({"seeds": ["a"]}, "seed = 'a': accepted is an integer"),
        ({"seeds": ...}, "missing: seeds"),
        ({"clients": 0}, "clients = 0: accepted is an integer of at least 1"),
        ({"clients": True}, "clients = True"),
        ({"target_accuracy": 80}, "target-accuracy = 80"),
        ({"output_dir": "here"}, "output-dir = 'here': accepted is an absolute path"),
    ],
)
def test_what_is_wrong_is_named_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, **changes)
    assert words in str(caught.value)


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: [1")
    with pytest.raises(ConfigError, match=r"c\.yaml: cannot be read as YAML"):
        read_plan(path)
    path.write_text("!!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match=r"c\.yaml: cannot be read as YAML"):
        read_plan(path)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "deploy/comparisons").glob("*.yaml")))
def test_the_examples_are_valid(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    if missing := set(content["methods"]) - set(method_names()):
        pytest.skip(f"not in this version: {missing}")
    plan = read_plan(path)
    assert plan.name == path.stem
    variants = len(content.get("variants", [0]))
    assert len(plan.runs) == len(content["methods"]) * len(content["seeds"]) * variants


def test_values_become_toml() -> None:
    import tomllib

    values = {"a.b": True, "c": 1e-05, "d": 'say "x" \\ ü', "e": 3}
    assert tomllib.loads(toml_lines(values)) == {"a": {"b": True}, **dict(list(values.items())[1:])}
    with pytest.raises(ValueError, match="c d"):
        toml_lines({"c d": 1})


# -- what is there already ---------------------------------------------------------------------


def test_complete_runs_are_skipped_and_cut_off_ones_resumed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    whole, cut, fresh, _ = plan.runs
    write_run(whole, [0.1, 0.2, 0.3])
    write_run(cut, [0.1], status="running")
    states = check_states(plan)
    assert [states[run.name] for run in plan.runs] == [COMPLETE, PARTIAL, NEW, NEW]
    resumed = start_config(cut, states[cut.name])
    assert (resumed["resume"], resumed["run-name"]) == (cut.name, "")
    assert start_config(fresh, NEW)["run-name"] == fresh.name


def test_more_rounds_resume_a_complete_run_and_fewer_are_refused(tmp_path: Path) -> None:
    write_run(plan_of(tmp_path).runs[0], [0.1, 0.2, 0.3])
    longer = plan_of(tmp_path, settings={"num-rounds": 5}).runs[0]
    assert run_state(longer, 2) == PARTIAL
    shorter = plan_of(tmp_path, settings={"num-rounds": 2}).runs[0]
    with pytest.raises(ConfigError, match="num-rounds: 3 are finished, now 2"):
        run_state(shorter, 2)


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    for run in plan_of(tmp_path).runs[:2]:
        write_run(run, [0.1, 0.2, 0.3])
    changed = plan_of(tmp_path, clients=3, settings={"num-rounds": 3, "lr": 0.5, "device": "cpu"})
    with pytest.raises(ConfigError) as caught:
        check_states(changed)
    for words in ("try-local-seed0: lr: was 'auto', now 0.5", "clients: was 2, now 3", "try-fedre"):
        assert words in str(caught.value)
    assert "device" not in str(caught.value)


def test_an_option_of_a_later_version_at_its_default_is_no_change(tmp_path: Path) -> None:
    run = plan_of(tmp_path).runs[0]
    write_run(run, [0.1, 0.2, 0.3])
    path = run.directory / "config.json"
    info = json.loads(path.read_text())
    del info["config"]["amp"]
    path.write_text(json.dumps(info))
    assert run_state(run, 2) == COMPLETE


def test_what_a_killed_start_left_is_removed(tmp_path: Path) -> None:
    run = plan_of(tmp_path).runs[0]
    run.directory.mkdir(parents=True)
    (run.directory / "run.lock").touch()
    start_config(run, NEW)
    assert not run.directory.exists()
    run.directory.mkdir()
    (run.directory / "precious.txt").touch()
    start_config(run, NEW)
    assert (run.directory / "precious.txt").exists()


# -- the table ---------------------------------------------------------------------------------


def test_a_run_gives_rounds_and_scalars_to_the_target(tmp_path: Path) -> None:
    run = plan_of(tmp_path).runs[0]
    # Client 0 counts three times: the weighted mean is SPREAD / 4 below the plain one.
    write_run(run, [0.5, 0.5 + SPREAD / 4, 0.7])
    values = read_result(run.directory, 0.5).values
    assert values["rounds_to_target"] == 2
    assert values["uplink_to_target"] == 2 * 2 * 5
    assert values["downlink_to_target"] == 2 * 2 * 7
    assert read_result(run.directory, 0.9).values["rounds_to_target"] is None


def test_an_accuracy_before_training_counts_the_rounds_before(tmp_path: Path) -> None:
    run = plan_of(tmp_path).runs[0]
    write_run(run, [0.1, 0.7, 0.8])
    path = run.directory / "metrics.csv"
    path.write_text(path.read_text().replace("post", "pre"))
    values = read_result(run.directory, 0.5).values
    assert (values["rounds_to_target"], values["uplink_to_target"]) == (1, 10)


def test_seeds_are_averaged_and_words_stand_for_what_is_not_there(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0, 1, 2])
    by_name = {run.name: run for run in plan.runs}
    write_run(by_name["try-local-seed0"], [0.2, 0.7, 0.7])
    write_run(by_name["try-local-seed1"], [0.2, 0.2, 0.3])
    write_run(by_name["try-local-seed2"], [0.2], status="failed")
    local, fedre = collect(plan, check_states(plan))
    assert (local.complete, local.planned) == (2, 3)
    final = local.cells["final"]
    assert not isinstance(final, str)
    assert final.mean == pytest.approx(0.5)
    assert final.std == pytest.approx(math.sqrt(0.08))
    assert local.cells["rounds_to_target"] == "not reached by 1 of 2 seeds"
    assert [x for x, _ in local.curve] == [1, 2, 3]
    assert local.curve[1][1].mean == pytest.approx(0.45 - SPREAD / 4)
    assert fedre.complete == 0
    assert set(fedre.cells.values()) == {"not run"}
    assert fedre.curve == []


def test_a_run_that_never_evaluated_says_so(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods=["local"], seeds=[0])
    write_run(plan.runs[0], [0.2])
    path = plan.runs[0].directory / "summary.json"
    summary = json.loads(path.read_text())
    summary["accuracy"] = dict.fromkeys(summary["accuracy"])
    path.write_text(json.dumps(summary))
    (row,) = collect(plan, {plan.runs[0].name: COMPLETE})
    assert row.cells["final"] == row.cells["worst_client"] == "not evaluated"
    _, body = table_cells(plan, [row])
    assert "not evaluated" in body[0]


def test_table_and_page_are_written(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for run in plan.runs[:3]:
        write_run(run, [0.3, 0.6, 0.8])
    rows = write_outputs(plan, check_states(plan), {plan.runs[3].name: "a <reason>"})
    text = markdown(plan, *table_cells(plan, rows))
    assert (tmp_path / "try.md").read_text() == text
    assert "| local | 80.00 ± 0.00 | 80.00 ± 0.00 |" in text
    assert "| 2 of 2 |" in text
    assert "| 1 of 2 |" in text
    with (tmp_path / "try.csv").open(newline="") as file:
        local, fedre = csv.DictReader(file)
    assert float(local["final"]) == pytest.approx(0.8)
    assert (fedre["final_std"], fedre["seeds_complete"]) == ("", "1")
    assert float(local["uplink_to_target"]) == 20
    html = (tmp_path / "try.html").read_text()
    assert "3 of 4 runs complete" in html
    assert "a &lt;reason&gt;" in html
    assert "fedre (1 of 2 seeds)" in html
    assert not any(word in html for word in ("http://", "https://", "<script", "nan"))
    assert not list(tmp_path.glob("*.partial"))


def test_without_a_target_its_columns_are_gone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, target_accuracy=...)
    write_run(plan.runs[0], [0.3, 0.6, 0.8])
    heads, body = table_cells(plan, collect(plan, check_states(plan)))
    assert not any("target" in head for head in heads)
    assert len(body[0]) == len(heads)


def test_a_second_start_of_a_whole_comparison_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("a SuperLink was started")

    monkeypatch.setattr(compare, "FlowerSimulation", refuse)
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(content(tmp_path)))
    for run in read_plan(path).runs:
        write_run(run, [0.3, 0.6, 0.8])
    monkeypatch.setattr("sys.argv", ["compare", str(path)])
    assert compare.main() == 0
    assert "4 runs, 4 already complete" in capsys.readouterr().out
    path.write_text(yaml.safe_dump(content(tmp_path, settings={"num-rounds": 3, "lr": 0.5})))
    assert compare.main() == 2
    assert "lr: was 'auto', now 0.5" in capsys.readouterr().err
