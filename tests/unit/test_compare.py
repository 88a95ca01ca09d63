"""The comparison file, its plan, and the arithmetic of its table, on hand-made run directories."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compare import command as compare
from deploy.compare.cells import Spread
from deploy.compare.differences import Difference, differences, statement, tables
from deploy.compare.output import markdown, table_cells, write_outputs
from deploy.compare.page import page
from deploy.compare.plan import Plan, PlannedRun, make_plan, read_plan
from deploy.compare.progress import COMPLETE, NEW, PARTIAL, check_states, run_state, start_config
from deploy.compare.results import collect, read_result
from deploy.flower.text import toml_lines
from server_app.records.csv_files import HEADERS
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
    run: PlannedRun,
    accuracies: list[float],
    *,
    offsets: tuple[float, ...] = (-SPREAD / 2, SPREAD / 2),
    status: str = "completed",
    **facts: Any,
) -> None:
    """Write the files of a run of clients with 30 and, from the second on, 10 test examples.

    A client's accuracy is the given one plus its offset: client 0 is `SPREAD / 2` worse, client 1
    better. Training sends 5 scalars up and 7 down a client and round, evaluation 1000. Client k
    trains with k + 1 GFLOP in round 1 and 1 GFLOP more in each later round.
    """
    directory = run.directory
    directory.mkdir(parents=True)
    info = {"config": run.run.flat() | {"run-name": run.name}, "status": status, "clients": 2}
    (directory / "config.json").write_text(json.dumps(info | facts))
    rows: dict[str, list[tuple[Any, ...]]] = {"metrics": [], "traffic": [], "rounds": []}
    for number, mean in enumerate(accuracies, 1):
        for client, offset in enumerate(offsets):
            examples = 10 if client else 30
            rows["metrics"].append((number, client, "train", "flops", 1e9 * (client + number), 50))
            rows["metrics"].append(
                (number, client, "post", "accuracy", round(mean + offset, 9), examples)
            )
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


def test_seeds_share_a_split_or_have_their_own(tmp_path: Path) -> None:
    def splits(**changes: Any) -> set[tuple[int, int]]:
        return {(r.seed, r.run.partition_seed) for r in plan_of(tmp_path, **changes).runs}

    assert splits() == {(0, 0), (1, 0)}
    assert splits(split_per_seed=True, seeds=[3, 1]) == {(3, 3), (1, 1)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split_per_seed": "yes"}, "split-per-seed = 'yes': expected true or false"),
        (
            {"split_per_seed": True, "settings": {"partition-seed": 1}},
            "leave partition-seed out of all settings",
        ),
        (
            {
                "split_per_seed": True,
                "variants": [{"label": "x", "settings": {"partition-seed": 1}}],
            },
            "leave partition-seed out of all settings",
        ),
        ({"sedes": [1]}, "'sedes': unknown key; did you mean seeds?"),
        ({"methods": ["fedra"]}, "'fedra': unknown method; did you mean fedre?"),
        ({"settings": {"num-round": 1}}, "key in settings; did you mean num-rounds"),
        ({"settings": {"num-rounds": "3"}}, "num-rounds = '3': expected an integer"),
        ({"settings": {"seed": 1}}, "seed is set by the comparison itself"),
        ({"settings": {"models": "cnn99"}}, "cnn99"),
        ({"methods": [{"name": "fedre", "lable": "x"}]}, "did you mean label?"),
        ({"methods": [{"name": "fedre", "label": "a b"}]}, "label of a method = 'a b'"),
        ({"methods": ["fedre", "fedre"]}, "two runs would be named try-fedre-seed0"),
        ({"methods": "fedre"}, "methods = 'fedre': expected a list"),
        ({"methods": []}, "give at least one"),
        ({"variants": [{"label": "x", "settings": {"alpha": -1}}]}, "alpha = -1: expected"),
        ({"variants": [{"settings": {}}]}, "label of a variant = None"),
        ({"seeds": ["a"]}, "seed = 'a': expected an integer"),
        ({"seeds": ...}, "missing: seeds"),
        ({"clients": 0}, "clients = 0: expected an integer of at least 1"),
        ({"clients": True}, "clients = True"),
        ({"target_accuracy": 80}, "target-accuracy = 80"),
        ({"reference": "fedra"}, "'fedra': unknown label in reference; did you mean fedre?"),
        ({"reference": ["fedre"]}, "reference = ['fedre']: expected a text"),
        ({"output_dir": "here"}, "output-dir = 'here': expected an absolute path"),
        ({"differences": [["fedre", "lokal"]]}, "unknown label in differences; did you mean local"),
        ({"differences": [["x", "fedre"]]}, "'x': unknown label in differences; known are local, "),
        ({"differences": ["fedre"]}, "an item of differences = 'fedre': expected a list"),
        ({"differences": "fedre"}, "differences = 'fedre': expected a list"),
        ({"differences": [["fedre"]]}, "expected pairs of two different labels, not ['fedre']"),
        ({"differences": [["fedre", "fedre"]]}, "expected pairs of two different labels"),
        (
            {
                "methods": ["local", {"name": "fedre", "overrides": {"alpha": 9.0}}],
                "differences": [["fedre", "local"]],
            },
            "the clients of fedre and local have unlike data",
        ),
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
    methods = {m if isinstance(m, str) else m["name"] for m in content["methods"]}
    if missing := methods - set(method_names()):
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
    # 1 + 2 GFLOP in round 1, 2 + 3 in round 2, 3 + 4 in round 3.
    assert values["flops_to_target"] == 8e9
    assert values["flops_per_round"] == 7e9
    values = read_result(run.directory, 0.9).values
    assert values["rounds_to_target"] == values["flops_to_target"] == "not reached"
    assert values["flops_per_round"] == 7e9


def test_an_accuracy_before_training_counts_the_rounds_before(tmp_path: Path) -> None:
    run = plan_of(tmp_path).runs[0]
    write_run(run, [0.1, 0.7, 0.8])
    path = run.directory / "metrics.csv"
    path.write_text(path.read_text().replace("post", "pre"))
    values = read_result(run.directory, 0.5).values
    assert (values["rounds_to_target"], values["uplink_to_target"]) == (1, 10)
    assert values["flops_to_target"] == 3e9


def test_operations_that_were_not_counted_are_named_so(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods=["local"], seeds=[0, 1, 2])
    for run, accuracies in zip(plan.runs, ([0.8], [0.8], [0.1]), strict=True):
        write_run(run, accuracies)
    path = plan.runs[0].directory / "metrics.csv"
    path.write_text(path.read_text().replace("flops", "loss"))
    values = read_result(path.parent, 0.5).values
    assert values["flops_to_target"] == values["flops_per_round"] == "not recorded"
    assert values["uplink_to_target"] == 10
    (row,) = collect(plan, dict.fromkeys((run.name for run in plan.runs), COMPLETE))
    assert row.cells["flops_per_round"] == "not recorded in 1 of 3 seeds"
    assert row.cells["flops_to_target"] == (
        "not recorded in 1 of 3 seeds, not reached by 1 of 3 seeds"
    )
    assert row.cells["uplink_to_target"] == "not reached by 1 of 3 seeds"


def test_operations_are_written_with_prefixes_or_words(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods=["local", "fedre"], seeds=[0])
    write_run(plan.runs[0], [0.3, 0.6, 0.8])
    write_run(plan.runs[1], [0.1, 0.1, 0.2])
    rows = write_outputs(plan, check_states(plan), {})
    heads, (local, fedre) = table_cells(plan, rows)
    to_target, per_round = heads.index("training FLOPs to target"), heads.index("FLOPs/round")
    # The weighted mean of round 2 is 0.6 - SPREAD / 4, above the target.
    assert (local[to_target], local[per_round]) == ("8 G", "7 G")
    assert (fedre[to_target], fedre[per_round]) == ("not reached", "7 G")
    with (tmp_path / "try.csv").open(newline="") as file:
        found = [(row["flops_to_target"], row["flops_per_round"]) for row in csv.DictReader(file)]
    assert found == [("8000000000.0", "7000000000.0"), ("not reached", "7000000000.0")]
    html = (tmp_path / "try.html").read_text()
    assert '<th class="">training FLOPs to target</th>' in html
    assert '<td class="">8 G</td>' in html


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
    assert [x for x, _ in local.curves["accuracy"]] == [1, 2, 3]
    assert local.curves["accuracy"][1][1].mean == pytest.approx(0.45 - SPREAD / 4)
    assert fedre.complete == 0
    assert set(fedre.cells.values()) == {"not run"}
    assert fedre.curves == {}


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


def test_what_a_row_rests_on_stands_in_its_last_column(tmp_path: Path) -> None:
    """40 test examples in all; with seed 1, client 1 is missing at the end of a run of 2 rounds."""
    plan = plan_of(tmp_path, methods=["local"])
    for run, accuracies in zip(plan.runs, ([0.3, 0.6, 0.8], [0.3, 0.6]), strict=True):
        write_run(run, accuracies)
    path = plan.runs[1].directory / "metrics.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("2,1,post")]
    path.write_text("\n".join(lines) + "\n")
    summary = json.loads((path.parent / "summary.json").read_text())
    summary["accuracy"] |= {"best_round": 1, "best_phase": "post"}
    (path.parent / "summary.json").write_text(json.dumps(summary))
    rows = write_outputs(plan, check_states(plan), {})
    heads, body = table_cells(plan, rows)
    words = (
        "40 test examples in all, one is 2.5 points (seed 0); not in the last evaluation: client "
        "1; 30 test examples in all, one is 3.3 points; 2 of 3 rounds (seed 1); best over 2 "
        "clients, not the final one's (seed 1)"
    )
    assert (heads[-2:], body[0][-2:]) == (["seeds", "rests on"], ["2 of 2", words])
    assert f"| {words} |" in (tmp_path / "try.md").read_text()
    with (tmp_path / "try.csv").open(newline="") as file:
        assert [row["rests_on"] for row in csv.DictReader(file)] == [words]
    html = (tmp_path / "try.html").read_text()
    assert '<p class="note">rests on: local: 40 test examples in all' in html
    assert '<td class="left reason">40 test examples in all' in html


def test_hostile_text_on_the_page_is_escaped(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, differences=[["fedre", "local"]])
    for run in plan.runs:
        write_run(run, [0.3, 0.6, 0.8])
    evil = "\"'><script>x</script>{{ 7 * 191 }}"
    rows = [dataclasses.replace(row, label=evil) for row in collect(plan, check_states(plan))]
    found = differences(plan, collect(plan, check_states(plan)))
    found = [dataclasses.replace(found[0], first=evil, second=evil)]
    cells = [[evil, evil]]
    states = dict.fromkeys((run.name for run in plan.runs), evil)
    html = page(plan, states, states, rows, [evil, evil], cells, [evil], found)
    assert "<script" not in html
    assert "1337" not in html
    assert html.count("{{ 7 * 191 }}") > 10


# -- the reference ---------------------------------------------------------------------------------

#: With these, the weighted mean reaches 0.5 in the round with the high value.
REACHED = {1: [0.7, 0.7, 0.7, 0.7], 2: [0.1, 0.7, 0.7, 0.7], 3: [0.1, 0.1, 0.7, 0.7],
           4: [0.1, 0.1, 0.1, 0.7], None: [0.1, 0.1, 0.1, 0.1]}  # fmt: skip


def with_reference(tmp_path: Path, rounds: dict[str, int | None], **changes: Any) -> Plan:
    """Write runs by the end of their name that reach the target in these rounds."""
    plan = plan_of(tmp_path, reference="fedre", settings={"num-rounds": 4}, **changes)
    for run in plan.runs:
        end = run.name.removeprefix("try-")
        if end in rounds:
            write_run(run, REACHED[rounds[end]])
    return plan


def ratios(plan: Plan) -> list[Any]:
    rows = collect(plan, check_states(plan))
    return [row.cells["rounds_over_reference"] for row in rows]


def test_rounds_are_divided_by_the_references_seed_by_seed(tmp_path: Path) -> None:
    """4 / 2 and 1 / 4, so 1.125 on average, and not 2.5 / 3."""
    rounds = {"local-seed0": 4, "fedre-seed0": 2, "local-seed1": 1, "fedre-seed1": 4}
    plan = with_reference(tmp_path, rounds)
    local, fedre = ratios(plan)
    assert local.mean == 1.125
    assert local.std == pytest.approx(1.75 / math.sqrt(2))
    assert (fedre.mean, fedre.std) == (1.0, 0.0)
    rows = write_outputs(plan, check_states(plan), {})
    heads, body = table_cells(plan, rows)
    at = heads.index("rounds / fedre")
    assert heads[at - 1] == "rounds to target"
    assert [line[at] for line in body] == ["1.12 ± 1.24", "1.00 ± 0.00"]
    assert "| rounds / fedre |" in (tmp_path / "try.md").read_text()
    assert "rounds to the target over those of fedre" in (tmp_path / "try.md").read_text()
    html = (tmp_path / "try.html").read_text()
    assert '<th class="">rounds / fedre</th>' in html
    assert '<td class="">1.12 ± 1.24</td>' in html
    with (tmp_path / "try.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["rounds_over_reference"]) == 1.125
    assert second["rounds_over_reference_std"] == "0.0"


def test_no_ratio_where_either_never_reached_the_target(tmp_path: Path) -> None:
    plan = with_reference(
        tmp_path,
        {
            "a-local-seed0": None, "a-fedre-seed0": 2, "a-local-seed1": 1, "a-fedre-seed1": 1,
            "b-local-seed0": 2, "b-fedre-seed0": None, "b-local-seed1": 1, "b-fedre-seed1": 1,
        },
        variants=[{"label": "a"}, {"label": "b"}],
    )  # fmt: skip
    a_local, a_fedre, b_local, b_fedre = ratios(plan)
    assert (a_local, b_local, b_fedre) == ("", "", "")
    assert (a_fedre.mean, a_fedre.std) == (1.0, 0.0)
    write_outputs(plan, check_states(plan), {})
    with (tmp_path / "try.csv").open(newline="") as file:
        assert [row["rounds_over_reference"] for row in csv.DictReader(file)] == ["", "1.0", "", ""]


def test_a_ratio_rests_on_the_seeds_complete_for_both(tmp_path: Path) -> None:
    plan = with_reference(tmp_path, {"local-seed0": 4, "fedre-seed1": 2})
    assert ratios(plan) == ["", Spread(1.0, None)]
    write_run(plan.runs[1], REACHED[2])
    assert ratios(plan) == [Spread(2.0, None), Spread(1.0, 0.0)]
    assert ratios(with_reference(tmp_path / "b", {"fedre-seed0": 2}))[0] == "not run"


def test_a_reference_that_needed_no_training_gives_no_ratio(tmp_path: Path) -> None:
    plan = with_reference(tmp_path, {"local-seed0": 2, "fedre-seed0": 1}, seeds=[0])
    path = plan.runs[1].directory / "metrics.csv"
    path.write_text(path.read_text().replace("post", "pre"))
    assert ratios(plan) == ["", ""]


def test_without_a_reference_there_is_no_such_column(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    write_run(plan.runs[0], [0.3, 0.6, 0.8])
    rows = write_outputs(plan, check_states(plan), {})
    assert not any("/ " in head for head in table_cells(plan, rows)[0])
    assert "reference" not in (tmp_path / "try.csv").read_text()


# -- differences by client -----------------------------------------------------------------------


def differing(tmp_path: Path, **changes: Any) -> tuple[Plan, Difference]:
    """Three clients, two seeds: fedre minus local is 0.2, -0.1, 0 and then 0.1, -0.2, 0."""
    pairs = {"differences": [["fedre", "local"]], "clients": 3, "seeds": [0, 1]}
    plan = plan_of(tmp_path, **pairs | changes)
    by_name = {run.name: run for run in plan.runs}
    write_run(by_name["try-local-seed0"], [0.1, 0.5], offsets=(0.0, 0.3, 0.1), clients=3)
    write_run(by_name["try-fedre-seed0"], [0.1, 0.5], offsets=(0.2, 0.2, 0.1), clients=3)
    write_run(by_name["try-local-seed1"], [0.9, 0.6], offsets=(0.0, 0.3, 0.1), clients=3)
    write_run(by_name["try-fedre-seed1"], [0.1, 0.6], offsets=(0.1, 0.1, 0.1), clients=3)
    (found,) = differences(plan, collect(plan, complete_of(plan)))
    return plan, found


def complete_of(plan: Plan) -> dict[str, str]:
    return {run.name: COMPLETE for run in plan.runs if (run.directory / "summary.json").is_file()}


def test_final_accuracies_are_subtracted_client_by_client(tmp_path: Path) -> None:
    _, found = differing(tmp_path)
    assert (found.shared, found.planned, found.missing) == (2, 2, [])
    rows = [(row.client, row.first, row.second, row.seeds) for row in found.clients]
    assert rows == [
        (0, pytest.approx(0.7), pytest.approx(0.55), 2),
        (1, pytest.approx(0.7), pytest.approx(0.85), 2),
        (2, pytest.approx(0.65), pytest.approx(0.65), 2),
    ]
    means = [row.difference.mean for row in found.clients]
    assert means == pytest.approx([0.15, -0.15, 0.0])
    stds = [row.difference.std for row in found.clients]
    assert stds == pytest.approx([math.sqrt(0.005), math.sqrt(0.005), 0.0])
    assert statement(found) == (
        "fedre is better on 1 of 3 clients, equal on 1, mean difference 0.00 points"
    )
    lines = tables([found]).splitlines()
    assert "### fedre minus local" in lines
    assert "| client | fedre % | local % | difference, points | seeds |" in lines
    assert lines[-3:] == [
        "| 0 | 70.00 | 55.00 | +15.00 ± 7.07 | 2 of 2 |",
        "| 1 | 70.00 | 85.00 | -15.00 ± 7.07 | 2 of 2 |",
        "| 2 | 65.00 | 65.00 | 0.00 ± 0.00 | 2 of 2 |",
    ]


def test_only_seeds_that_both_have_complete_count(tmp_path: Path) -> None:
    plan, found = differing(tmp_path, seeds=[0, 1, 2])
    write_run(plan.runs[-1], [0.9, 0.9], offsets=(0.1, 0.1, 0.1), clients=3)
    (again,) = differences(plan, collect(plan, complete_of(plan)))
    assert again.complete == (3, 2)
    assert again.clients == found.clients
    assert statement(again).endswith("mean difference 0.00 points (2 of 3 seeds)")


def test_the_closing_evaluation_is_the_final_one(tmp_path: Path) -> None:
    plan, _ = differing(tmp_path)
    for run in plan.runs:
        with (run.directory / "metrics.csv").open("a") as file:
            value = 0.75 if run.label == "fedre" else 0.5
            file.writelines(f"2,{client},final,accuracy,{value},10\n" for client in range(2))
    (found,) = differences(plan, collect(plan, complete_of(plan)))
    assert [(row.client, row.difference.mean) for row in found.clients] == [(0, 0.25), (1, 0.25)]
    assert found.missing == [2]
    assert statement(found) == (
        "fedre is better on 2 of 2 clients, mean difference +25.00 points; not evaluated: client 2"
    )


def test_without_a_seed_complete_for_both_there_is_no_number(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, differences=[["fedre", "local"]])
    by_name = {run.name: run for run in plan.runs}
    write_run(by_name["try-fedre-seed0"], [0.5])
    write_run(by_name["try-local-seed1"], [0.5])
    write_run(by_name["try-local-seed0"], [0.5], status="running")
    rows = write_outputs(plan, complete_of(plan), {})
    (found,) = differences(plan, rows)
    assert (found.shared, found.clients, found.missing) == (0, [], [])
    words = "not complete: no seed is complete for both (fedre 1 of 2, local 1 of 2)"
    assert statement(found) == words
    text = (tmp_path / "try.md").read_text()
    assert text.endswith(f"### fedre minus local\n\n{words}.\n")
    html = (tmp_path / "try.html").read_text()
    assert f'<h3>fedre minus local</h3></figcaption><p class="void">{words}</p>' in html


def test_bars_are_sorted_and_coloured_by_the_better_method(tmp_path: Path) -> None:
    plan, _ = differing(tmp_path)
    write_outputs(plan, complete_of(plan), {})
    html = (tmp_path / "try.html").read_text()
    section = html.split("<h2>Differences by client</h2>")[1].split("<h2>")[0]
    pattern = r'<rect class="bar (\w+)" x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)">'
    bars = re.findall(pattern + r"<title>client (\d): (\S+) points", section)
    # local is the first method of the file, so its colour is q0.
    assert [(bar[0], bar[4], bar[5]) for bar in bars] == [
        ("q1", "0", "+15.00"), ("equal", "2", "0.00"), ("q0", "1", "-15.00"),
    ]  # fmt: skip
    places, tops, heights = (
        [float(bar[index]) for bar in bars] for index in (1, 2, 3)
    )  # fmt: skip
    assert places == sorted(places)
    zero = float(re.findall(r'class="zero" d="M\d+ ([\d.]+)H', section)[0])
    assert tops[0] + heights[0] == pytest.approx(zero, abs=0.11)
    assert tops[2] == pytest.approx(zero, abs=0.11)
    assert heights[0] == pytest.approx(heights[2], abs=0.11)
    assert "fedre is better on 1 of 3 clients, equal on 1, mean difference 0.00 points." in section


def test_every_variant_has_its_own_differences(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        differences=[["fedre", "local"], ["local", "fedre"], ["fedre", "local"]],
        variants=[{"label": "few"}, {"label": "many"}],
        seeds=[0],
    )
    for run in plan.runs:
        write_run(run, [0.5 if run.label == "fedre" or run.variant == "many" else 0.25])
    found = differences(plan, collect(plan, complete_of(plan)))
    assert [(d.title, *(row.difference.mean for row in d.clients)) for d in found] == [
        ("fedre minus local, few", 0.25, 0.25),
        ("fedre minus local, many", 0.0, 0.0),
        ("local minus fedre, few", -0.25, -0.25),
        ("local minus fedre, many", 0.0, 0.0),
    ]
    assert found[0].clients[0].difference.std is None


def test_without_the_key_there_are_no_differences(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    write_outputs(plan, {}, {})
    assert tables(differences(plan, collect(plan, {}))) == ""
    assert "Differences" not in (tmp_path / "try.html").read_text()


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


class EveryRunWorks:
    """Stands for Flower: what it is told to run is complete at once."""

    alive = True
    details = "done"
    log = ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __enter__(self) -> EveryRunWorks:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, app: Path, config: dict[str, Any], **_: Any) -> EveryRunWorks:
        name = config["run-name"] or config["resume"]
        (run,) = (run for run in self.plan.runs if run.name == name)
        shutil.rmtree(run.directory, ignore_errors=True)
        write_run(run, [0.3, 0.6, 0.8])
        return self


def test_runs_are_counted_among_all_and_resumed_ones_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(content(tmp_path)))
    plan = read_plan(path)
    write_run(plan.runs[0], [0.3, 0.6, 0.8])
    write_run(plan.runs[2], [0.3, 0.6], status="running")
    monkeypatch.setattr(compare, "FlowerSimulation", lambda: EveryRunWorks(plan))
    monkeypatch.setattr("sys.argv", ["compare", str(path)])
    assert compare.main() == 0
    said = capsys.readouterr().out
    assert "try: 4 runs, 1 already complete, 1 to be resumed\n" in said
    assert [line for line in said.splitlines() if line.startswith("[")] == [
        "[2/4] try-fedre-seed0: starts",
        "[3/4] try-local-seed1: resumes after round 2",
        "[4/4] try-fedre-seed1: starts",
    ]
