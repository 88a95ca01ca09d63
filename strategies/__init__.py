"""Methods, one file each, and in `base` the contract they keep."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "models" / "package_names.py"))
