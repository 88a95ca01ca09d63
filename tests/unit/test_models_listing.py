"""`wildflower models`: what is listed, by pattern."""

from __future__ import annotations

import pytest

from deploy.cli import main
from models import libraries, listing


def test_a_pattern_or_a_part_of_a_name_filters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "cnn[12]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == ["name", "cnn1", "cnn2"]
    assert main(["models", "text-sm"]) == 0
    assert "365,194" in capsys.readouterr().out


def test_a_pattern_without_a_match_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qqqq*"]) == 2
    assert "no model matches 'qqqq*'" in capsys.readouterr().err


def test_timms_models_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm", reason="needs the extra timm")
    assert main(["models", "timm/resnet18*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "timm/resnet18d" in [line.split()[0] for line in lines]
    assert main(["models", "timm/*"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1000


def test_without_the_extras_the_list_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    assert listing.print_models("lite0") == 1
    assert "not installed; pip install 'wildflower[pretrained]'" in capsys.readouterr().out
