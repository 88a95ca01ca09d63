"""report.html: one self-contained page about a run."""

from server_app.report.page import write_report

__all__ = ["write_report"]
