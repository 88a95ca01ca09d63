"""`wildflower test-method`: the template passes, and each kind of broken method is caught."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.contract import resume
from tests.documents import files_in

TEMPLATE = files_in(Path("strategies/README.md"))["my_method.py"]
SENT = "return Uplink(state.model.head.weight.detach().cpu().numpy().copy()), metrics"
MEAN = "state.weight = mean_of("
RECEIVED = "received = torch.tensor(downlink.weight, device=own.device)"
STATE_CLIENT = "    model: SplitModel\n"

BROKEN: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "shape": (
        [(SENT, SENT.replace(".copy()", ".T.copy()"))],
        "plain-run", r"weight: shape \(\d+, 10\), expected \(10, \d+\)",
    ),
    "undeclared": (
        [('array("C", "d")\n', 'array("C", "d")\n    extra: int = 0\n')],
        "declared", r"Head.extra: declared by neither array\(\) nor arrays\(\)",
    ),
    "not_restored": (
        [
            ("class Client(", "SEEN: dict[int, int] = {}\n\n\nclass Client("),
            ("        own = state", "        seen = SEEN[context.client_id] = "
             "SEEN.get(context.client_id, 0) + 1\n        own = state"),
            ("context.config.weight)", "context.config.weight / seen)"),
        ],
        "keep-optimizer", r"a run left alone and one resumed differ: \{'round': '\d'",
    ),
    "not_private": (
        [("context.config.weight)", "float(np.random.default_rng().random()))")],
        "same-seed", r"two runs of one seed differ: metrics.csv has round=1",
    ),
    "downlink_changes_state": (
        [("        return Downlink(state.weight", "        state.weight = state.weight * 2\n"
          "        return Downlink(state.weight")],
        "server-half", r"downlink, asked twice, gives two payloads",
    ),
    "changes_updates": (
        [(MEAN, "updates = list(updates)\n        for u in updates:\n"
          "            torch.from_numpy(u.uplink.weight).mul_(2)\n        " + MEAN)],
        "payloads-stay", r"round 1, client \d: uplink was changed after it was sent",
    ),
    "hides_nan": (
        [("        metrics = train_epochs", "        for weights in state.model.parameters():\n"
          "            weights.data.nan_to_num_()\n        metrics = train_epochs")],
        "nan-is-named", r"client 1 trained with weights that are NaN, and its answer was accepted",
    ),
}  # fmt: skip
"""What is replaced in the template, the check that fails, and the reason it gives."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, which also takes what failed checks leave."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_method_is_caught(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, check, reason = BROKEN[name]
    text = TEMPLATE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (here / f"{name}.py").write_text(text)
    assert main(["test-method", name, "-k", check]) == 1
    output = capsys.readouterr().out
    assert re.search(rf"^FAILED +{check} .* {reason}", output, re.MULTILINE), output


def test_the_template_passes_all_checks(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a run that ends itself in place of the killed one, which tests/contract has."""
    (here / "my").mkdir()
    (here / "my" / "my_method.py").write_text(TEMPLATE)
    monkeypatch.setattr(resume, "kill_in_its_round", resume.stop_in_its_round)
    given = ["--code-dir", "my", "--method-options", "weight=0.3"]
    assert main(["test-method", "my_method", *given]) == 0
    output = capsys.readouterr().out
    assert "FAILED" not in output
    assert output.endswith("my_method: 13 of 13 checks passed\n")
    assert not list(here.glob("test-method-*"))


def test_a_method_of_wildflower_is_tested_by_its_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test-method", "lg-fedavg", "-k", "declared"]) == 0
    assert capsys.readouterr().out.endswith("lg-fedavg: 1 of 1 checks passed\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "method = 'nowhere': expected one of"),
        (["fedre", "-k", "xyz"], "-k xyz: no check has that in its name: declared, unlike-clients"),
        (["fedre", "--code-dir", "gone"], "--code-dir gone: there is no such folder"),
        (["fedre", "--method-options", "wieght=1"], "wieght: unknown"),
    ],
)
def test_what_cannot_be_tested_is_said(
    arguments: list[str], reason: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test-method", *arguments]) == 2
    assert reason in capsys.readouterr().err
