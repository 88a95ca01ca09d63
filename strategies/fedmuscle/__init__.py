"""FedMuscle: the method in `fedmuscle.py`, its contrastive steps, and the losses."""

from strategies.fedmuscle.fedmuscle import METHOD, Client, Config, Server

__all__ = ["METHOD", "Client", "Config", "Server"]
