"""The settings of a run: what can be set, and from what a run takes each value.

    config = RunConfig(process="fedalign", seed=1, strengths={"fedalign_strength": 0.3})
    config.resolved().client_learning_rate

A value comes from the user, else from the recipe that the user named, else from the
task, else from the paper of the process's first method, else from the field itself.
From the fields follow the flags of commands and their help, and `config.json`. This
module needs no TensorFlow: a run that cannot be is refused before anything is loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg import lazy, runtime
from tff_reg.data import partitions
from tff_reg.experiment import scale as scale_lib, task_settings
from tff_reg.methods import catalogue
from tff_reg.models import names as model_names
from tff_reg.runtime import ray_cluster
from tff_reg.settings import Setting, SettingError, setting, settings_of, undecided
from tff_reg.training import process_settings

# Headings of a help, in their order.
FILES = "Evaluation and files"
WHERE = "Where clients run"
_of_what = functools.partial(setting, group=task_settings.WHAT)
_of_rounds = functools.partial(setting, group=process_settings.ROUNDS)
_of_server = functools.partial(setting, group=process_settings.SERVER)
_of_files = functools.partial(setting, group=FILES)
_of_where = functools.partial(setting, group=WHERE)
STRENGTHS = "Strengths of the methods"
_GROUPS = (
    task_settings.WHAT,
    process_settings.ROUNDS,
    process_settings.CLIENTS,
    process_settings.SERVER,
    task_settings.DATA,
    FILES,
    WHERE,
    STRENGTHS,
)

# Tag: it stands for other settings, which a run has in its place.
_SHORTHAND = "shorthand"

_GUARDED = {"aggregator": ("robust", "secure", "compressed")}
_PRIVATE = {"aggregator": ("dp",)}
_COMPRESSED = {"aggregator": ("compressed",)}
_RAY = {"runtime": ("ray",)}


@dataclasses.dataclass(frozen=True)
@undecided
class RunConfig(process_settings.ProcessSettings, task_settings.TaskSettings):
    """What is asked of a run; None stands for what is not.

    Attributes:
      strengths: Strengths of the process's methods, as `<method>_<field>`.
    """

    process: str = _of_what(help="method, or a sum of methods such as fedprox+man")
    recipe: Optional[str] = _of_what(
        None,
        help="cell of a paper's table, whose settings count where no flag says"
        " otherwise; bin/recipes lists them",
        tags=(_SHORTHAND,),
    )
    clients_per_round: int = _of_rounds(16, help="clients that take part", minimum=1)
    participation: Optional[float] = _of_rounds(
        None,
        help="the same as a fraction of all clients",
        above=0,
        maximum=1,
        tags=(_SHORTHAND,),
    )
    client_sampling: str = _of_rounds(
        "fixed",
        help="how they are drawn: so many, or independent, each client with the"
        " probability that makes it so many on average",
        choices=("fixed", "independent"),
    )
    aggregator: str = _of_server(
        "mean",
        help="how all that clients send becomes one",
        choices=("mean", "robust", "dp", "secure", "compressed"),
    )
    aggregator_zeroing: Optional[bool] = _of_server(
        True,
        help="robust, secure, compressed: updates with far too large values count as 0",
        only_with=_GUARDED,
    )
    aggregator_clipping: Optional[bool] = _of_server(
        True,
        help="robust, secure, compressed: updates are clipped at the 0.8 quantile of"
        " norms",
        only_with=_GUARDED,
    )
    dp_noise_multiplier: Optional[float] = _of_server(
        1.0,
        help="dp: deviation of the noise on the sum, over the clipping norm",
        minimum=0,
        only_with=_PRIVATE,
    )
    dp_clipping: Optional[str] = _of_server(
        "adaptive",
        help="dp: whether the norm follows the clients' median",
        choices=("adaptive", "fixed"),
        only_with=_PRIVATE,
    )
    dp_clip_norm: Optional[float] = _of_server(
        0.1,
        help="dp: where an update's norm is clipped, adaptive: in the first round",
        above=0,
        only_with=_PRIVATE,
    )
    dp_delta: Optional[float] = _of_server(
        1e-5, help="dp: of its epsilon", above=0, below=1, only_with=_PRIVATE
    )
    compressed_bits: Optional[int] = _of_server(
        8,
        help="compressed: bits of a number",
        minimum=1,
        maximum=16,
        only_with=_COMPRESSED,
    )
    compressed_threshold: Optional[int] = _of_server(
        20000,
        help="compressed: only tensors with more numbers are",
        minimum=0,
        only_with=_COMPRESSED,
    )
    rounds_per_evaluation: int = _of_files(
        1, help="test the global model every so many rounds", minimum=1
    )
    accuracy_at_rounds: tuple[int, ...] = _of_files(
        (),
        help="rounds, such as 500,1000, whose test accuracy summary.json has too",
        minimum=1,
        tags=(process_settings.FREE,),
    )
    target_accuracies: tuple[float, ...] = _of_files(
        (),
        help="such as 0.48,0.52: summary.json has the first round that reaches it",
        above=0,
        maximum=1,
        tags=(process_settings.FREE,),
    )
    target_measure: str = _of_files(
        "average",
        help="what has to reach it: the moving average of the accuracy, or the accuracy"
        " itself (raw)",
        choices=("average", "raw"),
        tags=(process_settings.FREE,),
    )
    target_model: str = _of_files(
        "server",
        help="whose accuracy: the server's model's, or that of the mean of all clients'"
        " last models",
        choices=("server", "all_clients"),
        tags=(process_settings.FREE,),
    )
    keep_best: bool = _of_files(
        False,
        help="whether the model of the round with the best test accuracy is kept, too",
    )
    rounds_per_checkpoint: int = _of_files(
        1,
        help="make the run resumable every so many rounds",
        minimum=1,
        tags=(process_settings.FREE,),
    )
    output_dir: str = _of_files(
        "runs/{process}-{task}-seed{seed}",
        help="where everything is written, {seed}, {process} and {task} in it becoming"
        " the run's; the same directory again resumes",
        placeholder="DIR",
        tags=(process_settings.FREE,),
    )
    overwrite: bool = _of_files(
        False, help="start anew in that directory", tags=(process_settings.FREE,)
    )
    runtime: str = _of_where("in_process", help="what runs them", choices=runtime.KINDS)
    devices: Optional[tuple[str, ...]] = _of_where(
        None,
        help="such as GPU:0,GPU:1; all GPUs, or the CPU",
        only_with={"runtime": ("in_process",)},
        tags=(process_settings.FREE,),
    )
    clients_in_parallel: Optional[int] = _of_where(
        None,
        help="clients at a time on each device; ray: in all",
        minimum=1,
        tags=(process_settings.FREE,),
    )
    require_gpu: bool = _of_where(
        False,
        help="fail if there is no GPU",
        only_with={"runtime": ("in_process", "ray")},
        tags=(process_settings.FREE,),
    )
    ray_address: Optional[str] = _of_where(
        None,
        help="ray: host:port of its head node, or auto where this machine is a node;"
        " else it is started here, and ended",
        only_with=_RAY,
        tags=(process_settings.FREE,),
    )
    gpus_per_client: float = _of_where(
        0.25,
        help="ray: the part of a GPU that a client has, where there are any",
        minimum=0,
        maximum=1,
        only_with=_RAY,
        tags=(process_settings.FREE,),
    )
    cpus_per_client: float = _of_where(
        1.0,
        help="ray: the CPUs that a client has",
        above=0,
        only_with=_RAY,
        tags=(process_settings.FREE,),
    )
    data_on_nodes: bool = _of_where(
        False,
        help="ray: whether nodes load the task's data, instead of being sent them",
        only_with=_RAY,
        tags=(process_settings.FREE,),
    )
    strengths: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        """Checks what is given.

        Raises:
          SettingError: If a value cannot be, or a strength is of no method of the
            process.
        """
        for each in settings_of(self):
            value = each.adopt(getattr(self, each.name))
            if each.name == "process":
                value = process_name(value) if value else None
            if value is not None:
                each.check(value)
            object.__setattr__(self, each.name, value)
        strengths = _checked(self.strengths)
        object.__setattr__(self, "strengths", strengths)
        if self.process is not None:
            _check_owned(strengths, self.process)

    @classmethod
    def of(cls, values: Mapping[str, Any]):
        """Makes one of settings by name, strengths among them.

        Args:
          values: The settings.

        Returns:
          The config.

        Raises:
          SettingError: If there is no such setting, or a value cannot be.
        """
        names = {each.name for each in settings_of(cls)}
        own = {name: value for name, value in values.items() if name in names}
        rest = {name: value for name, value in values.items() if name not in names}
        return cls(**own, strengths=rest)

    def given(self) -> dict[str, Any]:
        """What is not None, by name, strengths among them."""
        values = {each.name: getattr(self, each.name) for each in settings_of(self)}
        given = {name: value for name, value in values.items() if value is not None}
        return {**given, **self.strengths}

    def resolved(self, tasks: Any = lazy.tasks) -> ResolvedConfig:
        """The config with a value for everything.

        Args:
          tasks: The module `tasks`, or what has its `names` and `defaults`, and its
            `recipes` if there are any.

        Returns:
          The config. `recipe` has become what it sets, of which what makes no sense
          beside the others falls away: an alpha where the partition has none, strengths
          of methods that are not part of the process. `participation` has become
          `clients_per_round`; a `max_gradient_norm` of 0 has become None, like all that
          does not apply.

        Raises:
          SettingError: If there is no process, no such task or recipe, or two settings
            contradict each other.
        """
        return _Resolution(self, tasks).config()


# What may differ between a run and its continuation without changing its numbers.
FREE_SETTINGS = frozenset(
    each.name for each in settings_of(RunConfig) if process_settings.FREE in each.tags
)


class ResolvedConfig(RunConfig):
    """What a run does: None only stands for what is off or does not apply."""

    def resolved(self, tasks: Any = lazy.tasks) -> ResolvedConfig:
        """Itself."""
        del tasks
        return self

    def part(self, kind: type) -> dict[str, Any]:
        """The settings that a class of settings has, by name."""
        return {each.name: getattr(self, each.name) for each in settings_of(kind)}

    def dump(self) -> dict[str, Any]:
        """JSON values by name, strengths among them, as `config.json` has them."""
        values = {
            each.name: getattr(self, each.name)
            for each in _by_heading()
            if _SHORTHAND not in each.tags
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in {**values, **self.strengths}.items()
        }

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> ResolvedConfig:
        """The inverse of `dump`.

        Args:
          values: What `config.json` holds; what is no setting is left out. What an
            older version did not know is as that version had it, the default.

        Returns:
          The config.

        Raises:
          SettingError: If it is not that of a run.
        """
        if "process" not in values:
            raise SettingError("process", None, "it is missing.")
        values = modernised(values)
        known = listed(values["process"])
        return cls.of({s.name: values.get(s.name, s.default) for s in known})

    def aggregation(self) -> dict[str, Any]:
        """Its settings as `aggregators.build_model_aggregator` takes them."""
        applying = {
            each.name.removeprefix("aggregator_"): getattr(self, each.name)
            for each in settings_of(self)
            if self.aggregator in each.only_with.get("aggregator", ())
        }
        # That one is for the accountant.
        applying.pop("dp_delta", None)
        return {
            "kind": self.aggregator,
            "clients_per_round": self.clients_per_round,
            **applying,
        }


def listed(process: Optional[str] = None) -> list[Setting]:
    """What can be set, heading by heading.

    Args:
      process: A process name, whose strengths are the last; None for those of all
        methods.

    Returns:
      The settings; under each heading first what has to be given.

    Raises:
      UnknownProcessError: If the name is not one.
    """
    return [*_by_heading(), *_strengths(process)]


def _by_heading() -> list[Setting]:
    return sorted(
        settings_of(RunConfig),
        key=lambda s: (_GROUPS.index(s.group), s.default is not dataclasses.MISSING),
    )


def _strengths(process: Optional[str]) -> list[Setting]:
    return [
        dataclasses.replace(each.setting, name=each.flag, group=STRENGTHS)
        for each in catalogue.strengths(process)
    ]


def modernised(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a `config.json` says, as this version says it.

    Args:
      values: By name; an older version wrote lists as texts such as `500,1000`.

    Returns:
      The values, lists as lists.
    """
    known = {each.name: each for each in listed() if each.is_tuple}
    lists = {
        name: list(known[name].read(values[name] or ""))
        for name in known.keys() & values.keys()
        if isinstance(values[name], str)
        or (values[name] is None and not known[name].is_optional)
    }
    return {**values, **lists}


def process_name(text: str) -> str:
    """A process's name in the one way in which runs are named.

    Args:
      text: A sum of methods; `fedavg`, which adds nothing, may be among them.

    Returns:
      The name.

    Raises:
      SettingError: If it is no process.
    """
    try:
        catalogue.parse(text)
    except ValueError as error:
        raise SettingError("process", text, str(error)) from error
    parts = catalogue.parts_of(text)
    return "+".join(part for part in parts if part != "fedavg") or "fedavg"


def _checked(strengths: Mapping[str, Any]) -> dict[str, Any]:
    """Checks strengths, of any method."""
    methods = {each.flag: each.method for each in catalogue.strengths()}
    known = {each.name: each for each in _strengths(None)}
    checked = {}
    for name, value in strengths.items():
        if name not in known:
            raise SettingError(name, None, "there is no such setting.")
        if value is None:
            continue
        checked[name] = known[name].adopt(value)
        known[name].check(checked[name])
        try:
            catalogue.build(methods[name], {name: checked[name]})
        except SettingError as error:
            raise SettingError(name, value, error.reason) from error
        except ValueError as error:
            raise SettingError(name, value, str(error)) from error
    return checked


def _check_owned(strengths: Mapping[str, Any], process: str) -> None:
    """Checks that strengths are of methods of the process."""
    own = {each.name for each in _strengths(process)}
    methods = {each.flag: each.method for each in catalogue.strengths()}
    for name, value in strengths.items():
        if name not in own:
            reason = f"{methods[name]} is not part of process={process}."
            raise SettingError(name, value, reason)


def _settings_of_recipe(name: Optional[str], tasks: Any) -> dict[str, Any]:
    if name is None:
        return {}
    if not hasattr(tasks, "recipes"):
        raise SettingError("recipe", name, "there are no recipes here.")
    try:
        return RunConfig.of(tasks.recipes.settings(name)).given()
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError("recipe", name, str(error)) from error


class _Resolution:
    """One way from what is asked to what a run does."""

    def __init__(self, asked: RunConfig, tasks: Any):
        self._given = asked.given()
        self._settings = settings_of(RunConfig)
        self._values = {each.name: each.default for each in self._settings}
        recipe = _settings_of_recipe(asked.recipe, tasks)
        chosen = {**recipe, **self._given, "recipe": None}
        if "process" not in chosen:
            raise SettingError(
                "process",
                None,
                "it is missing; give one or a sum (a+b) of"
                f" {', '.join(catalogue.names())}.",
            )
        _check_owned(asked.strengths, chosen["process"])
        task = chosen.get("task", self._values["task"])
        (of_task,) = (each for each in self._settings if each.name == "task")
        dataclasses.replace(of_task, choices=tuple(tasks.names())).check(task)
        self._task = tasks.defaults(task)
        self._values.update(catalogue.settings(chosen["process"]))
        self._values.update(self._of_task())
        own = {each.name: each for each in _strengths(chosen["process"])}
        for name, value in chosen.items():
            if name in self._values or name in own:
                self._values[name] = value

    def _of_task(self) -> dict[str, Any]:
        own = {
            each.name: getattr(self._task, each.name)
            for each in settings_of(task_settings.TaskSettings)
            if hasattr(self._task, each.name)
        }
        return {**own, **self._task.override_values()}

    def config(self) -> ResolvedConfig:
        """What a run does."""
        self._settle_norm()
        self._settle_clients()
        self._settle_partition()
        self._refuse_options_of_other_tasks()
        self._settle_training()
        self._settle_normalization()
        self._settle_targets()
        self._settle_what_does_not_apply()
        self._settle_scale()
        self._settle_privacy()
        self._check_ray_address()
        values = self._values
        if not values["output_dir"]:
            (output_dir,) = (s for s in self._settings if s.name == "output_dir")
            values["output_dir"] = output_dir.default
        for name in ("process", "task", "seed"):
            values["output_dir"] = values["output_dir"].replace(
                f"{{{name}}}", str(values[name])
            )
        defaults = {s.name: s.default for s in _strengths(values["process"])}
        return ResolvedConfig.of({**defaults, **values})

    def _refuse(self, name: str, why: str) -> None:
        if name in self._given:
            raise SettingError(name, self._given[name], why)

    def _settle_norm(self) -> None:
        norms = model_names.norms_of(self._values["model"])
        if "norm" not in self._given and self._values["norm"] not in norms:
            self._values["norm"] = norms[0]

    def _settle_clients(self) -> None:
        values, given = self._values, self._given
        num_clients, num_examples = values["num_clients"], self._task.num_train_examples
        if num_examples is not None and num_clients > num_examples:
            raise SettingError(
                "num_clients",
                num_clients,
                f"the task {values['task']} has only {num_examples} training examples.",
            )
        if "participation" in given:
            share = given["participation"]
            why = f"it contradicts participation={share:g}; give one."
            self._refuse("clients_per_round", why)
            per_round = max(1, round(given["participation"] * num_clients))
            values.update(clients_per_round=per_round, participation=None)
        elif "clients_per_round" not in given:
            values["clients_per_round"] = min(values["clients_per_round"], num_clients)
        if values["clients_per_round"] > num_clients:
            raise SettingError(
                "clients_per_round",
                values["clients_per_round"],
                f"there are only {num_clients} clients (num_clients); give at most"
                f" {num_clients}.",
            )

    def _settle_partition(self) -> None:
        values = self._values
        scheme = partitions.PARTITIONS[values["partition"]]
        needs = [each.needs for each in partitions.PARTITIONS.values()]
        for name in dict.fromkeys(itertools.chain(*needs)):
            if name not in values:
                continue
            if name not in scheme.needs:
                what = name.replace("_", " ")
                self._refuse(name, f"the partition {scheme.name} has no {what}.")
                values[name] = None
            elif values[name] is None:
                why = f"it is missing; the partition {scheme.name} needs it."
                raise SettingError(name, None, why)
        num_domains = self._task.num_domains
        if "domains" not in scheme.needs or num_domains is None:
            return
        if not num_domains:
            raise SettingError(
                "partition",
                scheme.name,
                f"the task {values['task']} has no domains; choose another partition.",
            )
        if values["num_clients"] % num_domains:
            raise SettingError(
                "num_clients",
                values["num_clients"],
                f"the task {values['task']} has {num_domains} domains, and the"
                f" partition {scheme.name} needs a multiple of that.",
            )

    def _refuse_options_of_other_tasks(self) -> None:
        for each in self._settings:
            if (
                task_settings.OPTION in each.tags
                and each.name not in self._task.options
            ):
                why = f"the task {self._values['task']} has no such option."
                self._refuse(each.name, why)

    def _settle_training(self) -> None:
        values = self._values
        if not values["max_gradient_norm"]:
            values["max_gradient_norm"] = None
        if not values["client_momentum"]:
            if self._given.get("client_nesterov"):
                self._refuse("client_nesterov", "it needs a client_momentum above 0.")
            values["client_nesterov"] = False

    def _settle_normalization(self) -> None:
        mean, std = self._values["pixel_mean"], self._values["pixel_std"]
        if len(mean) != len(std):
            raise SettingError(
                "pixel_mean",
                mean,
                f"there are {len(std)} deviations (pixel_std); give as many of both.",
            )

    def _settle_targets(self) -> None:
        values = self._values
        if (
            values["target_model"] == "all_clients"
            and not values["averages_all_clients"]
        ):
            why = "there is no such mean without averages_all_clients."
            self._refuse("target_model", why)
            values["target_model"] = "server"

    def _settle_what_does_not_apply(self) -> None:
        """Refuses what has no meaning beside the others, and sets it back."""
        for each in self._settings:
            for other, fitting in each.only_with.items():
                found = self._values[other]
                if found in fitting:
                    continue
                # Nobody is contradicted who switches off what is off.
                if self._given.get(each.name) is not False or each.is_optional:
                    *most, last = fitting
                    which = f"{', '.join(most)} or {last}" if most else last
                    self._refuse(each.name, f"it is for {other}={which}, not {found}.")
                self._values[each.name] = None if each.is_optional else each.default

    def _settle_scale(self) -> None:
        values = self._values
        if values["synthetic_data"]:
            self._refuse("data_dir", "synthetic_data takes the place of all data.")
        if values["partition"] == "split_file":
            why = "the partition split_file deals out all of a data set, never a part."
            self._refuse("scale", why)
            self._refuse("validation_share", why)
        if values["scale"] is None:
            return
        values.update(scale_lib.parse(values["scale"]).settings(values))

    def _settle_privacy(self) -> None:
        values = self._values
        if values["aggregator"] != "dp":
            return
        if values["client_weighting"] != "uniform":
            self._refuse(
                "client_weighting", "aggregator=dp takes the plain mean; leave it out."
            )
            values["client_weighting"] = "uniform"
        if values["client_sampling"] != "fixed":
            why = "aggregator=dp counts on cohorts of one size; leave it out."
            self._refuse("client_sampling", why)
            values["client_sampling"] = "fixed"
        noise, cohort = values["dp_noise_multiplier"], values["clients_per_round"]
        if values["dp_clipping"] == "adaptive" and noise >= cohort / 10:
            raise SettingError(
                "dp_noise_multiplier",
                noise,
                f"adaptive clipping can have less than a tenth of the {cohort} clients"
                " of a round; give more clients, or dp_clipping=fixed with a"
                " dp_clip_norm.",
            )

    def _check_ray_address(self) -> None:
        address = self._values["ray_address"]
        try:
            if address is not None:
                ray_cluster.check_address(address)
        except ValueError as error:
            raise SettingError("ray_address", address, str(error)) from error
