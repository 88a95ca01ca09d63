"""Kinds of command-line arguments that several commands take."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """Read a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)
