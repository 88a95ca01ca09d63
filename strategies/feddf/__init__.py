"""FedDF: the method in `feddf.py`, and clients' models at work on the server."""

from strategies.feddf.feddf import METHOD, Client, Config, Server

__all__ = ["METHOD", "Client", "Config", "Server"]
