"""`wildflower run`: what `-c` takes, who can come, and what a wrong key proposes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.run import parse_assignments
from server_app.rounds import roster
from strategies.base.options import ConfigError, parse_options, unknown_key
from strategies.base.parsing import default_run_config, parse_run_config
from strategies.base.run_config import RunConfig
from strategies.base.server import RegistrationError
from tests.support import run_federation


def test_files_of_keys_are_taken_like_pairs(tmp_path: Path) -> None:
    """As `flwr run` takes one: nested tables are dotted keys; here also several, and mixed."""
    first, second = tmp_path / "first file.toml", tmp_path / "second.toml"
    # An editor's byte order mark and line ends.
    first.write_bytes(b"\xef\xbb\xbfnum-rounds = 3\r\nlr = 0.5\r\n[fedre]\r\nmechanism = 'VAP'\r\n")
    second.write_text("fedre.server-lr = 0.5\nnum-rounds = 4\n")
    assert parse_assignments([str(first)]) == {
        "num-rounds": 3, "lr": 0.5, "fedre.mechanism": "VAP"
    }  # fmt: skip
    mixed = parse_assignments(["num-rounds=1", str(first), f"{second} lr=0.1 seed=2"])
    assert mixed["num-rounds"] == 4
    assert (mixed["lr"], mixed["seed"], mixed["fedre.server-lr"]) == (0.1, 2, 0.5)
    assert parse_run_config(mixed).method_config.mechanism == "VAP"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"keys.toml: cannot be read as a file of keys: .*"),
        ("num-rounds = ", r"keys.toml: cannot be read as a file of keys: Invalid value"),
        ("lr = 1\nlr = 2", "cannot be read as a file of keys"),
        ("a.b = [1, 2]", r"keys.toml: a.b = \[1, 2\]: expected a text, a number, true or false"),
    ],
)
def test_a_file_that_is_no_file_of_keys_is_named(
    content: str | None, reason: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "keys.toml").write_text(content)
    with pytest.raises(ConfigError, match=reason):
        parse_assignments([str(tmp_path / "keys.toml")])


def test_too_few_clients_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = f"output-dir='{tmp_path}' wait-timeout=100.0"
    started = time.monotonic()
    assert main(["run", "--clients", "1", "-c", settings]) == 2
    assert time.monotonic() - started < 20
    text = capsys.readouterr().err
    assert "min-clients = 2: expected at most --clients = 1" in text
    assert "--clients 2 or -c min-clients=1" in text
    assert list(tmp_path.iterdir()) == []


def test_a_simulation_of_too_few_is_refused_when_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `flwr run` with fewer SuperNodes than min-clients."""
    monkeypatch.setattr(roster, "is_simulation", lambda grid: True)
    monkeypatch.setattr(roster, "ALL_THERE_S", 0.3)
    with pytest.raises(RegistrationError, match=r"min-clients = 5: expected at most 2.*supernodes"):
        run_federation(tmp_path, 2, min_clients=5)


@pytest.mark.parametrize(
    ("key", "method", "hint"),
    [
        ("fedproto.lambda", "fedproto", "did you mean fedproto.prototype-weight?"),
        ("fedproto.lamda", "fedre", "did you mean fedproto.prototype-weight?"),
        ("fedproto.mu", "fedprox", "did you mean fedproto.prototype-weight?"),
        ("fedproto.prototype_weight", "", "did you mean fedproto.prototype-weight?"),
        ("fedproto.server-lr", "", "the keys of fedproto are prototype-weight, prototype-mean, "),
        ("fedprox.lambda", "", "did you mean fedprox.mu?"),
        ("fedprox.agregation", "", "did you mean fedprox.aggregation?"),
        ("moon.temperature", "", "did you mean moon.tau?"),
        ("fedmrl.weight", "", "did you mean fedmrl.weight-small or fedmrl.weight-large?"),
        ("fedpox.mu", "", "did you mean fedprox.mu?"),
        ("mu", "fedprox", "did you mean fedprox.mu?"),
        ("tau", "moon", "did you mean moon.tau?"),
        ("lambda", "fedproto", "did you mean fedproto.prototype-weight?"),
        ("num_rounds", "fedprox", "did you mean num-rounds?"),
        ("Batch-Size", "", "did you mean batch-size?"),
    ],
)
def test_an_unknown_key_proposes_its_own_methods_first(key: str, method: str, hint: str) -> None:
    text = str(unknown_key(key, default_run_config(), method))
    assert text.startswith(f"{key}: unknown configuration key; {hint}")


def test_no_key_of_another_method_is_proposed() -> None:
    """Whatever the word, what follows a method's name is looked for in that method."""
    known = default_run_config()
    methods = {key.partition(".")[0] for key in known if "." in key}
    for method in sorted(methods):
        for word in ("lambda", "mu", "mean", "temperature", "server-lr", "alpha", "x", ""):
            if f"{method}.{word}" not in known:
                proposed = str(unknown_key(f"{method}.{word}", known)).partition(";")[2]
                assert method in proposed
                assert not any(f"{other}." in proposed for other in methods - {method})


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"partition": "Dirichlet"}, "did you mean dirichlet?"),
        ({"optimizer": "adam_w"}, "did you mean adamw?"),
        ({"dataset": "fashion_mnist"}, "did you mean fashion-mnist?"),
        ({"evaluate-when": "before"}, "pre, post, both"),
    ],
)
def test_a_misspelt_value_proposes_a_choice(values: dict[str, object], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(RunConfig, values)
    assert str(caught.value).endswith(hint)
