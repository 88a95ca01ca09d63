"""The run's configuration: every run-config key outside the methods' own, with its range.

`strategies.base.parsing` makes it from texts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data import DATASETS, PARTITIONS, DataSpec
from data.spec import EXPECTED_DATASET, EXPECTED_PARTITION, is_dataset, is_partition
from strategies.base.lr_schedule import SCHEDULES, LrSchedule
from strategies.base.method import Method, Training, get_method
from strategies.base.narrowing import WIRE_DTYPES
from strategies.base.options import AUTO, ConfigError, option, option_values, options_of
from strategies.base.payload import WireFormat
from strategies.base.protection import Privacy
from strategies.base.suggestions import nearest

AUGMENTATIONS = ("crop-flip", "crop-flip-erase", "crop-flip-cutout")
"""See `strategies.common.augmentation`."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ADDRESS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""Of something in a user's own module: `package.module:name`."""
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

TRACKERS = ("tensorboard", "wandb", "mlflow")

MAY_CHANGE_ON_RESUME = frozenset(
    (
        *(
            "num-rounds",
            "output-dir",
            "run-name",
            "resume",
            "keep-checkpoints",
            "keep-payloads",
            "keep-states",
            "min-clients",
        ),
        *("wait-timeout", "round-timeout", "on-client-error", "device", "local-run", "code-dir"),
        *(
            "max-update",
            "max-reply-mb",
            "resume-round",
            "wire-zlib",
            "tracker",
            "report",
            "metrics-port",
            "metrics-host",
        ),
        "log-format",
    )
)
"""What `RunConfig.may_change_on_resume` allows at most."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Resolved run-config. The table of keys in server_app/README.md is made from it.

    Attributes
    ----------
    method
        What clients and server do; its own keys begin with its name. Also a module with a method
        of your own, see strategies/README.md.
    method_options
        Options of the method, as pairs key=value without the method's name: for a method of your
        own, whose keys `flwr run` does not know. They win over its keys.
    schedule
        Your own choice of who takes part and when a run ends, see strategies/README.md.
    dataset
        The examples that clients share; "hf:ORG/NAME": of the Hugging Face hub, or a copy of its
        layout in `data-dir`. A device with data of its own names its own.
    data_dir
        Where the files of the data set are.
    image_size
        Side in pixels to which images and masks are resized; 0 keeps the data set's own.
    label_column
        Which column of a `tsv` file, a table, a series or `hf:` is the label; empty: found by its
        name, in a `tsv` file else the first.
    text_column
        Which column of a `tsv` file or `hf:` is the sentence; empty: found by the header, else
        the rest. Of `hf:` images are taken if there are any, unless this is set.
    image_column
        Which column of `hf:` has the images; empty: the only one that has.
    data_config
        Which configuration of `hf:`, where it has several.
    data_split
        Which splits of `hf:` to train, test and validate on, with commas between; empty: found by
        their names.
    subset
        Share of every class that is used, of training and test examples alike.
    partition
        How simulated clients share the examples, see data/README.md; "natural:COLUMN": one client
        a value of that column.
    partition_options
        With `flwr:NAME`: what that partitioner takes, as in "num_shards_per_partition=2,
        shuffle=false".
    alpha
        Concentration of `dirichlet`: the larger, the more alike the clients.
    classes_per_client
        How many classes a client holds, with `pathological` and `class-shares`.
    min_examples
        Fewest examples of a client, with `dirichlet` or `size-sigma`; 0 allows empty clients.
    size_sigma
        How unlike the clients' sizes are: the deviation of their logarithm (log-normal, any
        partition); 0 leaves sizes to the partition, see data/README.md.
    partition_seed
        Seed of subset, partition and test split. Runs with unlike `seed` can share one split.
    test_split
        "personal": a quarter of a client's own share; "global": the official test set, for all.
    validation_fraction
        Share of a client's training examples that it does not train on; they choose the best round.
    models
        Which client gets which architecture, see models/README.md.
    code_dir
        Folder of your own models and methods, see models/README.md; a device names its own.
    feature_dim
        d, the width to which every architecture's features are brought.
    initial_weights
        "own": every client's first weights are drawn for it alone; "shared": clients of one
        architecture start from equal ones, as in HtFLlib.
    lora_rank
        Rank of the adapters on pretrained encoders (`hf-`, `timm/`, `lite0` to `lite2`, `minilm`)
        of models for tasks; 0 trains all of their weights, as do models of any other kind.
    tasks
        What each client learns, see data/README.md; empty: all classify `dataset`.
    public_dataset, public_size
        Unlabelled items that all clients hold, for the methods that need them, and how many.
    public_overlap
        "none": public items are, or show, no example that a simulated client tests on, though such
        as it trains on; "allowed": any official training example.
    num_rounds
        Rounds of the run; a resumed run may have more.
    sample_fraction
        Share of the clients that train in a round, rounded to the nearest, at least one client.
    local_epochs
        Passes of a participant over its training examples in a round.
    batch_size
        Examples in a step of local training.
    augment
        How training images are varied, see `strategies.common.augmentation`.
    optimizer, lr, momentum, weight_decay
        Of local training; "auto" is the method's own default.
    lr_schedule
        How `lr` falls over the rounds, by the round's number, see `strategies.base.lr_schedule`. Of
        local training alone: rates of a server or of public steps have keys of their own.
        "cosine" falls to 0 over `num-rounds`, which a resume cannot change then.
    warmup_rounds
        Before that, `lr` grows from round to round, by equal steps.
    lr_decay
        What "step" multiplies `lr` with every `lr-step-rounds` rounds ("auto": 0.1), and
        "exponential" in every round ("auto": 0.99).
    lr_step_rounds
        Of the schedule "step".
    keep_optimizer
        Whether momentum and moments of local training go on from a client's last round, as part
        of its private state; by default every round starts without. Also where the server's
        average replaces weights: the moments stay the client's own.
    evaluate_every
        Clients are evaluated in every n-th round and in the last.
    evaluate_when
        "pre" or "post" local training; "auto" is as the method's paper does it. "both" is "pre",
        and beside it what participants score right after their training, as "trained_accuracy".
    evaluate_untrained
        Whether clients with models of their own are evaluated before they have trained, on their
        first weights; false leaves them out of all means until they have.
    seed
        Of everything but the split. The same seed gives the same metrics on CPU.
    device
        Where clients compute; "auto" takes a GPU where there is one.
    amp
        "bf16" computes in bfloat16 where that is safe.
    output_dir
        The folder of all runs.
    run_name
        The run's folder in it.
    resume
        The run goes on after its newest checkpoint; where training diverged after that, after the
        newest one before.
    resume_round
        The run goes on after this round instead, and later ones are made anew; 0 is as `resume`
        says.
    local_run
        A run of method `local`, to which Delta in the summary refers.
    tracker
        Where the server also shows the run while it goes on, several with commas between, see
        [Trackers](#trackers). Their libraries come with the extras of their names.
    report
        Whether `report.html` is written when the run ends; `wildflower report` can do it later.
    keep_checkpoints
        How many of the newest checkpoints are kept.
    keep_states
        Whether a completed run keeps its checkpoints, and the private states of simulated clients,
        which more rounds, `wildflower attack` and `wildflower analyse` need; false deletes them at
        the end, as `wildflower clean` does later. Devices keep theirs.
    keep_payloads
        What clients send in every n-th round is kept in `payloads` of the run's directory, for
        `wildflower attack`; it tells of their data, so 0, the default, keeps nothing.
    min_clients
        With fewer clients the run does not start.
    wait_timeout
        Seconds to wait for them.
    round_timeout
        Seconds after which a round goes on without the clients that have not answered.
    share_class_counts
        Whether clients with a share of `dataset` tell how many examples of each class they have;
        a device with data of its own decides in its node-config, and tells nothing by default.
    max_examples
        With how many examples a client's update counts at most in a mean. "auto": on devices 10
        times the median of the clients' counts, in a simulation no limit.
    max_reply_mb
        How many megabytes a device's reply may have, unless twice what the server sent is more.
    robust_mean
        How a method that averages over clients does it. "off": its plain mean. "median" and
        "trimmed", by coordinate, count every client once; "clipped" shortens large changes.
    robust_trim
        Share of the clients that "trimmed" leaves out at each end, at least one.
    robust_clip
        How many times the round's median change "clipped" leaves of a client's.
    on_client_error
        "skip" leaves a client that failed out of the round, and on devices one that is wrong at
        its registration out of the run; "stop" ends the run.
    max_update
        How many times as large an array that a client sends may be as what it received, and on
        devices as the round's median, see `strategies.base.bounds`; 0 does not limit.
    wire_dtype
        As what floating-point arrays travel, both ways: "float16" halves the traffic, "int8"
        quarters it. What it costs is in server_app/README.md, "Fewer bytes on the wire".
    wire_zlib
        Whether arrays that get smaller by it travel compressed; nothing is lost but time.
    metrics_port, metrics_host
        Where the ServerApp serves Prometheus' metrics while the run lasts; 0: nowhere. Needs the
        extra `metrics`.
    log_format
        "json": one JSON object a line, for programs that collect logs.
    privacy
        What clients do to what they send, before it leaves them.
    """

    method: str = option("fedre", hint="the name of a method, or of a module with your own")
    method_options: str = option("", hint="a text of pairs key=value of the method that runs")
    schedule: str = option("", hint="a text: module:factory; empty: the seeded uniform draw")
    dataset: str = option("digits", hint=EXPECTED_DATASET)
    data_dir: str = option("", hint="a text: a folder; empty: the standard places, then a download")
    image_size: int = option(0, minimum=0, maximum=1024)
    label_column: str = option("", hint="a text: a name in the header, or a number from 1")
    text_column: str = option("", hint="a text: a name in the header, or a number from 1")
    image_column: str = option("", hint="a text: a column's name")
    data_config: str = option("", hint="a text: a configuration's name")
    data_split: str = option("", hint="a text: names of splits, with commas between")
    subset: float = option(1.0, above=0, maximum=1)
    partition: str = option("dirichlet", hint=EXPECTED_PARTITION)
    partition_options: str = option("")
    alpha: float = option(0.1, above=0)
    classes_per_client: int = option(2, minimum=1)
    min_examples: int = option(10, minimum=0)
    size_sigma: float = option(0.0, minimum=0, maximum=5)
    partition_seed: int = option(0, minimum=0)
    test_split: str = option("personal", "global")
    validation_fraction: float = option(0.1, minimum=0, maximum=0.9)
    models: str = option(
        "five-cnns", hint="a text: a group, a comma list to cycle over, or pairs id=name"
    )
    code_dir: str = option("", hint="an absolute path, or one that starts with ~, of your own code")
    feature_dim: int = option(512, minimum=1)
    initial_weights: str = option("own", "shared")
    lora_rank: int = option(16, minimum=0)
    tasks: str = option("", hint="a text: a group of tasks, or a comma list to cycle over")
    public_dataset: str = option("scenes", hint=EXPECTED_DATASET)
    public_size: int = option(5000, minimum=2)
    public_overlap: str = option("none", "allowed")
    num_rounds: int = option(10, minimum=1)
    sample_fraction: float = option(1.0, above=0, maximum=1)
    local_epochs: int = option(1, minimum=1)
    batch_size: int = option(32, minimum=1)
    augment: str = option("none", *AUGMENTATIONS)
    optimizer: str = option(AUTO, "sgd", "adam", "adamw")
    lr: float | str = option(AUTO, kind=float, above=0)
    momentum: float | str = option(AUTO, kind=float, minimum=0, maximum=1)
    weight_decay: float | str = option(AUTO, kind=float, minimum=0)
    lr_schedule: str = option(*SCHEDULES)
    warmup_rounds: int = option(0, minimum=0)
    lr_decay: float | str = option(AUTO, kind=float, above=0, maximum=1)
    lr_step_rounds: int = option(10, minimum=1)
    keep_optimizer: bool = option(False)
    evaluate_every: int = option(1, minimum=1)
    evaluate_when: str = option(AUTO, "pre", "post", "both")
    evaluate_untrained: bool = option(True)
    seed: int = option(0, minimum=0)
    device: str = option("auto", hint="auto, cpu, cuda or cuda:N")
    amp: str = option("off", "bf16")
    output_dir: str = option("~/wildflower", hint="an absolute path, or one that starts with ~")
    run_name: str = option("", hint="a new name; empty: method, dataset and time")
    resume: str = option("", hint="the name of a run to go on with")
    resume_round: int = option(0, minimum=0)
    local_run: str = option("", hint="the name of a completed run to compare with")
    tracker: str = option("", hint=f"any of {', '.join(TRACKERS)}, with commas between")
    report: bool = option(True)
    keep_checkpoints: int = option(2, minimum=1)
    keep_states: bool = option(True)
    keep_payloads: int = option(0, minimum=0)
    min_clients: int = option(2, minimum=1)
    wait_timeout: float = option(120.0, above=0)
    round_timeout: float = option(3600.0, above=0)
    share_class_counts: bool = option(True)
    max_examples: int | str = option(AUTO, kind=int, minimum=1)
    max_reply_mb: int = option(256, minimum=1)
    robust_mean: str = option("off", "median", "trimmed", "clipped")
    robust_trim: float = option(0.1, above=0, maximum=0.49)
    robust_clip: float = option(1.0, above=0)
    on_client_error: str = option("skip", "stop")
    max_update: float = option(1e30, minimum=0)
    wire_dtype: str = option(*WIRE_DTYPES)
    wire_zlib: bool = option(False)
    metrics_port: int = option(0, minimum=0, maximum=65535)
    metrics_host: str = option("127.0.0.1", hint="a text: an address of this machine")
    log_format: str = option("text", "json")
    privacy: Privacy = options_of(Privacy, "privacy.")
    method_config: Any = None
    declared: Method | None = dataclasses.field(default=None, compare=False, repr=False)
    idle_options: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """Options of methods that do not run, `key = value`, where they are not the defaults."""

    def __post_init__(self) -> None:
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"device = {self.device!r}: expected auto, cpu, cuda or cuda:N")
        if not Path(self.output_dir).expanduser().is_absolute():
            raise ConfigError(
                f"output-dir = {self.output_dir!r}: expected an absolute path or one that "
                "starts with ~, because a Flower app does not run in your working directory"
            )
        if self.code_dir and not Path(self.code_dir).expanduser().is_absolute():
            raise ConfigError(
                f"code-dir = {self.code_dir!r}: expected an absolute path or one that starts with "
                "~, because a Flower app does not run in your working directory"
            )
        for key, name in self._names():
            if name and not NAME.fullmatch(name):
                raise ConfigError(
                    f"{key} = {name!r}: expected a name of letters, digits, '.', '_' and '-'"
                )
        if self.schedule and not ADDRESS.fullmatch(self.schedule):
            raise ConfigError(
                f"schedule = {self.schedule!r}: expected module:factory, or an empty text for the "
                "seeded uniform draw"
            )
        if self.resume and self.run_name:
            raise ConfigError(
                f"run-name = {self.run_name!r}: a resumed run keeps its name; give resume alone"
            )
        if self.resume_round and not self.resume:
            raise ConfigError(
                f"resume-round = {self.resume_round}: expected 0 without resume, the name of a run"
            )
        for name in self.trackers:
            if name not in TRACKERS or self.trackers.count(name) > 1:
                near = nearest(name, TRACKERS) if name not in TRACKERS else None
                raise ConfigError(
                    f"tracker = {self.tracker!r}: expected any of {', '.join(TRACKERS)}, each "
                    f"once, got {name!r}" + (f"; did you mean {near}?" if near else "")
                )
        _check_name("dataset", self.dataset, is_dataset, DATASETS, EXPECTED_DATASET)
        _check_name("public-dataset", self.public_dataset, is_dataset, DATASETS, EXPECTED_DATASET)
        _check_name("partition", self.partition, is_partition, PARTITIONS, EXPECTED_PARTITION)
        _ = self.lr_by_round  # refuses what does not fit together

    def _names(self) -> tuple[tuple[str, str], ...]:
        names = ("run-name", self.run_name), ("resume", self.resume)
        return (*names, ("local-run", self.local_run))

    @property
    def data_spec(self) -> DataSpec:
        """Everything that decides which examples a client has."""
        names = [field.name for field in dataclasses.fields(DataSpec)]
        return DataSpec(**{name: getattr(self, name) for name in names})

    @property
    def trackers(self) -> tuple[str, ...]:
        """The trackers that the run is shown in."""
        return tuple(name.strip() for name in self.tracker.split(",") if name.strip())

    @property
    def lr_by_round(self) -> LrSchedule:
        """The learning rate by round, as a share of `lr`."""
        return LrSchedule(
            self.lr_schedule,
            self.num_rounds,
            self.warmup_rounds,
            self.lr_step_rounds,
            self.lr_decay,
        )

    @property
    def wire(self) -> WireFormat:
        """How payloads travel."""
        return WireFormat(self.wire_dtype, self.wire_zlib)

    @property
    def training(self) -> Training:
        """Settings of local training: the run's where they are given, else the method's."""
        usual, decay = self.chosen_method.training, self.weight_decay
        return Training(
            optimizer=usual.optimizer if self.optimizer == AUTO else self.optimizer,
            lr=usual.lr if isinstance(self.lr, str) else self.lr,
            momentum=usual.momentum if isinstance(self.momentum, str) else self.momentum,
            weight_decay=usual.weight_decay if isinstance(decay, str) else decay,
        )

    @property
    def may_change_on_resume(self) -> frozenset[str]:
        """Keys that a resumed run may set differently: none of them changes a finished round."""
        # Under a cosine every round's rate depends on how many rounds there are.
        fixed = {"num-rounds"} if self.lr_schedule == "cosine" else set()
        return MAY_CHANGE_ON_RESUME - fixed

    @property
    def run_root(self) -> Path:
        """Directory that holds all runs."""
        return Path(self.output_dir).expanduser()

    @property
    def evaluates_before_training(self) -> bool:
        """Whether the main evaluation precedes local training, by key or by the method."""
        when = self.evaluate_when
        return (self.chosen_method.evaluate_when if when == AUTO else when) != "post"

    @property
    def evaluates_untrained(self) -> bool:
        """Whether clients are evaluated before they have trained, by key or by the method.

        Where all are evaluated with the server's models, who has trained makes no difference.
        """
        return self.evaluate_untrained or self.chosen_method.evaluated_model != "personal"

    @property
    def evaluates_trained(self) -> bool:
        """Whether participants are scored a second time, after local training (`both`)."""
        return self.evaluate_when == "both"

    @property
    def chosen_method(self) -> Method:
        """The method that runs; a user's own is found where the run-config was parsed."""
        return self.declared or get_method(self.method)

    def evaluates_in(self, server_round: int) -> bool:
        """Whether clients are evaluated in this round: every n-th one and the last."""
        return server_round % self.evaluate_every == 0 or server_round == self.num_rounds

    def flat(self) -> dict[str, Any]:
        """Return the resolved run-config keys and values, the running method's included."""
        return {
            **option_values(self),
            **option_values(self.method_config, self.chosen_method.name + "."),
        }


def _check_name(
    key: str, name: str, known: Callable[[str], bool], names: Sequence[str], expected: str
) -> None:
    """Refuse a name that is none, with the one that was perhaps meant."""
    if not known(name):
        near = nearest(name, names)
        raise ConfigError(
            f"{key} = {name!r}: expected {expected}" + (f"; did you mean {near}?" if near else "")
        )


def payload_sizes(run: RunConfig, classes: int) -> dict[str, int]:
    """Return the sizes of the named dimensions of payloads, known on both sides.

    d, the representation width; C, the number of classes; and P, the number of public items, for
    methods that have any.
    """
    public = {"P": run.public_size} if run.chosen_method.public_data else {}
    return {"d": run.feature_dim, "C": classes, **public}
