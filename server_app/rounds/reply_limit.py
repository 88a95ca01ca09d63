"""How large a reply may be that is taken into the server's memory.

Flower tells how many objects a reply has, not how large they are, and its Grid takes all of them
before anybody can look at one. They come piece by piece, so it is the pieces that are counted.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.serverapp import Grid

HTTP_GRID = "flwr.superlink.grid.http_grid"
"""Flower's module of the Grid that reaches devices; elsewhere replies are in memory already."""
MB = 2**20
MOST_OBJECTS = 10_000
"""Objects of one reply: a few records, and two for each array with its pieces of 20 MB."""
TOO_LARGE = re.compile(r"more than \d+ (MB \(max-reply-mb\)|objects)")
"""What a refusal says of a reply, however Flower passes it on."""


class ReplyLimit:
    """The most bytes of a reply: what the run says, or twice what was sent, if that is more.

    Parameters
    ----------
    grid : Grid
        Of the run; only on the one that reaches devices is there anything to limit.
    megabytes : int
        `max-reply-mb`.
    """

    def __init__(self, grid: Grid, megabytes: int) -> None:
        self.applies = any(kind.__module__ == HTTP_GRID for kind in type(grid).__mro__)
        self.most = megabytes * MB

    def sent(self, size: int) -> None:
        """Note a message of so many bytes: a method whose model travels gets one like it back."""
        self.most = max(self.most, 2 * size)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Count what Flower's Grid pulls, inside the with block."""
        if not self.applies:
            yield
            return
        module = importlib.import_module(HTTP_GRID)
        plain = module.pull_objects
        setattr(module, "pull_objects", self._counting(plain))  # noqa: B010 - not ours to declare
        try:
            yield
        finally:
            setattr(module, "pull_objects", plain)  # noqa: B010

    def _counting(self, plain: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

        def pull_objects(
            object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any
        ) -> dict[str, bytes]:
            if len(object_ids) > MOST_OBJECTS:
                raise ObjectPullError(object_ids[0], f"more than {MOST_OBJECTS} objects")
            left, lock = self.most, threading.Lock()

            def pull(object_id: str) -> bytes:
                nonlocal left
                content = pull_object_fn(object_id)
                with lock:
                    left -= len(content)
                    if left < 0:
                        most = f"more than {self.most // MB} MB (max-reply-mb)"
                        raise ObjectPullError(object_id, most)
                return content

            return plain(object_ids=object_ids, pull_object_fn=pull, **options)

        return pull_objects
