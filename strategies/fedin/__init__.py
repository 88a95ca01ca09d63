"""FedIN: the method in `fedin.py`, its pairs of features, the server's pool, projections."""

from strategies.fedin.fedin import METHOD, Client, Config, Server

__all__ = ["METHOD", "Client", "Config", "Server"]
