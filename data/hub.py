"""Data sets in the layout of the Hugging Face hub, from there or from this machine: `hf:NAME`.

`data-dir` is a copy (a folder, or one file of rows); without it the hub is asked. Whatever the
data set, none of its code is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.folder_tree import PARTS, name_key
from data.spec import HUB_PREFIX, DataError, DataSpec
from data.stamps import files_below, stamp_of
from data.table_files import separator_of

Parts = dict[str, Any]
"""Tables (`datasets.Dataset`) by "train", "test", "validation"."""

# Formats of one file, by suffix: what `datasets` calls their reader.
_FILES = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json"}
_ORDER = ("train", "test", "validation")


def hub_stamp(data_dir: Path | None) -> str:
    """Summarise a copy's files; empty for what comes from the hub, which keeps its first state."""
    if data_dir is None:
        return ""
    if data_dir.is_file():
        return stamp_of(data_dir.parent, [data_dir])
    return stamp_of(data_dir, files_below(data_dir))


def open_parts(spec: DataSpec, data_dir: Path | None, scratch: Path) -> tuple[Parts, list[str]]:
    """Open the parts of a data set.

    Parameters
    ----------
    spec : DataSpec
        Gives the name, `data_config` and `data_split`.
    data_dir : Path | None
        A copy on this machine; None to ask the hub.
    scratch : Path
        Folder for tables while they are read.

    Returns
    -------
    parts : dict
        By "train" and, where there are any, "test" and "validation"; features are as they are
        stored: images are not decoded.
    unused : list of str
        Names of further splits.

    Raises
    ------
    DataError
        If the data set cannot be reached or read, or its configuration or splits are not clear.
    """
    import datasets

    datasets.disable_progress_bars()
    with _explained(spec, data_dir):
        found = _load(datasets, spec, data_dir, str(scratch))
    splits = dict(found) if isinstance(found, dict) else {"train": found}
    names = _split_names(spec, list(splits))
    unused = [name for name in splits if name not in names.values()]
    return {part: _undecoded(datasets, splits[name]) for part, name in names.items()}, unused


def folders_of(data_dir: Path | None, scratch: Path) -> tuple[Path, ...]:
    """Return the folders of a data set's own files: its copy's, or where the hub's are put."""
    if data_dir is not None:
        folder = data_dir if data_dir.is_dir() else data_dir.parent
        return folder, folder.resolve()
    from datasets import config
    from huggingface_hub.constants import HF_HUB_CACHE

    return scratch, Path(config.DOWNLOADED_DATASETS_PATH), Path(HF_HUB_CACHE)


def _load(datasets: Any, spec: DataSpec, data_dir: Path | None, scratch: str) -> Any:
    config = spec.data_config or None
    if data_dir is None:
        name, _, revision = spec.dataset.removeprefix(HUB_PREFIX).partition("@")
        return datasets.load_dataset(name, config, revision=revision or None, cache_dir=scratch)
    if data_dir.is_file():
        suffix = data_dir.suffix.lower()
        if suffix not in _FILES:
            raise DataError(
                f"data-dir={str(data_dir)!r}: {spec.dataset} is read from a folder or from one "
                f"file that ends in {', '.join(_FILES)}."
            )
        more = {"sep": separator_of(data_dir)} if _FILES[suffix] == "csv" else {}
        files = {"train": str(data_dir)}
        return datasets.load_dataset(_FILES[suffix], data_files=files, cache_dir=scratch, **more)
    if not data_dir.is_dir():
        raise DataError(f"data-dir={str(data_dir)!r}: there is no such folder or file.")
    if any((data_dir / name).exists() for name in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(str(data_dir))
    return datasets.load_dataset(str(data_dir), config, cache_dir=scratch)


@contextmanager
def _explained(spec: DataSpec, data_dir: Path | None) -> Iterator[None]:
    """Turn what the library raises into one line with the remedy."""
    import httpx
    from datasets.exceptions import DatasetsError

    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, RuntimeError, DatasetsError, httpx.HTTPError) as error:
        said = " ".join(str(error).split())
        where = spec.dataset if data_dir is None else f"{spec.dataset} in {data_dir}"
        raise DataError(f"{where}: {said:.300} {_remedy(spec, data_dir, error)}") from error


def _remedy(spec: DataSpec, data_dir: Path | None, error: Exception) -> str:
    """Say what to do about an error of the library, by its kind."""
    name = spec.dataset.removeprefix(HUB_PREFIX).partition("@")[0]
    said = str(error).casefold()
    if "config name is missing" in said or "builderconfig" in said:
        return f"(data-config={spec.data_config!r}: set it to one of these)."
    if "scripts are no longer supported" in said:
        return (
            "Code of a data set is not run; where the hub has it converted, set dataset="
            f"{HUB_PREFIX}{name}@refs/convert/parquet."
        )
    if data_dir is not None:
        return (
            "(data-dir has to be a copy of such a data set: parquet, CSV or JSON files named by "
            "their parts, as in train.parquet and test.parquet, or folders of images.)"
        )
    if "gated" in said:
        return "Accept its terms on its page, and run `hf auth login` on this machine."
    return (
        f"Is the name right, and is the hub reached from here? Else copy the data set where it is "
        f"(`hf download --repo-type dataset {name} --local-dir DIR`) and set data-dir=DIR."
    )


def _split_names(spec: DataSpec, names: list[str]) -> dict[str, str]:
    """Return the split of each part: those that `data_split` names in order, else by their names.

    Raises
    ------
    DataError
        Naming the splits that there are.
    """
    given = [name.strip() for name in spec.data_split.split(",")] if spec.data_split.strip() else []
    has = f"{spec.dataset} has the splits {', '.join(names)}"
    if len(set(given)) < len(given) or len(given) > len(_ORDER) or set(given) - set(names):
        raise DataError(
            f"data-split={spec.data_split!r}: {has}; give one of them to train on and, after "
            "commas, one to test on and one to validate on."
        )
    if given:
        return dict(zip(_ORDER, given, strict=False))
    if len(names) == 1:
        return {"train": names[0]}
    found = {
        part: [name for name in names if name_key(name) in PARTS[part]] for part in _ORDER
    }  # fmt: skip
    if len(found["train"]) != 1 or any(len(some) > 1 for some in found.values()):
        raise DataError(
            f"{has}, and which are meant is not clear; set data-split='TRAIN, TEST' to two of them."
        )
    return {part: some[0] for part, some in found.items() if some}


def _undecoded(datasets: Any, table: Any) -> Any:
    """Return a table of plain values, whose images stay bytes and paths."""
    table = table.with_format(None)
    for name, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, datasets.Image(decode=False))
    return table
