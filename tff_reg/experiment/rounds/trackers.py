"""Trackers: a run's config, numbers and pictures in W&B or MLflow.

    --track=wandb:PROJECT,mlflow:EXPERIMENT

`tensorboard` is allowed, too: its events are in every run's directory. The runs of a
comparison are a group, by the name of their directory. A resumed run goes on in the
same place. If a tracker fails, the run says so and goes on without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tff_reg.experiment.rounds import metrics
from tff_reg.experiment.rounds.callbacks import Callback, Row, Run
from tff_reg.settings import SettingError


class Tracker(Callback):
    """Base class of trackers, which override the hooks with an underscore."""

    name = package = ""  # Of a module, and of what pip installs for it.
    # Take the run, whether it is resumed, its name and group; a row; the pictures.
    _begin: Callable[..., None]
    _log: Callable[[Row], None]
    _end: Callable[[Sequence[pathlib.Path]], None]

    def __init__(self, project: str):
        """Connects to nothing yet; `project` is the project or experiment."""
        self._project = project
        self._id = uuid.uuid4().hex[:16]
        self._is_lost = False

    @property
    def _file(self) -> str:
        return f"{self.name}_id.txt"

    def _try(self, run: Run, function: Callable[..., None], *arguments: Any) -> None:
        if self._is_lost:
            return
        try:
            function(*arguments)
        except Exception as error:  # Whatever the network or the server does.
            self._is_lost = True
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            run.say(f"{self.name} failed, and the run goes on without it ({why}).")

    def on_start(self, run: Run) -> None:
        kept = run.kept(self._file)
        self._id = self._id if kept is None else kept.decode()
        path = run.directory and run.directory.path.resolve()
        name, group = (path.name, str(path.parent)) if path else (None, None)
        self._try(run, self._begin, run, kept is not None, name, group)
        if kept is None:
            for row in run.rows:
                self._try(run, self._log, row)

    def on_round(self, run: Run, row: Row) -> None:
        self._try(run, self._log, row)

    def on_end(self, run: Run) -> None:
        pictures = sorted(run.directory.path.glob("*.png")) if run.directory else []
        self._try(run, self._end, pictures)

    def keep(self) -> Mapping[str, bytes]:
        return {self._file: self._id.encode()}


class WandB(Tracker):
    """Weights & Biases: a run of the project."""

    name = package = "wandb"

    def _begin(self, run, is_resumed, name, group):
        self._wandb = importlib.import_module("wandb")
        self._run = self._wandb.init(
            project=self._project,
            id=self._id,
            name=name,
            group=group and group.replace("/", "-").strip("-")[-128:],
            resume="allow",
            config=dict(run.settings),
            dir=str(run.directory.path) if run.directory else None,
            settings=self._wandb.Settings(silent=True),
        )
        if not self._run.offline:
            run.say(f"wandb: {self._run.url}")

    def _log(self, row):
        self._run.log(_known(row), step=int(row[metrics.ROUND] or 0))

    def _end(self, pictures):
        found = {path.stem: self._wandb.Image(str(path)) for path in pictures}
        if found:
            self._run.log(found)
        self._run.finish()


class MLflow(Tracker):
    """MLflow: a run of the experiment, at the tracking URI of the environment."""

    name, package = "mlflow", "mlflow-skinny alembic"

    def _begin(self, run, is_resumed, name, group):
        mlflow = importlib.import_module("mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        self._client = mlflow.MlflowClient()
        if is_resumed:
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._project)
        where = found and found.experiment_id
        where = where or self._client.create_experiment(self._project)
        tags = {"group": group} if group else {}
        made = self._client.create_run(where, run_name=name, tags=tags)
        self._id = made.info.run_id
        values = {n: str(v)[:500] for n, v in run.settings.items() if v is not None}
        given = [self._entities.Param(*pair) for pair in values.items()]
        self._client.log_batch(self._id, params=given)

    def _log(self, row):
        now, step = int(1000 * time.time()), int(row[metrics.ROUND] or 0)
        pairs = _known(row).items()
        found = [self._entities.Metric(n, value, now, step) for n, value in pairs]
        self._client.log_batch(self._id, metrics=found)

    def _end(self, pictures):
        for path in pictures:
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id)


_KINDS = {each.name: each for each in (WandB, MLflow)}


def _known(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if value is not None}


def of(names: Sequence[str]) -> list[Tracker]:
    """Returns the trackers of the setting `track`, whose packages must be there."""
    return [_of(name) for name in dict.fromkeys(names) if name != "tensorboard"]


def _of(text: str) -> Tracker:
    name, _, project = text.partition(":")
    kind, why = _KINDS.get(name), None
    if kind is None or not project:
        why = "give tensorboard, wandb:PROJECT or mlflow:EXPERIMENT."
    elif importlib.util.find_spec(name) is None:
        install = f"{sys.executable} -m pip install {kind.package}"
        why = f"the package is not installed: {install}"
    elif kind is WandB and not _has_account():
        why = "there is no account: wandb login, or set WANDB_MODE=offline."
    if why or kind is None:
        raise SettingError("track", text, f"{why}")
    return kind(project)


def _has_account() -> bool:
    if os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return True
    wandb = importlib.import_module("wandb")
    if "prompt" in inspect.signature(wandb.login).parameters:
        return wandb.login(prompt=False, verify=False)
    return bool(wandb.api.api_key)  # Of older versions.
