"""From the texts of a run-config to a checked `RunConfig`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from data import TEXT_DATASETS, VECTOR_DATASETS, DataError
from data.tasks import REGRESSION, TaskSpec, parse_tasks
from models import ModelError, resolve_models
from strategies.base.former_names import in_present_words
from strategies.base.method import Method, get_method, method_names
from strategies.base.options import (
    ConfigError,
    nested_options,
    option_keys,
    parse_options,
    parse_pairs,
    unknown_key,
)
from strategies.base.protection import refusal
from strategies.base.run_config import RunConfig

_Value = TypeVar("_Value")


def default_run_config(method: str | Method = RunConfig.method) -> dict[str, Any]:
    """Return every key with its default, all methods' included, as pyproject.toml lists them.

    If `method` is a user's own, or its name, its keys are there, too.
    """
    values = option_keys(RunConfig)
    for known in _methods(method):
        values |= option_keys(known.config, known.name + ".")
    return values


def _methods(named: object) -> list[Method]:
    """Return all methods by name, and a user's own where that is the one named."""
    methods = [get_method(name) for name in method_names()]
    own = get_method(named) if isinstance(named, str) else named
    if isinstance(own, Method) and own not in methods:
        methods.append(own)
    return methods


def _methods_of_keys(values: Mapping[str, object]) -> list[Method]:
    """Return the method that runs and those whose keys are there; no other is imported."""
    named = values.get("method", RunConfig.method)
    own = [get_method(named)] if isinstance(named, str) else []  # what it is, is checked later
    prefixes = {key.partition(".")[0] for key in values} - {named}
    return [*(get_method(name) for name in method_names() if name in prefixes), *own]


def without_other_methods(values: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return a run-config without the keys of methods that do not run.

    For clients, which need not import what the server has checked for all.
    """
    others = {*method_names()} - {values.get("method", RunConfig.method)}
    return {key: value for key, value in values.items() if key.partition(".")[0] not in others}


def parse_run_config(values: Mapping[str, object]) -> RunConfig:
    """Parse and check a whole run-config; keys of methods that do not run are checked too.

    Raises
    ------
    ConfigError
        Naming key, value and what is expected.
    """
    methods = _methods_of_keys(values)
    known = option_keys(RunConfig)
    for method in methods:
        known |= option_keys(method.config, method.name + ".")
    for key in values:
        if key not in known:
            named = str(values.get("method", RunConfig.method))
            raise unknown_key(key, default_run_config(named), named)
    values = in_present_words(values)
    run = parse_options(RunConfig, {k: v for k, v in values.items() if k in option_keys(RunConfig)})
    # A user's own `module:factory` can be looked up only where clients run.
    if ":" not in run.models:
        try:
            resolve_models(run.models)
        except ModelError as error:
            forms = "a group, a comma list to cycle over, or pairs id=name"
            raise ConfigError(f"models = {run.models!r}: expected {forms}; {error}") from error
    try:
        tasks = parse_tasks(run.tasks)
    except DataError as error:
        forms = "a group of tasks, or a comma list to cycle over"
        raise ConfigError(f"tasks = {run.tasks!r}: expected {forms}; {error}") from error
    _refuse_text(run, tasks)
    if tasks and not run.chosen_method.any_task and not _one_common_task(run, tasks):
        able = [name for name in method_names() if get_method(name).any_task]
        raise ConfigError(
            f"tasks = {run.tasks!r}: expected an empty text, or one task on text or numbers, "
            f"with method {run.method!r}, whose clients all learn from one data set; methods for "
            f"any task: {', '.join(able)}"
        )
    key = f"tasks = {run.tasks!r}" if tasks else f"dataset = {run.dataset!r}"
    learned = tasks or (TaskSpec("classification"),)
    for task in learned:
        refuse_unserved(run.chosen_method, task, run.dataset, key)
    _refuse_varied_numbers(run, learned)
    configs: dict[str, Any] = {
        m.name: parse_options(m.config, values, m.name + ".") for m in methods
    }
    config = _with_method_options(configs[run.chosen_method.name], run)
    idle = tuple(
        f"{_key(m, field.name)} = {getattr(configs[m.name], field.name)!r}"
        for m in methods
        if m.name != run.chosen_method.name
        for field in dataclasses.fields(m.config)
        if getattr(configs[m.name], field.name) != field.default
    )
    run = dataclasses.replace(
        run, method_config=config, declared=run.chosen_method, idle_options=idle
    )
    if run.robust_mean != "off" and not run.chosen_method.averages:
        able = [name for name in method_names() if get_method(name).averages]
        raise ConfigError(
            f"robust-mean = {run.robust_mean!r}: expected off with method {run.method!r}, which "
            f"takes no mean of what clients send; methods that do: {', '.join(able)}"
        )
    _refuse_unprotected(run)
    refuses = run.chosen_method.refuses
    if refuses is not None and (problem := refuses(run)) is not None:
        raise ConfigError(problem)
    return run


def _refuse_unprotected(run: RunConfig) -> None:
    """Refuse noise with a method that sends what noise cannot cover.

    Raises
    ------
    ConfigError
        Naming method, field and remedy.
    """
    method = run.chosen_method
    if f"{method.name}." in {prefix for prefix, _ in nested_options(RunConfig).values()}:
        raise ConfigError(
            f"method = {method.name!r}: keys that begin so are the run's own; rename the module, "
            "or give register another name"
        )
    problem = refusal(method, run.method_config, run.privacy)
    if problem is not None:
        methods = [get_method(name) for name in method_names()]
        able = [m for m in methods if refusal(m, m.config(), run.privacy, curable=True) is None]
        names = ", ".join(m.name for m in able)
        raise ConfigError(f"{problem}; methods that noise can protect: {names}")


def _with_method_options(config: Any, run: RunConfig) -> Any:
    """Return a method's options with those changed that the key `method-options` names."""
    try:
        pairs = parse_pairs(run.method_options)
        changed = parse_options(type(config), pairs)
    except ConfigError as error:
        raise ConfigError(
            f"method-options = {run.method_options!r}: expected pairs key=value of method "
            f"{run.method!r}; {error}"
        ) from error
    names = (key.replace("-", "_") for key in pairs)
    return dataclasses.replace(config, **{name: getattr(changed, name) for name in names})


def refuse_unserved(method: Method, task: TaskSpec, dataset: str, key: str) -> None:
    """Refuse a task whose examples or targets a method cannot work on.

    Parameters
    ----------
    method, task
        What clients do, and learn.
    dataset : str
        The data set where the task names none.
    key : str
        What says so, given as "key = value".

    Raises
    ------
    ConfigError
        Naming the key, and the methods that serve it.
    """

    def refuse(why: str, methods_that: str, serves: Callable[[Method], bool]) -> None:
        able = [name for name in method_names() if serves(get_method(name))]
        raise ConfigError(f"{key}: method {method.name!r} {why}; {methods_that}: {', '.join(able)}")

    if task.task == "retrieval" and not method.pairs:
        why = "serves no retrieval, whose examples are pairs of an image and its caption"
        refuse(why, "methods that do", lambda m: m.pairs)
    if task.task == REGRESSION and not method.regression:
        why = "works on classes, and a regression predicts a number"
        refuse(why, "methods that do", lambda m: m.regression)
    if (task.dataset or dataset) in VECTOR_DATASETS and not method.reads_numbers:
        works = "needs public pictures" if method.public_data else "works on images"
        why = f"{works}, and these are numbers"
        refuse(why, "methods for numbers", lambda m: m.reads_numbers)


def _refuse_varied_numbers(run: RunConfig, tasks: Sequence[TaskSpec]) -> None:
    names = {task.dataset or run.dataset for task in tasks}
    if run.augment != "none" and names <= VECTOR_DATASETS.keys():
        raise ConfigError(
            f"augment = {run.augment!r}: expected none with {', '.join(sorted(names))}, which has "
            "no images to vary"
        )


def _one_common_task(run: RunConfig, tasks: Sequence[TaskSpec]) -> bool:
    """Say whether all clients learn one task that is no matter of the method."""
    numbers = (tasks[0].dataset or run.dataset) in VECTOR_DATASETS or tasks[0].task == REGRESSION
    return _one_text_task(tasks) or (numbers and len(set(tasks)) == 1)


def _one_text_task(tasks: Sequence[TaskSpec]) -> bool:
    """Say whether all clients learn one task, on sentences."""
    return len(set(tasks)) == 1 and tasks[0].task == "text"


def _refuse_text(run: RunConfig, tasks: Sequence[TaskSpec]) -> None:
    """Refuse a run on sentences with what is for images alone.

    Raises
    ------
    ConfigError
        Naming the key.
    """
    if tasks and not _one_text_task(tasks):
        return  # such methods serve any task, or numbers
    if not tasks and run.dataset not in TEXT_DATASETS:
        return
    key = f"tasks = {run.tasks!r}" if tasks else f"dataset = {run.dataset!r}"
    method = run.chosen_method
    if "text" not in method.reads:
        others = [name for name in method_names() if "text" in get_method(name).reads]
        raise ConfigError(
            f"{key}: method {run.method!r} works on images, and these are sentences; expected one "
            f"of {', '.join(others)}"
        )
    if run.augment != "none":
        raise ConfigError(
            f"augment = {run.augment!r}: expected none with {key}, which has no images to vary"
        )


def in_rounds(method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of run-config keys with the method's options as the rounds that they mean.

    Options that follow from `num-rounds` at their default do so by the method of its `Config`
    named `in_rounds`; where it has none, nothing changes.
    """
    resolve = getattr(method.config, "in_rounds", None)
    if resolve is None:
        return dict(values)
    fields = {field.name: _key(method, field.name) for field in dataclasses.fields(method.config)}
    given = method.config(**{name: values[key] for name, key in fields.items() if key in values})
    told = resolve(given, values["num-rounds"])
    return {**values, **{key: getattr(told, name) for name, key in fields.items()}}


def _key(method: Method, field: str) -> str:
    return f"{method.name}.{field.replace('_', '-')}"
