"""The settings of a run, and the sources of their values.

    own = {"fedalign_strength": 0.3}
    config = RunConfig(process="fedalign", seed=1, hyperparameters=own)
    config.resolved().client_learning_rate

`resolution` documents the sources of values that are not given. The flags of commands,
their help and `config.json` are made from the fields. This module needs no TensorFlow:
an invalid run is refused before anything is loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from tff_reg import lazy, runtime, scores
from tff_reg.experiment.config import (
    resolution,
    task_settings,
    work_settings,
)
from tff_reg.methods import catalogue
from tff_reg.methods.method import Method
from tff_reg.settings import (
    ASIDE,
    COMMON,
    HEADER,
    KEY,
    NO_EFFECT,
    SETUP,
    SUMMARY,
    Setting,
    SettingError,
    check_names,
    conflicts,
    near_names,
    off_when,
    only_with,
    setting,
    settings_of,
    with_none_defaults,
    wrong_when,
)
from tff_reg.training import aggregator_settings, process_settings

# Headings of the help, in their order.
FILES = "Evaluation and files"
HYPERPARAMETERS = "Hyperparameters of the methods"
_of_what = functools.partial(setting, group=task_settings.WHAT)
_of_rounds = functools.partial(setting, group=process_settings.ROUNDS)
_of_files = functools.partial(setting, group=FILES)
# Settings on which a run's numbers do not depend.
_read_off = functools.partial(_of_files, tags=(NO_EFFECT,))
_GROUPS = (
    task_settings.WHAT,
    process_settings.ROUNDS,
    process_settings.CLIENTS,
    process_settings.SERVER,
    task_settings.DATA,
    FILES,
    runtime.WHERE,
    HYPERPARAMETERS,
)

# Tag of settings that are replaced by other settings when a run is resolved.
SHORTHAND = "shorthand"
# Values of `settings_of` beside methods.
TASK, EACH = resolution.TASK, resolution.EACH


_OF_SHARED = off_when(
    lambda process: process is not None and not catalogue.shares_model(process),
    "the clients of {process} share no whole model.",
    is_quiet=True,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
@with_none_defaults
class RunConfig(
    aggregator_settings.AggregatorSettings,
    process_settings.ProcessSettings,
    task_settings.TaskSettings,
    work_settings.WorkSettings,
    runtime.RuntimeSettings,
):
    """A request for a run; a setting that is not given is None.

        experiment.RunConfig(
            process="fedprox", seed=1, hyperparameters={"fedprox_strength": 0.1})

    Attributes:
      hyperparameters: Strengths of the process's methods, as `<method>_<field>`.
      settings_from: The source of the settings that are not given; set when resolved.
    """

    process: str = _of_what(
        help="method, or a combination such as fedprox+man; or, to compare with, local"
        " (each client alone) or central (all data in one place); also --method",
        tags=(KEY, HEADER, ASIDE, COMMON),
    )
    plugin: tuple[str, ...] = _of_what(
        (),
        help="Python files with methods of your own, such as mine.py",
        placeholder="FILE",
        tags=(NO_EFFECT, KEY),
    )
    recipe: Optional[str] = _of_what(
        None,
        help="cell of a paper's table, whose settings apply unless a flag overrides"
        " them; bin/recipes lists them",
        tags=(SHORTHAND, KEY, COMMON),
    )
    settings_of: Optional[str] = _of_what(
        None,
        help="source of the settings that no flag and no recipe gives: a method, the"
        " task (task), or the first method of each process (each); the default is each"
        " for bin/run and experiment.run on data of papers, and else task",
        tags=(SHORTHAND, COMMON),
    )
    clients_per_round: int = _of_rounds(
        16,
        help="clients that take part in a round",
        minimum=1,
        rules=(
            wrong_when(
                lambda clients_per_round, num_clients: clients_per_round > num_clients,
                "there are only {num_clients} clients (num_clients); give at most"
                " {num_clients}.",
            ),
        ),
        tags=(KEY, SETUP),
    )
    participation: Optional[float] = _of_rounds(
        None,
        help="clients_per_round as a fraction of all clients",
        above=0,
        maximum=1,
        tags=(SHORTHAND, SETUP),
    )
    client_sampling: str = _of_rounds(
        "fixed",
        help="how clients are sampled: fixed draws exactly clients_per_round;"
        " independent includes each client with probability clients_per_round /"
        " num_clients",
        choices=("fixed", "independent"),
        rules=(
            conflicts(
                "aggregator", "dp", why="counts on cohorts of one size", then="fixed"
            ),
        ),
        tags=(HEADER, SETUP),
    )
    rounds_per_evaluation: int = _of_files(
        1, help="number of rounds between two tests of the global model", minimum=1
    )
    client_evaluation: Optional[int] = _of_files(
        None,
        help="measures each client's accuracy: of client_test_share's examples, or that"
        " expected from the test set's recall of its classes; alone after the last"
        " round, with a number also at such intervals of rounds",
        minimum=0,
        alone=0,
        tags=(HEADER, ASIDE),
    )
    finetune_epochs: Optional[int] = _of_files(
        None,
        help="client_evaluation: measures also copies of the global model that each"
        " client trained for so many more epochs on its own examples",
        minimum=1,
        rules=(conflicts("process", *catalogue.WITHOUT_MODEL, is_quiet=True),),
    )
    drift: bool = _of_files(
        False,
        help="measures in each round how far the clients' updates drift apart: norm,"
        " cosine to their mean, divergence, of all weights and of each block",
        rules=(
            conflicts("process", *catalogue.REFERENCES, is_quiet=True),
            only_with("aggregator", "mean"),
        ),
        tags=(ASIDE,),
    )
    score: str = _of_files(
        scores.DEFAULT,
        help="what models are judged by in tables, curves and targets, and for patience"
        " and keep_best: accuracy, loss, or a metric of Keras, such as mae or auc",
        placeholder="NAME",
    )
    lower_is_better: Optional[bool] = _of_files(
        None,
        help="whether a lower score is better; by default it is of losses and errors",
    )
    score_at_rounds: tuple[int, ...] = _read_off(
        (),
        help="rounds, such as 500,1000, whose test score summary.json lists",
        minimum=1,
        tags=(NO_EFFECT, SUMMARY),
    )
    targets: tuple[float, ...] = _read_off(
        (),
        help="scores, such as accuracies 0.48,0.52; summary.json lists the first round"
        " that reaches each",
        rules=(
            wrong_when(
                lambda targets, score: (
                    scores.Score(score).is_share
                    and not all(0 < each <= 1 for each in targets)
                ),
                "each {score} must be above 0 and at most 1.",
            ),
        ),
        tags=(NO_EFFECT, SUMMARY),
    )
    target_measure: str = _read_off(
        "average",
        help="what must reach a target: the moving average of the score, or the score"
        " itself (raw)",
        choices=("average", "raw"),
        tags=(NO_EFFECT, SUMMARY),
    )
    target_model: str = _read_off(
        "server",
        help="whose score must reach a target: the server model's, or that of the"
        " mean of all clients' latest models",
        choices=("server", "all_clients"),
        rules=(
            conflicts("process", *catalogue.REFERENCES, is_quiet=True),
            only_with("averages_all_clients"),
        ),
        tags=(NO_EFFECT, SUMMARY),
    )
    stop_at_target: bool = _of_rounds(
        False,
        help="end the run once the best of targets is reached",
        rules=(
            _OF_SHARED,
            only_with("targets", why="give targets, such as 0.6,0.7."),
        ),
    )
    patience: Optional[int] = _of_rounds(
        None,
        help="rounds without a better score, on held-out examples if there is a"
        " validation_share and else on the test set, after which the run ends",
        minimum=1,
        rules=(_OF_SHARED,),
    )
    keep_best: bool = _of_files(
        False,
        help="also keep the model of the round with the best test score",
        rules=(_OF_SHARED,),
        tags=(ASIDE,),
    )
    debug_eager: bool = _of_what(
        False,
        help="hooks of methods run without tracing, so that print and breakpoint() work"
        " in them; slow",
        rules=(only_with("runtime", "in_process"),),
        tags=(NO_EFFECT,),
    )
    compile_steps: str = _of_what(
        "auto",
        help="whether XLA compiles the clients' steps on full batches; auto: on a GPU",
        choices=("auto", "true", "false"),
        rules=(conflicts("debug_eager", True),),
        tags=(NO_EFFECT,),
    )
    rounds_per_checkpoint: int = _read_off(
        1,
        help="number of rounds between two checkpoints",
        minimum=1,
    )
    track: tuple[str, ...] = _read_off(
        (),
        help="where config, numbers and pictures go as well: tensorboard,"
        " wandb:PROJECT, mlflow:EXPERIMENT; a comparison is a group there",
        placeholder="NAME[:PROJECT]",
    )
    output_dir: str = _read_off(
        "runs/{process}-{task}-seed{seed}",
        help="output directory: {seed}, {process} and {task} are replaced by the run's;"
        " the same directory again resumes",
        placeholder="DIR",
        tags=(NO_EFFECT, KEY),
    )
    overwrite: bool = _read_off(
        False,
        help="delete the run in output_dir and start anew",
        tags=(NO_EFFECT, KEY),
    )
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings_from: str = dataclasses.field(default="", compare=False)

    def __new__(cls, *args: Any, **given: Any):
        """Refuses arguments that are no settings; see `settings.check_names`."""
        called = getattr(cls, "CALLED", cls.__name__)
        for name in catalogue.named(given).keys() & given.keys():
            raise TypeError(
                f"{called} takes {name} among its hyperparameters: give"
                f" hyperparameters={{{name!r}: {given[name]!r}}}."
            )
        every = catalogue.hyperparameters
        check_names(cls, given, lambda: [each.flag for each in every()])
        return super().__new__(cls)

    def __post_init__(self):
        """Checks the given values."""
        known = {each.name: each for each in settings_of(self)}
        values = {n: each.adopt(getattr(self, n)) for n, each in known.items()}
        values["process"] = values["process"] or None
        for name, value in values.items():
            # A function of the round (1, 2, ...) is not checked: `resolution` calls it.
            is_schedule = name == "client_learning_rate" and callable(value)
            if value is not None and not is_schedule:
                known[name].check(value)
        if values["plugin"]:
            values["plugin"] = tuple(map(os.path.abspath, values["plugin"]))
            catalogue.add_files(values["plugin"], known.values())
        if name := values["process"]:
            values["process"] = resolution.process_name(name)
        if values["settings_of"] not in (None, TASK, EACH):
            choices = [TASK, EACH, *catalogue.names()]
            own = dataclasses.replace(known["settings_of"], choices=choices)
            own.check(values["settings_of"])
        for name, value in values.items():
            object.__setattr__(self, name, value)
        hyperparameters = _checked(self.hyperparameters)
        object.__setattr__(self, "hyperparameters", hyperparameters)
        if self.process is not None:
            resolution.check_owned(hyperparameters, [self.process])

    @classmethod
    def of(cls, values: Mapping[str, Any]):
        """Makes a config from settings by name, hyperparameters included."""
        names = {each.name for each in settings_of(cls)} | {"settings_from"}
        own = {name: value for name, value in values.items() if name in names}
        rest = {name: value for name, value in values.items() if name not in names}
        return cls(**own, hyperparameters=rest)

    @classmethod
    def gathered(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns keyword arguments with the methods' own among `hyperparameters`."""
        if files := given.get("plugin"):
            files = [files] if isinstance(files, str) else files
            catalogue.add_files(map(os.path.abspath, files), settings_of(cls))
        known = catalogue.named(given)
        rest = {name: value for name, value in given.items() if name not in known}
        if own := {name: given[name] for name in given if name in known}:
            rest["hyperparameters"] = {**rest.get("hyperparameters", {}), **own}
        return rest

    def given(self) -> dict[str, Any]:
        """Returns the given settings by name, hyperparameters of methods among them."""
        values = {each.name: getattr(self, each.name) for each in settings_of(self)}
        given = {name: value for name, value in values.items() if value is not None}
        return {**given, **self.hyperparameters}

    def resolved(self, tasks: Any = lazy.tasks) -> ResolvedConfig:
        """Returns the config with a value for every setting.

        Args:
          tasks: The module `tasks`, or an object with its `names` and `defaults`, and
            `recipes` if there are any.

        Returns:
          The config. `recipe` is replaced by its settings, except for those that do not
          apply: an alpha of another partition, hyperparameters of methods that are not
          part of the process. `participation` is replaced by `clients_per_round`; a
          setting that is off, such as a `max_gradient_norm` of 0, is None.

        Raises:
          SettingError: If there is no process, no such task or recipe, or two settings
            contradict each other.
        """
        given = self.given()
        recipe = self._of_recipe(tasks) if self.recipe else {}
        values = resolution.resolve(given, recipe, settings_of(self), tasks)
        return ResolvedConfig.of(values)

    def _of_recipe(self, tasks: Any) -> dict[str, Any]:
        """Returns the checked settings of the recipe."""
        if not hasattr(tasks, "recipes"):
            raise SettingError("recipe", self.recipe, "there are no recipes here.")
        try:
            settings = tasks.recipes.settings(self.recipe)
        except ValueError as error:
            raise SettingError("recipe", self.recipe, str(error)) from error
        return self.of(settings).given()


class ResolvedConfig(RunConfig):
    """The settings of a run, all of them resolved; None for a setting that is off."""

    def resolved(self, tasks: Any = lazy.tasks) -> ResolvedConfig:
        """Returns itself."""
        del tasks
        return self

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that the run adds to federated averaging."""
        return self.build_methods(self.process, self.hyperparameters)

    def part(self, kind: type) -> dict[str, Any]:
        """Returns the values of the settings that a class declares, by name."""
        return {each.name: getattr(self, each.name) for each in settings_of(kind)}

    def dump(self) -> dict[str, Any]:
        """Returns JSON values by name, hyperparameters too, as in `config.json`."""
        values = {
            each.name: getattr(self, each.name)
            for each in _by_heading()
            if SHORTHAND not in each.tags
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in {
                **values,
                **self.hyperparameters,
                "settings_from": self.settings_from,
            }.items()
        }

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> ResolvedConfig:
        """Makes a config from the values in `config.json`; the inverse of `dump`.

        Values that are no settings are left out; missing settings get their defaults.

        Raises:
          SettingError: If the values are not a run's.
        """
        if "process" not in values:
            raise SettingError("process", None, "it is missing.")
        catalogue.add_files(values.get("plugin", ()), settings_of(cls))
        known = listed(values["process"])
        found = {s.name: values.get(s.name, s.default) for s in known}
        return cls.of({**found, "settings_from": values.get("settings_from", "")})


def listed(
    process: Optional[str] = None, words: Optional[Iterable[str]] = None
) -> list[Setting]:
    """Returns all settings, heading by heading, required ones first.

    The hyperparameters of the process's methods come last; of all methods, if None, or
    of those that words name, such as the arguments of a command.
    """
    own = (
        catalogue.hyperparameters(process)
        if words is None
        else catalogue.named(words).values()
    )
    hyperparameters = [
        dataclasses.replace(each.setting, name=each.flag, group=HYPERPARAMETERS)
        for each in own
    ]
    return [*_by_heading(), *hyperparameters]


def _by_heading() -> list[Setting]:
    return sorted(
        settings_of(RunConfig),
        key=lambda s: (_GROUPS.index(s.group), s.default is not dataclasses.MISSING),
    )


def _checked(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Checks hyperparameters, of any method; returns those that are not None."""
    known = catalogue.named(hyperparameters)
    found = {}
    for name, value in hyperparameters.items():
        if name not in known:
            near = near_names(name, [each.name for each in listed()])
            raise SettingError(name, None, f"there is no such setting{near}.")
        if value is None:
            continue
        found[name] = known[name].setting.adopt(value)
        known[name].setting.check(found[name], name)
        try:
            catalogue.build(known[name].method, {name: found[name]})
        except SettingError as error:
            raise SettingError(name, value, error.reason) from error
        except ValueError as error:
            raise SettingError(name, value, str(error)) from error
    return found
