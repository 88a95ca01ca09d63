"""YAML files that users write, comparisons and fleets: read in one way."""

from __future__ import annotations

import re
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
        return yaml.load(read_user_text(path), Loader=_UserLoader)
    except DataError as error:
        raise ConfigError(f"{path}: cannot be read as {kind}: {error}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read as {kind}: {reason}") from error


class _UserLoader(yaml.SafeLoader):
    """YAML 1.2's plain values, without the trap that a repeated key silently wins over the first.

    PyYAML reads YAML 1.1, where 1e-3 and .5e1 are texts, 010 is 8, 1:30 is 90, off is false and a
    day a date. Here a value is what it looks like: 1e-3 a number, 010 ten, and "off" a text.
    """

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

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Read an integer as YAML 1.2 does: decimal also where it begins with 0."""
        text = self.construct_scalar(node)
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _resolve(kind: str, pattern: str, first: str) -> None:
    tag = f"tag:yaml.org,2002:{kind}"
    _UserLoader.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})\Z"), list(first))


_UserLoader.yaml_implicit_resolvers = {}  # a copy of its own, without YAML 1.1's
_resolve("null", "~|null|Null|NULL", "~nN")
_UserLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"\Z"), [""])
_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789")
_resolve(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+0123456789.",
)
_resolve("merge", "<<", "<")
_UserLoader.add_constructor("tag:yaml.org,2002:int", _UserLoader.construct_yaml_int)
