"""A fleet of real devices: its description, keys and certificates, and starting it."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "models" / "package_names.py"))
