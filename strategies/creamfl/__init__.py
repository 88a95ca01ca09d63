"""CreamFL: the method in `creamfl.py`, what clients minimise, and what the server learns."""

from strategies.creamfl.creamfl import METHOD, Client, Config, Server

__all__ = ["METHOD", "Client", "Config", "Server"]
