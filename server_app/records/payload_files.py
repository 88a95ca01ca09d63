"""What clients send, kept on the server where a run asks for it; `wildflower attack` reads it.

One safetensors file for every uplink: `payloads/round-00005/exchange-1-client-00003.safetensors` in
the run's directory. It holds the arrays as the server had them, after whatever the wire did to
them, by the names of the method's `Uplink`. These files are as private as the clients' data.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from strategies.base.files import replacing
from strategies.base.messages import ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.payload import named_arrays

DIRECTORY = "payloads"


@dataclass(frozen=True)
class PayloadFiles:
    """The kept uplinks of a run.

    Attributes
    ----------
    directory : Path
        `payloads` in the run's directory.
    every : int
        Uplinks of every so many rounds are kept; 0 keeps none.
    """

    directory: Path
    every: int = 0

    def keep(self, update: ClientUpdate, server_round: int, exchange: int) -> None:
        """Write a client's uplink, if this is a round that is kept.

        Raises
        ------
        NotWrittenError
            The disk is full.
        """
        if not self.every or server_round % self.every:
            return
        entries = {
            key: np.asarray(item, order="C") for key, item in named_arrays(update.uplink).items()
        }
        about = {"round": server_round, "exchange": exchange, "client": update.client_id}
        with replacing(self._file(server_round, exchange, update.client_id)) as partial:
            save_file(entries, partial, metadata={key: str(value) for key, value in about.items()})

    def drop_after(self, server_round: int) -> None:
        """Remove what rounds sent that a resumed run makes anew."""
        for number, folder in self._folders().items():
            if number > server_round:
                shutil.rmtree(folder)

    def rounds(self) -> list[int]:
        """Return the rounds of which there are uplinks, ascending."""
        return sorted(self._folders())

    def clients(self, server_round: int, exchange: int = 1) -> list[int]:
        """Return whose uplinks of an exchange there are, ascending."""
        folder = self._file(server_round, exchange, 0).parent
        found = folder.glob(f"exchange-{exchange}-client-*.safetensors")
        return sorted(int(path.stem.rpartition("-")[2]) for path in found)

    def read(
        self, server_round: int, client_id: int, exchange: int = 1
    ) -> Mapping[str, NDArray[Any]]:
        """Return the arrays of one uplink by name.

        Raises
        ------
        ConfigError
            The file is damaged.
        """
        path = self._file(server_round, exchange, client_id)
        try:
            with safe_open(path, "numpy") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{path}: cannot be read ({error}); make the run again, or choose another round"
            ) from error

    def _folders(self) -> dict[int, Path]:
        found = self.directory.glob("round-*") if self.directory.is_dir() else ()
        return {int(path.name.removeprefix("round-")): path for path in found}

    def _file(self, server_round: int, exchange: int, client_id: int) -> Path:
        name = f"exchange-{exchange}-client-{client_id:05d}.safetensors"
        return self.directory / f"round-{server_round:05d}" / name
