"""The files of a run: written round by round, read back, and summed up."""
