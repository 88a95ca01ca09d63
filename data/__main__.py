"""Print the schema of a folder's table or windows: ``python -m data FOLDER [LABEL-COLUMN]``."""

from __future__ import annotations

import sys
from pathlib import Path

from data.series import series_schema
from data.spec import DataError
from data.tabular import table_schema


def main(arguments: list[str]) -> int:
    """Print the `schema.json` that the other clients need; see `data.schema`."""
    if len(arguments) not in (1, 2):
        print(__doc__)
        return 2
    folder = Path(arguments[0]).expanduser()
    windows = folder.suffix == ".npz" or any(folder.glob("*.npz"))
    try:
        print((series_schema if windows else table_schema)(folder, *arguments[1:]).to_json())
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
