"""What the tests that start real processes share."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 600.0
"""Seconds that one run may take, many times what it needs."""
