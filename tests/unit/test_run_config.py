"""The run-config: every key is checked before any data is loaded."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from strategies.base import method as registry
from strategies.base.method import Method, get_method, method_names
from strategies.base.options import ConfigError
from strategies.base.parsing import (
    default_run_config,
    parse_run_config,
    without_other_methods,
)
from strategies.base.run_config import RunConfig

ROOT = Path(__file__).parents[2]


def refused(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_run_config(values)
    text = str(caught.value)
    assert "\n" not in text
    return text


# For every key: values of a wrong type or out of range, and what the error must say is expected.
REFUSED: dict[str, tuple[list[Any], str]] = {
    "method": (["fedfomo", "FedRE", ""], "one of .*fedre"),
    "method-options": ([1, None, True, "weight", "weight=", "weight=1"], "pairs key=value"),
    "schedule": ([1, None, "uniform", "a:b:c"], "module:factory"),
    "dataset": (["mnist", 1, ""], "one of digits, fashion-mnist"),
    "data-dir": ([1, None, True], "a text"),
    "image-size": ([-1, 4096, 32.0, True, "32"], "an integer of at least 0 and at most 1024"),
    "label-column": ([1, None, True], "a name in the header, or a number from 1"),
    "image-column": ([2, None, True], "a column's name"),
    "data-config": ([2, None], "a configuration's name"),
    "data-split": ([2, None], "names of splits"),
    "text-column": ([2, None, True], "a name in the header, or a number from 1"),
    "subset": ([0, 1.5, -1, "1", math.nan, True], "a number above 0 and at most 1"),
    "partition": (["dirichlet ", 0], "one of dirichlet, pathological, class-shares, iid"),
    "alpha": ([-1, 0, math.inf, math.nan, "0.1", True], "a number above 0"),
    "classes-per-client": ([0, -2, 2.0, True], "an integer of at least 1"),
    "min-examples": ([-1, 1.0, "1", False], "an integer of at least 0"),
    "size-sigma": ([-0.1, 5.1, "1", math.nan, True], "a number of at least 0 and at most 5"),
    "partition-seed": ([-1, 0.5, "0"], "an integer of at least 0"),
    "test-split": (["local", 1], "one of personal, global"),
    "validation-fraction": ([-0.1, 1, "0", math.nan], "a number of at least 0 and at most 0.9"),
    "models": ([1, ["cnn5"]], "a text"),
    "code-dir": (["nets", "./nets", 1], "an absolute path"),
    "feature-dim": ([0, 512.0, "512", True], "an integer of at least 1"),
    "initial-weights": (["same", True], "one of own, shared"),
    "lora-rank": ([-1, 16.0, True], "an integer of at least 0"),
    "tasks": ([1, None, "singing", "text@nowhere", "classification[3]"], "a group of tasks"),
    "public-dataset": (["mnist", 1, "hf:"], "one of digits, fashion-mnist, .* or hf:ORG/NAME"),
    "public-size": ([1, 5e3, "10"], "an integer of at least 2"),
    "public-overlap": (["some", True], "one of none, allowed"),
    "num-rounds": ([0, -1, 1.5, "10", True], "an integer of at least 1"),
    "sample-fraction": ([5.0, 0, -0.1, "1.0", True], "a number above 0 and at most 1"),
    "local-epochs": ([0, 1.0, True], "an integer of at least 1"),
    "batch-size": ([0, 32.0, True], "an integer of at least 1"),
    "augment": (["flip", 1], "one of none, crop-flip"),
    "optimizer": (["rmsprop", 1], "one of auto, sgd, adam, adamw"),
    "lr": ([0, -0.1, "0.1", math.inf, True], 'a number above 0 or "auto"'),
    "momentum": ([-0.1, 1.1, "none", True], "a number of at least 0 and at most 1"),
    "weight-decay": ([-1e-9, math.nan, "0"], "a number of at least 0"),
    "lr-schedule": (["linear", 1], "one of constant, cosine, step, exponential"),
    "warmup-rounds": ([-1, 1.0, True], "an integer of at least 0"),
    "lr-decay": ([0, 1.1, "0.5", True], 'a number above 0 and at most 1 or "auto"'),
    "lr-step-rounds": ([0, 2.0, True], "an integer of at least 1"),
    "keep-optimizer": ([1, "true", None], "true or false"),
    "evaluate-every": ([0, 1.0, True], "an integer of at least 1"),
    "evaluate-when": (["never", 1], "one of auto, pre, post, both"),
    "evaluate-untrained": ([1, "true", None], "true or false"),
    "seed": ([-1, 1.0, True, "0"], "an integer of at least 0"),
    "device": (["gpu", "cuda:", "cuda:x", "CPU", "mps", ""], "auto, cpu, cuda or cuda:N"),
    "amp": (["on", "fp16", True], "one of off, bf16"),
    "output-dir": (["runs", "./runs", ""], "an absolute path or one that starts with ~"),
    "run-name": (["a/b", "..", ".hidden", "a b", "x" * 101, "a\n"], "a name of letters"),
    "resume": (["a/b", "../x", "ä"], "a name of letters"),
    "resume-round": ([-1, 1.0, True, "1"], "an integer of at least 0"),
    "partition-options": ([1, True], "a text"),
    "tracker": (["tensorbord", "wandb, wandb", 1], "any of tensorboard, wandb, mlflow"),
    "report": ([1, "false", None], "true or false"),
    "local-run": (["a/b", "../x", "ä"], "a name of letters"),
    "keep-states": (["false", 0], "true or false"),
    "keep-payloads": ([-1, "1"], "an integer of at least 0"),
    "keep-checkpoints": ([0, 2.0, True], "an integer of at least 1"),
    "min-clients": ([0, 2.0, True], "an integer of at least 1"),
    "wait-timeout": ([0, -1, "120", math.inf], "a number above 0"),
    "round-timeout": ([0, -1, None], "a number above 0"),
    "share-class-counts": ([1, "true", None], "true or false"),
    "max-examples": ([0, 1.5, "many", True], 'an integer of at least 1 or "auto"'),
    "max-reply-mb": ([0, 1.5, "many"], "an integer of at least 1"),
    "robust-mean": (["mean", True], "one of off, median, trimmed, clipped"),
    "robust-trim": ([0, 0.5, "0.1"], "a number above 0 and at most 0.49"),
    "robust-clip": ([0, -1, True], "a number above 0"),
    "on-client-error": (["ignore", True], "one of skip, stop"),
    "max-update": ([-1, "10", True, math.inf, math.nan], "a number of at least 0"),
    "wire-dtype": (["int4", "float64", True], "one of float32, float16, int8"),
    "wire-zlib": ([1, "true"], "true or false"),
    "metrics-port": ([-1, 65536, "9464", True], "an integer of at least 0 and at most 65535"),
    "metrics-host": ([1, True], "an address of this machine"),
    "log-format": (["xml", True], "one of text, json"),
    "privacy.clip-norm": ([-1, "1", True, math.inf], "a number of at least 0"),
    "privacy.noise-multiplier": ([-0.1, "1", math.nan], "a number of at least 0"),
    "privacy.delta": ([0, 0.2, "1e-5", True], "a number above 0 and at most 0.1"),
}


def test_every_key_is_tested_here() -> None:
    own = {key for key in default_run_config() if "." not in key or key.startswith("privacy.")}
    assert set(REFUSED) == own


@pytest.mark.parametrize("key", REFUSED)
def test_refused_values_name_key_value_and_what_is_accepted(key: str) -> None:
    values, accepted = REFUSED[key]
    for value in values:
        text = refused({key: value})
        assert text.startswith(f"{key} = {value!r}: expected "), text
        assert re.search(accepted, text), text


@pytest.mark.parametrize("case", [("sample-fraction", 5.0), ("method", "fedfomo"),
                                  ("num-rounds", 0), ("alpha", -1)])  # fmt: skip
def test_four_mistakes_of_users(case: tuple[str, Any]) -> None:
    """U29."""
    key, value = case
    text = refused({key: value})
    assert text.startswith(f"{key} = {value!r}")
    assert "expected" in text


@pytest.mark.parametrize(
    ("key", "value", "field", "result"),
    [
        ("alpha", 1, "alpha", 1.0),
        ("lr", 1, "lr", 1.0),
        ("lr", "auto", "lr", "auto"),
        ("momentum", "auto", "momentum", "auto"),
        ("weight-decay", 0, "weight_decay", 0.0),
        ("optimizer", "auto", "optimizer", "auto"),
        ("sample-fraction", 1, "sample_fraction", 1.0),
        ("device", "cuda:3", "device", "cuda:3"),
        ("min-examples", 0, "min_examples", 0),
        ("run-name", "a.b_c-1", "run_name", "a.b_c-1"),
        ("output-dir", "/tmp/x", "output_dir", "/tmp/x"),
    ],
)
def test_accepted_values(key: str, value: Any, field: str, result: Any) -> None:
    got = getattr(parse_run_config({key: value}), field)
    assert got == result
    assert type(got) is type(result)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("num-round", "num-rounds"),
        ("num_rounds", "num-rounds"),
        ("learning-rate-lr", None),
        ("batchsize", "batch-size"),
        ("fedre.mechanisms", "fedre.mechanism"),
        ("fedre.server_lr", "fedre.server-lr"),
        ("fredre.mapping", "fedre.mapping"),
        ("method-config", None),
    ],
)
def test_unknown_keys_name_the_nearest(key: str, nearest: str | None) -> None:
    """U57."""
    text = refused({key: 1})
    assert text.startswith(f"{key}: unknown configuration key")
    if nearest:
        assert text.endswith(f"did you mean {nearest}?")


def test_keys_of_a_method_that_does_not_run_are_checked() -> None:
    text = refused({"method": "local", "fedre.server-lr": -1})
    assert text == "fedre.server-lr = -1: expected a number above 0"
    assert "fedre.mechanism" in refused({"method": "local", "fedre.mechanism": "XYZ"})


def test_a_client_imports_no_method_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which its process would have to pay for each message."""
    asked: set[str] = set()
    built_in = registry._built_in

    def noted(name: str) -> Method:
        asked.add(name)
        return built_in(name)

    values = {**default_run_config("fedavg"), "method": "fedavg", "fedavg.mean": "uniform"}
    monkeypatch.setattr(registry, "_built_in", noted)
    run = parse_run_config(without_other_methods(values))
    assert asked == {"fedavg"}
    assert run == parse_run_config(values)
    assert {"fedre", "fedmuscle"} <= asked  # whose keys are checked where all are there
    with pytest.raises(ConfigError, match=r"fedavgg\.mean: unknown configuration key"):
        parse_run_config(without_other_methods({**values, "fedavgg.mean": "uniform"}))


@pytest.mark.parametrize("name", method_names())
def test_a_method_is_called_as_its_module(name: str) -> None:
    assert get_method(name).name == name


@pytest.mark.parametrize("name", method_names())
def test_every_option_of_every_method_refuses_another_type(name: str) -> None:
    for field in dataclasses.fields(get_method(name).config):
        key = f"{name}.{field.name.replace('_', '-')}"
        for wrong in (None, b"x", [1]):
            assert refused({key: wrong}).startswith(f"{key} = {wrong!r}: expected ")
        if not isinstance(field.default, bool):
            assert refused({key: True}).startswith(f"{key} = True")


def flat_defaults() -> dict[str, Any]:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    flat: dict[str, Any] = {}
    for key, value in content["tool"]["flwr"]["app"]["config"].items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            flat[key] = value
    return flat


@pytest.mark.parametrize("key", default_run_config())
def test_pyproject_lists_every_default(key: str) -> None:
    listed, default = flat_defaults(), default_run_config()[key]
    assert key in listed, f"{key} is missing in [tool.flwr.app.config] of pyproject.toml"
    assert listed[key] == default, key
    assert type(listed[key]) is type(default), key


def test_pyproject_lists_nothing_else() -> None:
    assert sorted(set(flat_defaults()) - set(default_run_config())) == []


def test_the_defaults_are_accepted_and_come_back() -> None:
    defaults = default_run_config()
    run = parse_run_config(defaults)
    flat = run.flat()
    assert flat == {
        key: value
        for key, value in defaults.items()
        if "." not in key or key.startswith((f"{run.method}.", "privacy."))
    }
    assert parse_run_config(flat) == run


def test_changed_values_come_back() -> None:
    run = parse_run_config({"method": "fedre", "fedre.mechanism": "VAP", "alpha": 1})
    assert run.flat()["fedre.mechanism"] == "VAP"
    assert run.flat()["alpha"] == 1.0
    assert run.method_config.mechanism == "VAP"


def test_resume_excludes_a_new_name() -> None:
    assert "resume alone" in refused({"run-name": "a", "resume": "b"})


@pytest.mark.parametrize(
    ("rounds", "every", "expected"),
    [(5, 1, [1, 2, 3, 4, 5]), (5, 2, [2, 4, 5]), (5, 9, [5]), (1, 1, [1])],
)
def test_rounds_that_evaluate(rounds: int, every: int, expected: list[int]) -> None:
    run = RunConfig(num_rounds=rounds, evaluate_every=every)
    assert [r for r in range(1, rounds + 1) if run.evaluates_in(r)] == expected


@pytest.mark.parametrize(("when", "before"), [("pre", True), ("post", False)])
def test_evaluation_timing(when: str, before: bool) -> None:
    assert RunConfig(evaluate_when=when).evaluates_before_training is before
    assert RunConfig(method="fedre").evaluates_before_training is True  # the paper's
