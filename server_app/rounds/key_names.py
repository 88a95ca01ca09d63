"""Who a node is by its key: the name under which that was registered with the SuperLink."""

from __future__ import annotations

import re

from flwr.serverapp import Grid

CLIENT_NAME = re.compile(r"client-(0|[1-9][0-9]{0,17})")
"""A key that `wildflower fleet` registers has this name; the number is the client's id."""


class KeyNames:
    """Holds clients to the names of their keys.

    A node says by itself which client it is. The SuperLink knows by which key it proved who it is,
    and under which name that key was registered, and tells the ServerApp. Where names are those of
    clients, they decide. In a simulation, and in a fleet without keys, nodes have no names and
    nothing can be held against what they say.

    Parameters
    ----------
    grid : Grid
        Knows the nodes. A node keeps its name as long as it has its node id.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._names: dict[int, str] = {}
        self._bound = False

    def refusal(self, node_id: int, client_id: int) -> str | None:
        """Return why a node cannot be this client, as `who: what`, or None if it can."""
        name = self._name(node_id)
        if name is None:
            return f"node {node_id}: went away before it was known whose key it has"
        if (match := CLIENT_NAME.fullmatch(name)) is not None:
            if int(match[1]) == client_id:
                return None
            return (
                f"client {match[1]}: says that it is client {client_id}, but has the key that was "
                f"registered as {name}; set client-id={match[1]} in its node-config"
            )
        if self._bound:
            return (
                f"node {node_id}: says that it is client {client_id}, but its key was registered "
                f"as {name!r}; register it under the name client-{client_id}"
            )
        return None

    def who(self, node_id: int) -> str:
        """Return how to call a node of which nothing is believed but its key: "client 3"."""
        match = CLIENT_NAME.fullmatch(self._name(node_id) or "")
        return f"client {match[1]}" if match else f"node {node_id}"

    def _name(self, node_id: int) -> str | None:
        """Return the name of a node's key, empty if it has none; None if the node is not there."""
        if node_id not in self._names:
            nodes = self.grid.get_nodes()
            self._names |= {node.node_id: node.name for node in nodes}
            self._bound |= any(CLIENT_NAME.fullmatch(name) for name in self._names.values())
        return self._names.get(node_id)
