"""The rounds of a run: who is there, what is sent and received, and in which order."""
