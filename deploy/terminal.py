"""A command goes on when nobody reads what it prints any more, as after `| head -2`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, cast

GONE = (errno.EPIPE, errno.EIO)
"""What writing to a closed pipe and to a terminal that is gone fails with."""


class _Output:
    """A text stream that swallows everything once its reader is gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        with self._unread():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what has been written."""
        with self._unread():
            self._stream.flush()

    @contextmanager
    def _unread(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in GONE:
                raise
            # What is still in the buffer, and what others write to the same file, goes nowhere.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


@contextmanager
def outliving_readers() -> Iterator[None]:
    """Let nothing in the block fail because its standard output or error is closed."""
    output, errors = (cast(Any, _Output(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            yield
        finally:
            output.flush()
            errors.flush()
