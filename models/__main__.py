"""Print all models, or those that match a pattern: ``python -m models [PATTERN]``."""

from __future__ import annotations

import sys

from models.listing import print_models

if __name__ == "__main__":
    sys.exit(0 if print_models(*sys.argv[1:2]) else 1)
