"""FedKD: the method in `fedkd.py`, and the low-rank factors in which its weights travel."""

from strategies.fedkd.fedkd import METHOD, Client, Config, Server

__all__ = ["METHOD", "Client", "Config", "Server"]
