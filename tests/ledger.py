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

from tff_reg import experiment, files, kernels, quiet
from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import progress, runs
from tff_reg.lazy import tf
from tff_reg.methods import catalogue, overview
from tff_reg.tasks import recipes

FILE = pathlib.Path(__file__).with_suffix(".csv")
ACCEPT = 'bin/launch --dev tests/ledger.py --accept="WHY"'
LOSSES = ("training_loss_1", "training_loss_2", "test_loss_1", "test_loss_2")
# Relative differences of losses that pass. TensorFlow's other kernels (Eigen's in place
# of oneDNN's) moved those of methods by at most 3e-5, and those of recipes, whose steps
# are large, by up to 1.4e-3 (ResNet-18).
TOLERANCE, OF_RECIPES = 1e-4, 1e-2
GROUPS = 4
_ROUNDS = {"total_rounds": 2, "clients_per_round": 3, "seed": 0}
_METHOD = {"task": "digits", "num_clients": 4, "local_epochs": 1}
# Few and short steps: at the papers' learning rates roundings grow a thousandfold.
_METHOD |= {"batch_size": 64, "client_learning_rate": 0.01}
# Deep networks take 7 to 15 seconds: a recipe has each, the others a small one.
_DEEP = ("resnet56", "resnet18", "resnet18_imagenet", "resnet18_feduv")
# That is a CNN, for what needs branches and widths a ResNet.
_SMALL = dict.fromkeys(("fedalign", "gradaug", "stochdepth"), "resnet8")


@functools.cache
def entries() -> dict[str, dict[str, Any]]:
    """Returns the settings of all runs by name."""
    found = {}
    for name in (*overview.ours(), *catalogue.REFERENCES):
        model = _SMALL.get(name, "cnn")
        found[name] = {"process": name, "model": model, **_METHOD, **_ROUNDS}
    # It divides by small deviations.
    found["feddecorr"]["client_learning_rate"] = 0.001
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
    in_small = {"scale": "tiny", "synthetic_data": True, **_ROUNDS}
    chosen = {r.name: {"recipe": r.name, **in_small} for r in networks.values()}
    known = {*map(_run_of, chosen.values())}
    having = collections.Counter(r.settings["process"] for r in networks.values())
    for table in itertools.cycle(by_table.values()):
        for each in sorted(table, key=lambda r: having[r.settings["process"]]):
            settings = {"recipe": each.name, **in_small}
            if each.settings["model"] in _DEEP:
                small = _SMALL.get(each.settings["process"], "cnn")
                has_paths = "fedmlb_paths" in each.settings  # Of six blocks.
                settings["model"] = "vgg9" if has_paths else small
            if (run := _run_of(settings)) not in known:
                known.add(run)
                having[each.settings["process"]] += 1
                chosen[each.name] = settings
                break
        if len(chosen) == 40:
            break
    return chosen


def _run_of(settings: Mapping[str, Any]) -> str:
    return identity.key(experiment.RunConfig.of(settings).resolved().dump())


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
        result = runs.CheckedRun(config, writes=False).run(progress=progress.Silence())
        kinds = ("training/loss", "evaluation/loss")
        losses = [row[kind] for kind in kinds for row in result.rows]
        texts = ["" if value is None else f"{value:.8g}" for value in losses]
        row = {"name": name, **dict(zip(LOSSES, texts, strict=True))}
        if result.weights is not None:
            weights = (*result.weights.trainable, *result.weights.non_trainable)
            row[_machine()] = digests.of_examples(*weights)[:12]
        print(json.dumps(row), flush=True)


def made(group: int) -> dict[str, dict[str, str]]:
    """Runs a group of all runs, in a process; returns its rows by name."""
    done = subprocess.run(
        [sys.executable, __file__, "--print", *[*entries()][group::GROUPS]],
        env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


def read() -> dict[str, dict[str, str]]:
    """Returns the ledger's rows by name, without TensorFlow."""
    with open(FILE, newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def missing() -> dict[str, list[str]]:
    """Returns, by name, that a run has no row, or a row no run."""
    rows = read()
    added = {name: ["it has no row"] for name in entries() if name not in rows}
    return added | {name: ["it is gone"] for name in rows if name not in entries()}


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns how a run's new row differs from its old one, in words."""
    found = []
    tolerance = OF_RECIPES if "/" in new["name"] else TOLERANCE
    for column in LOSSES:
        before, now = (float(row[column] or "inf") for row in (old, new))
        if not math.isclose(before, now, rel_tol=tolerance):
            found.append(f"{column} {old[column] or None} -> {new[column] or None}")
    for machine in new.keys() - {"name", *LOSSES}:
        if old.get(machine) and old[machine] != new[machine]:
            found.append(f"digest of the weights {old[machine]} -> {new[machine]}")
    return found


def differences(made_now: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Returns, by name, how new rows differ from the ledger's."""
    rows = read()
    found = {n: changes(rows[n], row) for n, row in made_now.items() if n in rows}
    return {name: changed for name, changed in found.items() if changed}


def report(found: Mapping[str, Iterable[str]]) -> str:
    """Returns the text of a failure from what is wrong by name."""
    lines = "".join(f"  {name}: {', '.join(what)}\n" for name, what in found.items())
    return (
        f"These runs do not give what tests/ledger.csv says:\n{lines}"
        f"If that is meant, write the new numbers and why (5 minutes): {ACCEPT}"
    )


def main(*flags: str) -> None:
    """Carries out all runs; says what changed, or writes it with the reason."""
    why = "".join(flags).removeprefix("--accept=").strip()
    if flags and not (flags[0].startswith("--accept=") and why):
        sys.exit(f"Give nothing, or a reason: {ACCEPT}")
    with futures.ThreadPoolExecutor(2) as pool:
        new = dict(collections.ChainMap(*pool.map(made, range(GROUPS))))
    old, found = read(), missing() | differences(new)
    print(report(found) if found else "All runs give what tests/ledger.csv says.")
    if not why:
        sys.exit(bool(found))
    today = datetime.date.today().isoformat()
    for name, row in new.items():
        if name in found:  # What it gave on other kinds of machines is past.
            row["why"] = f"{today} {why}"
        else:
            new[name] = {**row, **{k: v for k, v in old[name].items() if v}}
    machines = sorted({*itertools.chain(*new.values())} - {"name", *LOSSES, "why"})
    with files.atomic_path(FILE) as path, open(path, "w", newline="") as file:
        columns = ["name", *LOSSES, "why", *machines]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(new[name] for name in entries())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--print"]:
        _print_rows(sys.argv[2:])
    else:
        main(*sys.argv[1:])
