"""The settings of a run: what can be set, and from what a run takes each value.

A value comes from the user, else from the recipe that the user named, else from the
task, else from the paper of the process's first method, else from the option itself.
This module needs no TensorFlow: a run that cannot be is refused before anything is
loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Any, Callable, Mapping, Optional, Sequence

from tff_reg.data import augmentation, partitions
from tff_reg.experiment import scale, summary
from tff_reg.models import names as model_names
from tff_reg.processes import catalog
from tff_reg.runtime import addresses

# tff_reg.runtime.KINDS; a test compares.
RUNTIMES = ("in_process", "native", "remote")


class SettingError(ValueError):
    """Raised when settings make no run; one sentence that names the flag."""


@dataclasses.dataclass(frozen=True)
class Option:
    """Something that can be set, by a flag or from Python.

    Attributes:
      name: The setting's and the flag's name.
      type: bool, int, float or str.
      group: The heading that `--help` shows it under.
      help: What it is, for `--help`.
      minimum: The least value; None for none.
      above: The value that it must be greater than; None for none.
      maximum: The greatest value; None for none.
      below: The value that it must be less than; None for none.
      choices: The names that it may be, or None.
      parse: What reads it, where it is a list; its ValueError ends a sentence that
        begins with the flag.
      default: The value where neither the user, the task nor the paper gives one.
    """

    name: str
    type: type
    group: str
    help: str
    minimum: Optional[float] = None
    above: Optional[float] = None
    maximum: Optional[float] = None
    below: Optional[float] = None
    choices: Optional[Sequence[str]] = None
    parse: Optional[Callable[[str], Any]] = None
    default: Any = None

    def check(self, value: Any) -> None:
        """Checks one value.

        Raises:
          SettingError: If it is out of range or no choice.
        """
        if self.parse is not None:
            try:
                self.parse(value)
            except ValueError as error:
                raise SettingError(f"--{self.name}={value}: {error}") from error
        if self.choices is not None and value not in self.choices:
            raise SettingError(
                f"--{self.name}={value}: there is no such {self.name.replace('_', ' ')}"
                f"{near_names(value, self.choices)}; choose one of"
                f" {', '.join(self.choices)}."
            )
        if self.type is float and not math.isfinite(value):
            raise SettingError(f"--{self.name}={value}: it must be a finite number.")
        if self.minimum is not None and value < self.minimum:
            raise SettingError(
                f"--{self.name}={value}: it must be at least {self.minimum}."
            )
        if self.above is not None and value <= self.above:
            raise SettingError(
                f"--{self.name}={value}: it must be greater than {self.above}."
            )
        if self.maximum is not None and value > self.maximum:
            raise SettingError(
                f"--{self.name}={value}: it must be at most {self.maximum}."
            )
        if self.below is not None and value >= self.below:
            raise SettingError(
                f"--{self.name}={value}: it must be less than {self.below}."
            )


def near_names(value: Any, choices: Sequence[str], prefix: str = "") -> str:
    """` (did you mean NAME?)`, or nothing where no name is near."""
    near = difflib.get_close_matches(str(value), choices, n=1)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""


WHAT, FEDERATION, CLIENTS, SERVER, DATA, RUN, WHERE = (
    "What to run",
    "Rounds and clients",
    "Training on a client",
    "Server",
    "Data and model",
    "Evaluation and files",
    "Where clients run",
)
_SERVER_OPTIMIZERS = ("sgd", "adam", "yogi", "adagrad")
_SCHEDULES = ("constant", "exponential", "cosine")
_WEIGHTINGS = ("num_examples", "uniform")
# As tff_reg.server.aggregators has them, and which strengths each takes.
_AGGREGATORS = {
    "mean": (),
    "robust": ("aggregator_zeroing", "aggregator_clipping"),
    "dp": ("dp_noise_multiplier", "dp_clipping", "dp_clip_norm", "dp_delta"),
    "secure": ("aggregator_zeroing", "aggregator_clipping"),
    "compressed": (
        "aggregator_zeroing",
        "aggregator_clipping",
        "compressed_bits",
        "compressed_threshold",
    ),
}

OPTIONS: tuple[Option, ...] = (
    Option("process", str, WHAT, "method, or a sum of methods such as fedprox+man"),
    Option(
        "recipe",
        str,
        WHAT,
        "cell of a paper's table, whose settings count where no flag says otherwise;"
        " bin/recipes lists them",
    ),
    Option("task", str, WHAT, "data set and model", default="digits"),
    Option(
        "seed", int, WHAT, "everything random follows from it", minimum=0, default=0
    ),
    Option(
        "scale",
        str,
        WHAT,
        "a run in small: such a fraction, as 0.1, of the rounds, clients, local epochs"
        " and examples that the other flags say; or tiny: at most one round of two"
        " clients with 12 examples each, in batches of 4",
        parse=scale.parse,
    ),
    Option("total_rounds", int, FEDERATION, "rounds", minimum=1),
    Option("num_clients", int, FEDERATION, "clients that share the data", minimum=1),
    Option(
        "clients_per_round", int, FEDERATION, "clients that take part", minimum=1
    ),
    Option(
        "participation",
        float,
        FEDERATION,
        "the same as a fraction of all clients",
        above=0,
        maximum=1,
    ),
    Option(
        "client_weighting",
        str,
        FEDERATION,
        "how clients weigh in the average",
        choices=_WEIGHTINGS,
    ),
    Option("local_epochs", int, CLIENTS, "passes over a client's data", minimum=1),
    Option("batch_size", int, CLIENTS, "examples of a step", minimum=1),
    Option(
        "same_local_steps",
        bool,
        CLIENTS,
        "whether all clients take the steps of one of mean size",
    ),
    Option("client_learning_rate", float, CLIENTS, "of SGD, first round", above=0),
    Option(
        "learning_rate_schedule",
        str,
        CLIENTS,
        "how the client learning rate changes from round to round",
        choices=_SCHEDULES,
    ),
    Option(
        "learning_rate_decay",
        float,
        CLIENTS,
        "factor a round of the exponential schedule",
        above=0,
    ),
    Option("client_momentum", float, CLIENTS, "of SGD", minimum=0, below=1),
    Option("client_nesterov", bool, CLIENTS, "whether the momentum is Nesterov's"),
    Option("client_weight_decay", float, CLIENTS, "L2, in the gradient", minimum=0),
    Option(
        "max_gradient_norm", float, CLIENTS, "clip gradients there; 0: off", minimum=0
    ),
    Option(
        "server_optimizer",
        str,
        SERVER,
        "applied to the average update; sgd with learning rate 1 is averaging",
        choices=_SERVER_OPTIMIZERS,
    ),
    Option("server_learning_rate", float, SERVER, "its learning rate", above=0),
    Option("server_momentum", float, SERVER, "of sgd", minimum=0, below=1),
    Option("server_epsilon", float, SERVER, "of adam, yogi and adagrad", above=0),
    Option(
        "averages_all_clients",
        bool,
        SERVER,
        "whether the mean of all clients' last models is kept and tested too",
    ),
    Option(
        "aggregator",
        str,
        SERVER,
        "how all that clients send becomes one",
        choices=tuple(_AGGREGATORS),
        default="mean",
    ),
    Option(
        "aggregator_zeroing",
        bool,
        SERVER,
        "robust, secure, compressed: updates with far too large values count as 0",
        default=True,
    ),
    Option(
        "aggregator_clipping",
        bool,
        SERVER,
        "robust, secure, compressed: updates are clipped at the 0.8 quantile of norms",
        default=True,
    ),
    Option(
        "dp_noise_multiplier",
        float,
        SERVER,
        "dp: deviation of the noise on the sum, over the clipping norm",
        minimum=0,
        default=1.0,
    ),
    Option(
        "dp_clipping",
        str,
        SERVER,
        "dp: whether the norm follows the clients' median",
        choices=("adaptive", "fixed"),
        default="adaptive",
    ),
    Option(
        "dp_clip_norm",
        float,
        SERVER,
        "dp: where an update's norm is clipped, adaptive: in the first round",
        above=0,
        default=0.1,
    ),
    Option(
        "dp_delta",
        float,
        SERVER,
        "dp: of its epsilon",
        above=0,
        below=1,
        default=1e-5,
    ),
    Option(
        "compressed_bits",
        int,
        SERVER,
        "compressed: bits of a number",
        minimum=1,
        maximum=16,
        default=8,
    ),
    Option(
        "compressed_threshold",
        int,
        SERVER,
        "compressed: only tensors with more numbers are",
        minimum=0,
        default=20000,
    ),
    Option(
        "partition",
        str,
        DATA,
        "how the data are dealt out",
        choices=partitions.names(),
    ),
    Option("concentration", float, DATA, "alpha of a Dirichlet partition", above=0),
    Option(
        "classes_per_client", int, DATA, "of the partition shards", minimum=1
    ),
    Option("split_file", str, DATA, "what the partition split_file reads"),
    Option("model", str, DATA, "network", choices=model_names.MODEL_NAMES),
    Option("norm", str, DATA, "its normalisation", choices=model_names.NORM_NAMES),
    Option(
        "projector",
        str,
        DATA,
        "layers before its classifier",
        choices=model_names.PROJECTOR_NAMES,
    ),
    Option(
        "augmentation",
        str,
        DATA,
        "how training images are varied",
        choices=augmentation.RECIPE_NAMES,
    ),
    Option(
        "image_size",
        int,
        DATA,
        "height and width, for tasks whose images can have any",
        minimum=8,
    ),
    Option("class_list", str, DATA, "file that names the classes of imagenet200"),
    Option(
        "synthetic_data",
        bool,
        DATA,
        "random images of the task's shapes in place of its data",
        default=False,
    ),
    Option("data_dir", str, DATA, "where a task's data are on the disk"),
    Option(
        "rounds_per_evaluation",
        int,
        RUN,
        "test the global model every so many rounds",
        minimum=1,
        default=1,
    ),
    Option(
        "accuracy_at_rounds",
        str,
        RUN,
        "rounds, such as 500,1000, whose test accuracy summary.json has too",
        parse=summary.parse_rounds,
    ),
    Option(
        "target_accuracies",
        str,
        RUN,
        "such as 0.48,0.52: summary.json has the round whose moving average reaches it",
        parse=summary.parse_targets,
    ),
    Option(
        "rounds_per_checkpoint",
        int,
        RUN,
        "make the run resumable every so many rounds",
        minimum=1,
        default=1,
    ),
    Option(
        "output_dir",
        str,
        RUN,
        "where everything is written, {seed} in it becoming the seed; the same directory"
        " again resumes",
    ),
    Option("overwrite", bool, RUN, "start anew in that directory", default=False),
    Option(
        "runtime", str, WHERE, "what runs them", choices=RUNTIMES, default="in_process"
    ),
    Option("devices", str, WHERE, "such as GPU:0,GPU:1; all GPUs, or the CPU"),
    Option(
        "clients_in_parallel",
        int,
        WHERE,
        "clients at a time on each device, or on each worker",
        minimum=1,
    ),
    Option(
        "workers",
        str,
        WHERE,
        "remote: such as node1:8000,node2:8000, where bin/worker has started them",
        parse=addresses.parse,
    ),
    Option("require_gpu", bool, WHERE, "fail if there is no GPU", default=False),
)

_BY_NAME = {option.name: option for option in OPTIONS}


def resolve(
    requested: Mapping[str, Any],
    *,
    task_names: Sequence[str],
    task_defaults: Callable[[str], Any],
    recipe_settings: Optional[Callable[[str], Mapping[str, Any]]] = None,
) -> dict[str, Any]:
    """The effective value of every setting.

    Args:
      requested: What the user gave, by name; None counts as not given. Beside
        `OPTIONS`, strengths as `<method>_<field>`.
      task_names: The names of all tasks.
      task_defaults: From a task's name to its `tasks.TaskDefaults`.
      recipe_settings: From a recipe's name to what it sets, as `tasks.recipes.settings`
        does; None where there are no recipes. What the user gave goes before it, and
        what of it makes no sense any more beside that falls away: an alpha where the
        partition has none, strengths of methods that are not part of the process.

    Returns:
      Values by name, in the order of `OPTIONS`, then the strengths of the process.
      `recipe` has become what it sets, `participation` has become
      `clients_per_round`; a `max_gradient_norm` of 0 has become None.

    Raises:
      SettingError: If a value is unknown or out of range, or two contradict.
    """
    given = {name: value for name, value in requested.items() if value is not None}
    recipe = _settings_of_recipe(given.pop("recipe", None), recipe_settings)
    chosen = {**recipe, **given}
    process = _check_process(chosen.get("process"))
    task_option = dataclasses.replace(_BY_NAME["task"], choices=tuple(task_names))
    task = chosen.get("task", task_option.default)
    task_option.check(task)
    for name, value in chosen.items():
        if name in _BY_NAME:
            _BY_NAME[name].check(value)
    defaults = task_defaults(task)
    values = {option.name: option.default for option in OPTIONS}
    values.update(dataclasses.asdict(catalog.settings(process)))
    values.update(
        model=defaults.model,
        norm=defaults.norm,
        augmentation=defaults.augmentation,
        image_size=defaults.image_size,
    )
    values.update(defaults.override_values())
    values.update({name: chosen[name] for name in chosen if name in _BY_NAME})
    norms = model_names.norms_of(values["model"])
    if "norm" not in given and values["norm"] not in norms:
        values["norm"] = norms[0]
    values.update(process=process, task=task)
    _settle_clients(values, given, defaults.num_train_examples)
    _settle_partition(values, given, defaults.num_domains)
    _settle_data(values, given, defaults.options)
    _settle_training(values, given)
    _settle_runtime(values, given)
    _settle_scale(values, given)
    _settle_aggregator(values, given)
    del values["participation"], values["recipe"]
    directory = values["output_dir"] or f"runs/{process}-{task}-seed{{seed}}"
    values["output_dir"] = directory.replace("{seed}", str(values["seed"]))
    values.update(_strengths(process, given, recipe))
    return values


def _settings_of_recipe(
    name: Optional[str],
    recipe_settings: Optional[Callable[[str], Mapping[str, Any]]],
) -> Mapping[str, Any]:
    if name is None:
        return {}
    if recipe_settings is None:
        raise SettingError(f"--recipe={name}: there are no recipes here.")
    try:
        return recipe_settings(name)
    except ValueError as error:
        raise SettingError(f"--recipe={name}: {error}") from error


def _check_process(process: Optional[str]) -> str:
    if not process:
        raise SettingError(
            "--process is missing: give one or a sum (a+b) of"
            f" {', '.join(catalog.names())}."
        )
    try:
        catalog.parse(process)
    except ValueError as error:
        raise SettingError(f"--process={process}: {error}") from error
    parts = [part.strip() for part in process.lower().split("+")]
    return "+".join(part for part in parts if part != "fedavg") or "fedavg"


def _refuse(given: Mapping[str, Any], name: str, why: str) -> None:
    if name in given:
        raise SettingError(f"--{name}={_shown(given[name])}: {why}")


def _shown(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _settle_clients(
    values: dict, given: Mapping[str, Any], num_examples: Optional[int]
) -> None:
    num_clients = values["num_clients"]
    if num_examples is not None and num_clients > num_examples:
        raise SettingError(
            f"--num_clients={num_clients}: the task {values['task']} has only"
            f" {num_examples} training examples."
        )
    if "participation" in given:
        _refuse(given, "clients_per_round", "it contradicts --participation; give one.")
        per_round = max(1, round(given["participation"] * num_clients))
        values["clients_per_round"] = per_round
    elif "clients_per_round" not in given:
        values["clients_per_round"] = min(values["clients_per_round"], num_clients)
    if values["clients_per_round"] > num_clients:
        raise SettingError(
            f"--clients_per_round={values['clients_per_round']}: there are only"
            f" {num_clients} clients (--num_clients); give at most {num_clients}."
        )


def _settle_partition(
    values: dict, given: Mapping[str, Any], num_domains: Optional[int]
) -> None:
    scheme = partitions.PARTITIONS[values["partition"]]
    for name in ("concentration", "classes_per_client", "split_file"):
        if name not in scheme.needs:
            what = name.replace("_", " ")
            _refuse(given, name, f"the partition {scheme.name} has no {what}.")
            values[name] = None
        elif values[name] is None:
            raise SettingError(
                f"--{name} is missing: the partition {scheme.name} needs it."
            )
    if "domains" not in scheme.needs or num_domains is None:
        return
    if not num_domains:
        raise SettingError(
            f"--partition={scheme.name}: the task {values['task']} has no domains;"
            " choose another partition."
        )
    if values["num_clients"] % num_domains:
        raise SettingError(
            f"--num_clients={values['num_clients']}: the task {values['task']} has"
            f" {num_domains} domains, and the partition {scheme.name} needs a multiple"
            " of that."
        )


def _settle_data(
    values: dict, given: Mapping[str, Any], options: Sequence[str]
) -> None:
    for name in ("data_dir", "image_size", "class_list"):
        if name not in options:
            _refuse(given, name, f"the task {values['task']} has no such option.")


def _settle_training(values: dict, given: Mapping[str, Any]) -> None:
    if not values["max_gradient_norm"]:
        values["max_gradient_norm"] = None
    if not values["client_momentum"]:
        if given.get("client_nesterov"):
            _refuse(given, "client_nesterov", "it needs a --client_momentum above 0.")
        values["client_nesterov"] = False
    if values["learning_rate_schedule"] != "exponential":
        _refuse(
            given,
            "learning_rate_decay",
            f"the {values['learning_rate_schedule']} schedule has no such factor; add"
            " --learning_rate_schedule=exponential.",
        )
        values["learning_rate_decay"] = 1.0
    if values["server_optimizer"] == "sgd":
        _refuse(given, "server_epsilon", "sgd has none; choose a --server_optimizer.")
    else:
        _refuse(
            given,
            "server_momentum",
            f"{values['server_optimizer']} has none; it is for --server_optimizer=sgd.",
        )
        values["server_momentum"] = 0.0


def _settle_runtime(values: dict, given: Mapping[str, Any]) -> None:
    runtime = values["runtime"]
    if runtime != "in_process":
        why = f"the {runtime} runtime runs on the CPU only."
        _refuse(given, "devices", why)
        if given.get("require_gpu"):
            _refuse(given, "require_gpu", why)
    if runtime != "remote":
        _refuse(given, "workers", "they are for --runtime=remote.")
    elif values["workers"] is None:
        raise SettingError(
            "--workers is missing: --runtime=remote needs the host:port of every"
            " worker; bin/worker starts one."
        )


def _settle_scale(values: dict, given: Mapping[str, Any]) -> None:
    if values["synthetic_data"]:
        _refuse(given, "data_dir", "--synthetic_data takes the place of all data.")
    if values["scale"] is None:
        return
    if values["partition"] == "split_file":
        why = "the partition split_file deals out all of a data set, never a part."
        _refuse(given, "scale", why)
    values.update(scale.parse(values["scale"]).settings(values))


def _settle_aggregator(values: dict, given: Mapping[str, Any]) -> None:
    kind = values["aggregator"]
    for name in sorted({name for names in _AGGREGATORS.values() for name in names}):
        if name not in _AGGREGATORS[kind]:
            _refuse(given, name, f"--aggregator={kind} has no such strength.")
            values[name] = None
    if kind != "dp":
        return
    if values["client_weighting"] != "uniform":
        why = "--aggregator=dp takes the plain mean; leave it out."
        _refuse(given, "client_weighting", why)
        values["client_weighting"] = "uniform"
    noise, cohort = values["dp_noise_multiplier"], values["clients_per_round"]
    if values["dp_clipping"] == "adaptive" and noise >= cohort / 10:
        raise SettingError(
            f"--dp_noise_multiplier={noise:g}: adaptive clipping can have less than a"
            f" tenth of the {cohort} clients of a round; give more clients, or"
            " --dp_clipping=fixed with a --dp_clip_norm."
        )


def aggregator_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Resolved settings as `aggregators.build_model_aggregator` takes them."""
    strengths_ = {
        name.removeprefix("aggregator_"): values[name]
        for name in _AGGREGATORS[values["aggregator"]]
        if name != "dp_delta"
    }
    cohort = values["clients_per_round"]
    return {"kind": values["aggregator"], "clients_per_round": cohort, **strengths_}


def _strengths(
    process: str, given: Mapping[str, Any], recipe: Mapping[str, Any]
) -> dict[str, Any]:
    all_fields = {field.flag: field for field in catalog.strength_fields()}
    own = {field.flag: field for field in catalog.strength_fields(process)}
    for name in given:
        if name in _BY_NAME:
            continue
        if name not in all_fields:
            raise SettingError(f"--{name}: there is no such setting.")
        if name not in own:
            raise SettingError(
                f"--{name}={_shown(given[name])}: {all_fields[name].method} is not part"
                f" of --process={process}."
            )
    chosen = {**recipe, **given}
    chosen = {name: chosen[name] for name in own if name in chosen}
    for name, value in chosen.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingError(f"--{name}={value}: it must be a finite number.")
        try:
            catalog.build_parts(process, {name: value})
        except ValueError as error:
            raise SettingError(f"--{name}={_shown(value)}: {error}") from error
    return {name: chosen.get(name, field.default) for name, field in own.items()}


def process_settings(values: Mapping[str, Any]) -> catalog.Settings:
    """The part of resolved settings that `build_from_settings` takes."""
    fields = dataclasses.fields(catalog.Settings)
    return catalog.Settings(**{field.name: values[field.name] for field in fields})


OF_TASKS = (
    "model",
    "norm",
    "projector",
    "partition",
    "concentration",
    "classes_per_client",
    "split_file",
    "num_clients",
    "seed",
    "augmentation",
    "image_size",
    "class_list",
    "data_dir",
    "synthetic_data",
    "scale",
)


def task_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's settings that `tasks.build` takes, by name."""
    return {name: values[name] for name in OF_TASKS if name in values}


def strengths(values: Mapping[str, Any]) -> dict[str, Any]:
    """The strengths among resolved settings, by flag name."""
    fields = catalog.strength_fields(values["process"])
    return {field.flag: values[field.flag] for field in fields}
