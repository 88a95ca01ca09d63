"""report.html: one self-contained page about a run."""

from server_app.report.page import render, write_report

__all__ = ["render", "write_report"]
