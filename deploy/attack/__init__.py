"""What a server could learn from a run's kept uplinks, and what that is worth beside controls."""
