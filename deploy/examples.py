"""Examples at the end of a command's help."""

from __future__ import annotations

import argparse
from typing import Any


def shown_examples(*examples: str) -> dict[str, Any]:
    """Return the arguments with which a parser's help ends with command lines, as written."""
    word = "example" if len(examples) == 1 else "examples"
    return {
        "epilog": f"{word}:\n" + "\n".join(f"  {example}" for example in examples),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
