"""The ledger: what every method and 40 recipes give in two rounds, in `ledger.csv`.

    bin/launch --dev tests/ledger.py                   says which numbers changed
    bin/launch --dev tests/ledger.py --accept="WHY"    writes them, and why

A row has the training and test losses of both rounds, why they last changed, and, in a
column for each kind of machine, a digest of the last weights. A method has its paper's
settings on digits; a recipe runs as with `--scale=tiny --synthetic_data`.
"""

import collections
import csv
import datetime
import functools
import itertools
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent import futures
from typing import Any

from tff_reg import experiment, files, kernels, quiet, tables
from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import progress, runs
from tff_reg.lazy import tf
from tff_reg.methods import catalogue, overview
from tff_reg.tasks import recipes

FILE = pathlib.Path(__file__).with_suffix(".csv")
ACCEPT = 'bin/launch --dev tests/ledger.py --accept="WHY"'
LOSSES = ("training_loss_1", "training_loss_2", "test_loss_1", "test_loss_2")
# Of a loss, on every machine.
TOLERANCE = 1e-4
GROUPS = 4
_RECIPES = 40
_ROUNDS = {"total_rounds": 2, "clients_per_round": 3, "seed": 0}
_METHOD = {"task": "digits", "num_clients": 4, "local_epochs": 1, "batch_size": 16}
_RECIPE = {"scale": "tiny", "synthetic_data": True}
# They need a network with branches and widths.
_BRANCHED = ("fedalign", "gradaug", "stochdepth")
# These take 7 to 15 seconds: one recipe has each, the others a small one in its place.
_DEEP = ("resnet56", "resnet18", "resnet18_imagenet", "resnet18_feduv")
# Settings that change no number.
_REPORTS = ("score_at_rounds", "targets", "target_measure", "target_model", "keep_best")


@functools.cache
def entries() -> dict[str, dict[str, Any]]:
    """Returns the settings of all runs by name."""
    found = {}
    for name in (*overview.ours(), *catalogue.REFERENCES):
        model = "resnet8" if name in _BRANCHED else "cnn"
        found[name] = {"process": name, "model": model, **_METHOD, **_ROUNDS}
    return found | _of_recipes()


def _of_recipes() -> dict[str, dict[str, Any]]:
    """Returns 40 recipes: the first of each network, then by turns one of each table.

    A table's is the first of those whose process the fewest chosen recipes have.
    Recipes that are the same run in small as a chosen one are left out.
    """
    networks: dict[str, recipes.Recipe] = {}
    by_table: dict[str, list[recipes.Recipe]] = {}
    for each in recipes.recipes():
        networks.setdefault(each.settings["model"], each)
        by_table.setdefault(each.name.rpartition("/")[0], []).append(each)
    chosen = {each.name: _in_small(each) for each in networks.values()}
    known = {*map(_run_of, chosen.values())}
    having = collections.Counter(r.settings["process"] for r in networks.values())
    for table in itertools.cycle(by_table.values()):
        for each in sorted(table, key=lambda r: having[r.settings["process"]]):
            settings = _in_small(each)
            if each.settings["model"] in _DEEP:
                settings["model"] = _small_network(each.settings)
            if (run := _run_of(settings)) not in known:
                known.add(run)
                having[each.settings["process"]] += 1
                chosen[each.name] = settings
                break
        if len(chosen) == _RECIPES:
            break
    return chosen


def _in_small(recipe: recipes.Recipe) -> dict[str, Any]:
    return {"recipe": recipe.name, **_RECIPE, **_ROUNDS}


def _small_network(settings: Mapping[str, Any]) -> str:
    if settings["process"] in _BRANCHED:
        return "resnet8"
    return "vgg9" if "fedmlb_paths" in settings else "cnn"  # Blocks for five paths.


def _run_of(settings: Mapping[str, Any]) -> str:
    values = experiment.RunConfig.of(settings).resolved().dump()
    return identity.key({k: v for k, v in values.items() if k not in _REPORTS})


def _machine() -> str:
    """Returns what, of this process's machine and versions, changes the last bits."""
    cpu = pathlib.Path("/proc/cpuinfo")
    text = cpu.read_text() if cpu.exists() else f"vendor_id : {platform.machine()}"
    found = dict(re.findall(r"(?m)^([\w ]+?)\s*: (.*)$", text))
    kind = [found.get(name, "") for name in ("vendor_id", "cpu family", "model")]
    kind += [w for w in ("avx2", "avx512f") if w in found.get("flags", "").split()][-1:]
    return " ".join([*kind, kernels.describe(), "TensorFlow", tf.__version__])


def _print_rows(names: Iterable[str]) -> None:
    quiet.silence()
    for name in names:
        config = experiment.RunConfig.of(entries()[name])
        checked = runs.CheckedRun(config, writes=False)
        result = checked.run(progress=progress.Silence())
        row = {"name": name}
        for column in LOSSES:
            kind, _, number = column.split("_")
            kind = "evaluation" if kind == "test" else kind
            value = result.rows[int(number) - 1][f"{kind}/loss"]
            row[column] = "" if value is None else f"{value:.8g}"  # Of a shared model.
        if result.weights is not None:
            weights = (*result.weights.trainable, *result.weights.non_trainable)
            row[_machine()] = digests.of_examples(*weights)[:12]
        print(json.dumps(row), flush=True)


def made(group: int) -> dict[str, dict[str, str]]:
    """Runs a group of all runs, in a process; returns its rows by name."""
    done = subprocess.run(
        [sys.executable, __file__, "--print", *[*entries()][group::GROUPS]],
        env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row for row in rows}


def read() -> dict[str, dict[str, str]]:
    """Returns the ledger's rows by name, without TensorFlow."""
    with open(FILE, newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns what differs in a run's rows, in words."""
    found = []
    for column in LOSSES:
        kind, _, number = column.split("_")
        before, now = old[column], new[column]
        a, b = float(before or "nan"), float(now or "nan")
        if (before or now) and not math.isclose(a, b, rel_tol=TOLERANCE):
            found.append(f"{kind} loss of round {number} {before} -> {now}")
    for machine in new.keys() - {"name", *LOSSES}:
        if old.get(machine) and old[machine] != new[machine]:
            weights = f"{old[machine]} -> {new[machine]} ({machine})"
            found.append(f"digest of the weights {weights}")
    return found


def differences() -> list[str]:
    """Returns in which names the ledger is not that of all runs, in words."""
    rows = read()
    added = [f"{n}: is new, and has no row" for n in entries() if n not in rows]
    gone = [f"{n}: has a row, and is not run" for n in rows if n not in entries()]
    return added + gone


def report(found: Iterable[str]) -> str:
    """Returns the text of a failure."""
    lines = "\n  ".join(found)
    return (
        f"tests/ledger.csv has other numbers than the runs:\n  {lines}\n"
        f"If they should change: {ACCEPT} (5 minutes) writes them."
    )


def main(*flags: str) -> None:
    """Carries out all runs; says what changed, or accepts it."""
    why = "".join(flags).removeprefix("--accept=").strip()
    if len(flags) > 1 or (flags and not (flags[0].startswith("--accept=") and why)):
        sys.exit(f"Give nothing, or a reason: {ACCEPT}")
    with futures.ThreadPoolExecutor(2) as pool:
        rows = {k: v for each in pool.map(made, range(GROUPS)) for k, v in each.items()}
    old = read() if FILE.exists() else {}
    said, today = [], datetime.date.today().isoformat()
    for name in entries():
        new, before = rows[name], old.get(name)
        changed = changes(before, new) if before else ["new"]
        if changed:  # What other kinds of machines gave is past.
            said.append(f"{name}: {', '.join(changed)}")
            rows[name] = {**new, "why": f"{today} {why}"}
        else:
            rows[name] = {**before, **{k: new[k] for k in new if k not in LOSSES}}
    said += [f"{name}: gone" for name in old if name not in rows]
    print(*said or ["The ledger has the numbers of all runs."], sep="\n")
    if not why:
        sys.exit(bool(said))
    machines = sorted({k for row in rows.values() for k in row})
    ends = {"name", *LOSSES, "why"}
    head = ["name", *LOSSES, *(m for m in machines if m not in ends), "why"]
    with files.atomic_path(FILE) as path, open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, head, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in entries())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--print"]:
        _print_rows(sys.argv[2:])
    else:
        main(*sys.argv[1:])
