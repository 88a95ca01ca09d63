"""Run-config keys that were set and have no effect beside the others that were."""

from __future__ import annotations

from data.spec import COLUMN_DATASETS, FLWR_PARTITION, HUB_PREFIX, is_from_hub
from strategies.base.options import option_keys
from strategies.base.run_config import RunConfig


def idle_keys(run: RunConfig) -> list[str]:
    """Return what was set in vain, each with the setting that makes it so.

    Only values other than the defaults are looked at: `flwr run` sends all keys always.
    """
    defaults = option_keys(RunConfig)
    values = run.flat()
    found = [
        f"{key} = {values[key]!r} ({reason})"
        for reason, keys in _unread(run).items()
        for key in keys
        if values[key] != defaults[key]
    ]
    return [*found, *(f"{key} (method = {run.method!r})" for key in run.idle_options)]


def _unread(run: RunConfig) -> dict[str, list[str]]:
    """Return the keys that nothing reads, by the setting that decides so."""
    partition, schedule = run.partition, run.lr_schedule
    hub = is_from_hub(run.dataset) or HUB_PREFIX in run.tasks
    sentences = hub or run.dataset == "tsv" or "tsv" in run.tasks
    columns = any(name == run.dataset or name in run.tasks for name in COLUMN_DATASETS)
    unread = {
        f"partition = {partition!r}": [
            *["alpha"] * (partition != "dirichlet"),
            *["partition-options"] * (not partition.startswith(FLWR_PARTITION)),
            *["classes-per-client"] * (partition not in ("pathological", "class-shares")),
            *["min-examples"] * (partition != "dirichlet" and not run.size_sigma),
        ],
        f"robust-mean = {run.robust_mean!r}": [
            *["robust-trim"] * (run.robust_mean != "trimmed"),
            *["robust-clip"] * (run.robust_mean != "clipped"),
        ],
        f"privacy.noise-multiplier = {run.privacy.noise_multiplier}": (
            [] if run.privacy.noisy else ["privacy.delta"]
        ),
        f"lr-schedule = {schedule!r}": ["lr-step-rounds"] * (schedule != "step"),
        f"dataset = {run.dataset!r}": [
            *["label-column"] * (not sentences and not columns),
            *["text-column"] * (not sentences),
            *["image-column", "data-config", "data-split"] * (not hub),
        ],
        f"method = {run.method!r}": (
            [] if run.chosen_method.public_data else ["public-dataset", "public-size"]
        ),
    }
    optimizer = run.training.optimizer
    if run.momentum and optimizer != "sgd":
        unread[f"optimizer = {optimizer!r}"] = ["momentum"]
    return unread
