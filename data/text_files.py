"""The one reader of text files that users write: class lists, TSV, YAML and TOML.

Editors differ in what they leave in a file: a byte order mark, UTF-16, carriage returns. What has
one meaning is read; the rest ends in a message with file, line and remedy.
"""

from __future__ import annotations

import codecs
import stat
from pathlib import Path

from data.spec import DataError

SETTINGS_LIMIT = 16 * 2**20
"""Most bytes of a file of settings or names; a larger one is something else."""

# The longer marks first: that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def read_user_text(path: Path, limit: int = SETTINGS_LIMIT) -> str:
    r"""Read a text file that a user wrote, whatever editor it comes from.

    UTF-8 with or without a byte order mark, UTF-16 and UTF-32 with one. Lines end in ``\n``
    afterwards, also those that ended in ``\r\n`` or, in a file without line feeds, in ``\r``.

    Parameters
    ----------
    path : Path
        The file.
    limit : int (default: `SETTINGS_LIMIT`)
        Most bytes that are read.

    Returns
    -------
    text : str
        The content, without the mark.

    Raises
    ------
    DataError
        If there is no such file, it cannot be opened, is no regular file or too large, or a byte
        belongs to no text; names file, line and remedy.
    """
    content = read_regular(path, limit)
    mark, encoding = next(
        ((mark, name) for mark, name in _MARKS if content.startswith(mark)), (b"", "utf-8")
    )
    content = content[len(mark) :]
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise _undecodable(path, content, encoding, error) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(
            f"{path}, line {line} holds a zero byte: it is no text, or UTF-16 without its byte "
            f"order mark; save the file as UTF-8, for example: iconv -f utf-16le -t utf-8 {path} "
            "> NEW"
        )
    text = text.replace("\r\n", "\n")
    return text if "\n" in text else text.replace("\r", "\n")


def read_regular(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file; a pipe of that name would never end.

    Raises
    ------
    DataError
        If there is no such file, it cannot be read, is no regular file, or exceeds `limit` bytes.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path} is no regular file; give a file, not a folder or a pipe.")
        if status.st_size > limit:
            raise DataError(
                f"{path} has {status.st_size:,} bytes; at most {limit:,} are read. Is it the "
                "right file?"
            )
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


def _undecodable(path: Path, content: bytes, encoding: str, error: UnicodeDecodeError) -> DataError:
    before = content[: error.start].decode(encoding, errors="replace")
    line = before.count("\n") + 1
    byte = content[error.start : error.start + 1].hex()
    guess = "latin1" if encoding == "utf-8" else encoding
    return DataError(
        f"{path}, line {line} is not {encoding.upper()} (byte 0x{byte}: {error.reason}); save the "
        f"file as UTF-8, for example: iconv -f {guess} -t utf-8 {path} > NEW"
    )
