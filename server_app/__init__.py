"""The ServerApp: round loop, recorder, checkpoints, report."""
