"""Private Flower processes on this machine: a SuperLink, its runs, and nothing left behind."""
