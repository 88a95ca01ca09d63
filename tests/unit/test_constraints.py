"""deploy/constraints.txt: tested versions of all that the project needs, and no addresses."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.constraints import FILE, requirements

LINES = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
PINNED = {name: version for name, _, version in (line.partition("==") for line in LINES)}


def test_every_line_is_a_name_and_a_version() -> None:
    assert [line for line in LINES if not re.fullmatch(r"[a-z0-9-]+==[0-9][a-z0-9.]*", line)] == []
    assert sorted(PINNED) == list(PINNED)


def test_what_the_project_needs_is_there_in_a_version_that_it_accepts() -> None:
    untested = {
        "wandb",
        "mlflow-skinny",
    }  # each is a choice of the user's; neither is installed here
    needs = {canonicalize_name(need.name): need for need in requirements()}
    assert needs.keys() - PINNED.keys() <= untested
    for name in needs.keys() & PINNED.keys():
        assert needs[name].specifier.contains(PINNED[name]), name


def test_the_versions_go_together() -> None:
    for name, version in PINNED.items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Version(distribution.version).public != version:
            continue  # what others need is known of the installed version only
        for need in map(Requirement, distribution.requires or []):
            pinned = PINNED.get(canonicalize_name(need.name))
            if pinned and (need.marker is None or need.marker.evaluate({"extra": ""})):
                assert need.specifier.contains(pinned, prereleases=True), (name, str(need), pinned)
