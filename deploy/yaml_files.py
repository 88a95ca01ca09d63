"""YAML files that users write, comparisons and fleets: read in one way."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from data import DataError
from data.text_files import read_user_text
from strategies.base.options import ConfigError


def read_yaml(path: Path, kind: str) -> object:
    """Return the content of a YAML file.

    Parameters
    ----------
    path : Path
        The file.
    kind : str
        What it is read as, for the message: "a fleet file".

    Raises
    ------
    ConfigError
        One line that names file, line and what is wrong; also where a key is given twice.
    """
    try:
        return yaml.load(read_user_text(path), Loader=_UniqueKeys)
    except DataError as error:
        raise ConfigError(f"{path}: cannot be read as {kind}: {error}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read as {kind}: {reason}") from error


class _UniqueKeys(yaml.SafeLoader):
    """YAML without the trap that a repeated key silently wins over the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key.value!r} is given twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
