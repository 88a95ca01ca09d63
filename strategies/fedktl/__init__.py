"""FedKTL: the method in `fedktl.py`, its angles, its server's alignment, and its generator."""

from strategies.fedktl.fedktl import METHOD, Client, Config, Server

__all__ = ["METHOD", "Client", "Config", "Server"]
