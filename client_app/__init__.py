"""The ClientApp: private state store and local training loop."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "models" / "package_names.py"))
