"""The ServerApp: round loop, recorder, checkpoints, report."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "models" / "package_names.py"))
