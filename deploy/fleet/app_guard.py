"""A SuperNode that runs no app but those on its owner's list: the command `wildflower-supernode`.

What a run does on a device is code that the server sends, so it is the SuperNode that must refuse
it, before any of it runs. Flower's own `--trusted-entities` knows apps by who signed them, which
only those of its Hub are; here they are known by their SHA-256, the hash that Flower shows.

    wildflower-supernode --hash FOLDER                print the hash of the app in a folder
    wildflower-supernode --allowed-apps FILE ...      run flower-supernode, with its own options
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from strategies.base.options import ConfigError

PROGRAM = "wildflower-supernode"
CLIENT = "flwr.supernode.start_client_internal"
"""Flower's private module that takes messages in; `flwr` is pinned to one minor version for it."""
PULL, VERIFY = "_pull_and_store_message", "_verify_fab"
USAGE = (
    f"usage: {PROGRAM} --allowed-apps FILE OPTIONS-OF-FLOWER-SUPERNODE, or {PROGRAM} --hash FOLDER"
)

_HASH = re.compile(r"[0-9a-f]{64}")


def app_hash(folder: Path) -> str:
    """Return the hash of the app that `flwr run` makes of a folder."""
    from flwr.cli.build import build_fab_from_disk

    return hashlib.sha256(build_fab_from_disk(folder)).hexdigest()


def allowed_apps(file: Path) -> frozenset[str]:
    """Read a list of hashes: one a line, what follows a # is a remark.

    Raises
    ------
    ConfigError
        The file cannot be read, or a line is no hash; names both.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"allowed-apps = '{file}': cannot be read ({error})") from error
    found = set()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip().lower()
        if text and not _HASH.fullmatch(text):
            raise ConfigError(f"{file}, line {number}: {text[:80]!r} is not the SHA-256 of an app")
        found |= {text} - {""}
    return frozenset(found)


def guard(file: Path) -> None:
    """Let this process's SuperNode refuse what is not on the list, which is read for every run.

    An app is looked at when its run's first message comes, and stays allowed until that run ends.
    """
    module = importlib.import_module(CLIENT)
    pull, verify = getattr(module, PULL), getattr(module, VERIFY)

    def guarded_pull(
        *, get_fab: Callable[..., Any], trusted_entities: dict[str, str] | None, **others: Any
    ) -> Any:
        def signed_or_not(*arguments: Any) -> Any:
            fab = get_fab(*arguments)
            if trusted_entities:
                return fab
            # Flower looks at an app only where it carries the sign that it can be verified.
            return dataclasses.replace(fab, verifications={"valid_license": "by its hash"})

        entities = trusted_entities or {PROGRAM: ""}
        return pull(get_fab=signed_or_not, trusted_entities=entities, **others)

    def guarded_verify(fab: Any, trusted_entities: dict[str, str]) -> bool:
        found = hashlib.sha256(fab.content).hexdigest()
        try:
            listed = found in allowed_apps(file)
        except ConfigError as error:
            print(f"{PROGRAM}: no app is run: {error}", file=sys.stderr, flush=True)
            return False
        if not listed or fab.hash_str != found:
            print(f"{PROGRAM}: refused app {found}: not in {file}", file=sys.stderr, flush=True)
            return False
        return PROGRAM in trusted_entities or bool(verify(fab, trusted_entities))

    setattr(module, PULL, guarded_pull)
    setattr(module, VERIFY, guarded_verify)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the SuperNode, or print an app's hash; see the module's text."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) == 2 and given[0] == "--hash":
        print(app_hash(Path(given[1])))
        return 0
    if len(given) < 2 or given[0] != "--allowed-apps":
        print(USAGE, file=sys.stderr)
        return 2
    file = Path(given[1]).expanduser()
    try:
        allowed_apps(file)
        guard(file)
    except (ConfigError, AttributeError) as error:  # the latter from another version of Flower
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    from flwr.supernode.cli import flower_supernode

    sys.argv = ["flower-supernode", *given[2:]]
    flower_supernode()
    return 0


if __name__ == "__main__":
    sys.exit(main())
