"""Values of run-config keys that an earlier version named otherwise.

They are understood for one version more, with a warning. A saved run keeps the words it was started
with; comparing its settings with others goes through `in_present_words`, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models import FORMER_GROUPS


def in_present_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run-config in which former names stand as the present ones."""
    present = dict(values)
    if group := _former_group(values):
        present["models"] = FORMER_GROUPS[group]
    return present


def warnings(values: Mapping[str, Any]) -> list[str]:
    """Return what to say of a run-config's former names: key, value, meaning and remedy."""
    group = _former_group(values)
    if not group:
        return []
    return [
        f"models = {group!r}: alone this still means the group of models that is now called "
        f"{FORMER_GROUPS[group]!r}; say models='{FORMER_GROUPS[group]}', or models='*={group}' "
        f"for the model {group} on every client. The next version will not understand it"
    ]


def _former_group(values: Mapping[str, Any]) -> str:
    text = values.get("models")
    return text.strip() if isinstance(text, str) and text.strip() in FORMER_GROUPS else ""
