"""Wildflower's runs from Python: `load_run` and `load_comparison`, as pandas data frames.

The federation itself runs by `flwr run` or the command `wildflower`; this reads what they leave.
"""

from deploy.frames import ComparisonRuns, Run, load_comparison, load_run

__all__ = ["ComparisonRuns", "Run", "load_comparison", "load_run"]
