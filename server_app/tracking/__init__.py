"""Trackers: TensorBoard, Weights & Biases and MLflow show a run beside its records.

The server alone writes to them, and what it writes comes from the run's own CSV files, so a tracker
that joins late or was away catches up at the next resume. No tracker can slow down or end a run:
each works in a thread of its own (`worker`), and one that fails is warned about and let go.
"""

from server_app.tracking.base import missing_tracker
from server_app.tracking.tracking import Tracking

__all__ = ["Tracking", "missing_tracker"]
