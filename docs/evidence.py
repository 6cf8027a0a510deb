"""Tables, lists and the map of the pages on results, from the published studies.

`bin/docs --publish=DIR` takes a finished study's files over into tasks/studies/results,
with the ledger's rows of its methods; `bin/docs --readme` makes the rest from them.
"""

import dataclasses
import io
import itertools
import math
import pathlib
import re
import statistics
import subprocess
import tarfile
import tempfile
import textwrap

import scipy.stats as scipy_stats

from docs import reference
from tff_reg import curves, files, tables
from tff_reg.commands import compare
from tff_reg.data import digests, partition_report
from tff_reg.experiment.config import identity
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.experiment.report import claims, differences, evidence
from tff_reg.experiment.rounds import runs
from tff_reg.experiment.series import tuning
from tff_reg.lazy import mpl_colors, np
from tff_reg.methods import cards, catalogue, overview
from tff_reg.settings import SettingError, as_text
from tff_reg.tasks import recipes, studies

HERE = pathlib.Path(__file__).parent
RESULTS = pathlib.Path(studies.__file__).parent / "results"
MAP = RESULTS / "map.csv"
PICTURE = HERE / "pictures" / "map.png"
LEDGER = HERE.parent / "tests" / "ledger.csv"
# Of its losses: smaller changes are rounding.
_TOLERANCE = 1e-4
# Among so many commits that of a study's code is looked for.
_COMMITS = 300
FILES = ("values.csv", "claims.csv")
PROTOCOL = "protocol.txt"
# The studies of which the map is made; of equal conditions the first one counts.
_OF_MAP = (
    "digits_two_classes",
    "digits_dir01",
    "digits_dir05",
    "digits_sizes",
    "digits_conditions",
    "digits_more_conditions",
    "digits_unequal_work",
    "cifar10_small_lenet",
)
# The study whose methods stand for their families.
_OF_FAMILIES = "digits_conditions"
_QUANTITY, _THAN = "last_five", "fedavg"
# Settings that `title` does not name, by study.
_TITLES = {
    "digits_tuned": {"": "2 classes (tuned)"},
    "digits_collapsed": {"": "2 classes (others, tuned)"},
    "digits_projector": {
        "projector=moon": "2 classes (MOON's network)",
        "projector=feduv": "2 classes (UniVarFL's network)",
    },
    "digits_unequal_work": {
        "dropout=0.0": "Dir(0.3) (half train a fifth)",
        "dropout=0.3": "Dir(0.3) (half train a fifth, 30 % drop out)",
    },
    "digits_residual": {"": "2 classes (ResNet-8)"},
    "cifar10_lenet": {"": "CIFAR-10 (LeNet-5)"},
    "cifar10_small_lenet": {"": "CIFAR-10 in small (LeNet-5)"},
    "cifar10_small_resnet8": {"": "CIFAR-10 in small (ResNet-8)"},
    "pacs_domains": {"": "PACS (a domain a client)"},
}
# Studies that tune each method, and those of the same runs by default.
_BY_DEFAULT = dict.fromkeys(("digits_tuned", "digits_collapsed"), "digits_two_classes")
# Those of networks that are residual, and of unequal work.
RESIDUAL = [
    *_TITLES["digits_residual"].values(),
    *_TITLES["cifar10_small_resnet8"].values(),
]
UNEQUAL = [*_TITLES["digits_unequal_work"].values()]
# Seeds whose splits tell how the clients of a condition differ.
_SPLITS = 5
# Columns of grid.csv that are no settings.
_OF_GRID = ("runs", tuning.MEAN, tuning.DEVIATION, "not_finite")
# The studies whose ranks are set beside published ones.
_OF_RANKS = (
    "digits_two_classes",
    "digits_dir01",
    "digits_dir05",
    "cifar10_small_lenet",
)
# Papers' tables of accuracies, and which number of a cell is the last one they have:
# FL-Simulator's is of the best round, FedMLB's a moving average.
_PUBLISHED = {
    "fedalign/table2": 0,
    "fedalign/table4": 0,
    "fedmlb/table1": 1,
    "fedmlb/table2": 1,
    "man/table1": 0,
    "univarfl/table1": 0,
    "asd/table2": 0,
    "fl_simulator/table1": 0,
}


def published():
    """The names of the studies whose values are in the package."""
    return [name for name in studies.names() if studies.published(name, FILES[0])]


def publish(where):
    """Takes over a finished study's numbers, from the directory of `bin/study`.

    Raises:
      SettingError: If there is no finished study of this package, or it was written
        anew since.
    """
    where = pathlib.Path(where)
    try:
        asked, name = (where / "study.toml").read_text("utf-8"), where.resolve().name
        study = studies.read(name)
        names = (*FILES, "grid.csv") if "grid" in study.flags else FILES
        texts = {file: (where / file).read_text("utf-8") for file in names}
    except OSError as error:
        raise SettingError("publish", str(where), f"{error.strerror}.") from error
    if asked != study.text:
        why = f"its study.toml is not tasks/studies/{name}.toml."
        raise SettingError("publish", str(where), why)
    values, tested = (tables.from_csv(texts[name]) for name in FILES)
    there = {(row["setting"], row["method"], int(row["seed"])) for row in values}
    trials = _trials(name)
    planned = {(c, row, run.config.seed) for row, c, run in trials}
    if there != planned or not tested:
        why = (
            f"{len(planned - there)} of its {len(planned)} runs, or tests, are missing."
        )
        raise SettingError("publish", str(where), why)
    methods = {row["method"] for row in values}
    texts["ledger.csv"] = tables.to_csv(_of_ledger(methods))
    codes = sorted({row["code"] for row in values})
    commits = [
        {"code": code, "commit": commit_of(code), "study": digests.of_value(asked)}
        for code in codes
    ]
    texts["commits.csv"] = tables.to_csv(commits)
    texts["conditions.csv"] = tables.to_csv(conditions(name, trials))
    texts[PROTOCOL] = protocol(name)
    files.make_directory(RESULTS / name, "publish")
    for file, text in texts.items():
        files.write_text(RESULTS / name / file, text)


def commit_of(code):
    """The newest commit whose sources have a digest; empty if there is none."""
    git = ["git", "-C", str(HERE.parent)]
    listed = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, check=True)
    for commit in listed.stdout.decode().split()[:_COMMITS]:
        packed = subprocess.run(
            [*git, "archive", commit, "tff_reg", "tasks"],
            capture_output=True,
            check=True,
        ).stdout
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="tar")
            root = str(pathlib.Path(folder, "tff_reg"))
            if identity.of_files(identity.files_below(root)) == code:
                return commit[:8]
    return ""


def ledger():
    """The losses in tests/ledger.csv by method."""
    rows = tables.from_csv(LEDGER.read_text("utf-8"))
    return {
        row["name"]: {name: text for name, text in row.items() if "_loss_" in name}
        for row in rows
    }


def _of_ledger(methods):
    """The ledger's rows of methods, or of those that are summed."""
    names = sorted({part for method in methods for part in method.split("+")})
    known = ledger()
    return [{"name": name, **known[name]} for name in names]


def changed(name):
    """Returns a warning if a study's file, settings or losses changed since; or ""."""
    text = digests.of_value(studies.read(name).text)
    if any(row["study"] != text for row in studies.published(name, "commits.csv")):
        return " **Made before the study was changed: run it again.**"
    if (RESULTS / name / PROTOCOL).read_text("utf-8") != protocol(name):
        return " **Made with other settings than now: run it again.**"
    now, names = ledger(), []
    for row in studies.published(name, "ledger.csv"):
        method = row.pop("name")
        if method not in now or not all(
            math.isclose(
                float(text or "inf"),
                float(now[method][each] or "inf"),
                rel_tol=_TOLERANCE,
            )
            for each, text in row.items()
        ):
            names.append(f"`{method}`")
    if not names:
        return ""
    return f" **Made before the code of {', '.join(names)} changed: run it again.**"


def published_claims(name):
    """The tests of a study; none if it is not published."""
    return studies.published(name, "claims.csv")


def all_tested():
    """By condition the tests against FedAvg by method, the best first, with the study.

    Of several studies under one condition the first counts.
    """
    found = {}
    known = published()
    for name in sorted(known, key=[*_OF_MAP, *known].index):
        rows = published_claims(name)
        rows = [
            {**row, "study": name}
            for row in rows
            if (row["than"], row["expected"]) == (_THAN, "better")
        ]
        for setting in dict.fromkeys(row["where"] for row in rows):
            own = [r for r in rows if r["where"] == setting and r["mean"]]
            own.sort(key=lambda row: -float(row["mean"]))
            heading = _titles(name)[setting]
            found.setdefault(heading, {r["method"]: r for r in own})
    return found


def ahead_and_behind(rows):
    """Returns methods shown ahead and those shown behind, largest difference first.

    `rows` are tests of one study, the best method first.
    """
    ahead, behind = (
        [row["method"] for row in rows if row["verdict"] == each]
        for each in (claims.HOLDS, claims.OPPOSITE)
    )
    return ahead, behind[::-1]


def _planned(name, **others):
    """Returns a study's planned comparison, with default strengths where it tunes."""
    asked = {"output_dir": "runs", **studies.read(name).flags, **others}
    asked.pop("grid", None)
    chosen = [f"--{n}={as_text(v)}" for n, v in asked.items()]
    return compare.planned(compare.read_flags(chosen))


def _trials(name):
    """The rows, settings and runs of a study."""
    return _planned(name).trials


def protocol(name):
    """Returns all settings of a study's runs, defaults of task and methods as well."""
    plan = _planned(name, seeds=1)
    return "\n".join(plan.sheet.protocol(plan))


def conditions(name, trials):
    """The rows of conditions.csv: how the clients of a study's settings differ."""
    by = {}
    for _, setting, run in trials:
        by.setdefault(setting, {}).setdefault(run.config.seed, run.config.resolved())
    titles = _TITLES.get(name, {})
    return [
        {
            "setting": setting,
            "title": titles.get(setting) or title(first),
            "task": first.task,
            **_condition([*of_seeds.values()][:_SPLITS]),
        }
        for setting, of_seeds in by.items()
        for first in [next(iter(of_seeds.values()))]
    ]


def title(config):
    """Returns a heading for a run's data split, such as `2 classes (1 epoch)`."""
    alpha = f"{config.concentration:g}" if config.concentration else ""
    skew = {
        "shards": f"{config.classes_per_client} classes",
        "dirichlet_balanced": f"Dir({alpha})",
        "quantity": "sizes alone",
        "iid": "iid",
    }[config.partition]
    parts = []
    if config.clients_per_round != 5:
        parts.append(f"{config.clients_per_round} of {config.num_clients} a round")
    if config.local_epochs != 5:
        parts.append(f"{config.local_epochs:g} epoch{'s' * (config.local_epochs != 1)}")
    found = f"{skew} ({', '.join(parts)})" if parts else skew
    return found if config.task == "digits" else f"{config.task}: {found}"


def _condition(configs):
    """The mean condition of splits of some seeds."""
    found = []
    for config in configs:
        held = partition_report.of_task(
            runs.build_task(config), config.part(TaskSettings)
        )
        found.append(dataclasses.astuple(evidence.Condition.of(held, config)))
    means = map(statistics.fmean, zip(*found))
    names = [field.name for field in dataclasses.fields(evidence.Condition)]
    return {name: round(mean, 4) for name, mean in zip(names, means)}


def rows_of_map():
    """The rows of map.csv."""
    rows = {}
    methods = studies.read(_OF_FAMILIES).flags["processes"].split(",")
    roles = {
        role: [name for name in names if name in methods and name != _THAN]
        for role, names in overview.by_role().items()
    }
    for name in (each for each in _OF_MAP if each in published()):
        values = studies.published(name, "values.csv")
        tested = published_claims(name)
        found = evidence.families(values, roles, _QUANTITY)
        for condition in studies.published(name, "conditions.csv"):
            setting, known = condition["setting"], condition["title"]
            if known in rows:
                continue
            own = [row for row in tested if row["where"] == setting and row["mean"]]
            own.sort(key=lambda row: -float(row["mean"]))
            ahead, behind = map(", ".join, ahead_and_behind(own))
            said = {"ahead": ahead, "behind": behind}
            at = {"study": name, **condition, **said}
            of_roles = {
                role: {**at, "role": role, **row, "methods": _of_networks(roles[role])}
                for (place, role), row in found.items()
                if place == setting
            }
            rows[known] = [*differences.adjusted(of_roles).values()]
    return [*itertools.chain(*rows.values())]


def _of_networks(names):
    """Lists methods, and which of them bring a projector along."""
    return ", ".join(
        f"{name} with a projector"
        if "projector" in catalogue.required_settings(name)
        else name
        for name in names
    )


def write_map():
    """Writes map.csv and its picture."""
    files.write_text(MAP, tables.to_csv(rows_of_map()))
    draw_map(studies.published("", MAP.name), PICTURE)


def draw_map(rows, path):
    """Draws families by conditions, coloured where a difference to FedAvg is shown."""
    titles = [*dict.fromkeys(row["title"] for row in rows)]
    roles = [r for r in cards.ROLES if any(row["role"] == r for row in rows)]
    figure = curves.new_figure(width=1.05 * len(titles) + 3.2)
    axes = figure.add_axes((0.2, 0.25, 0.79, 0.67))
    colours = mpl_colors.LinearSegmentedColormap.from_list(
        "gain", ["#b2182b", "#f7f7f7", "#2166ac"]
    )
    grid = np.full((len(roles), len(titles)), np.nan)
    for row in rows:
        place = roles.index(row["role"]), titles.index(row["title"])
        points = 100 * float(row["mean"])
        shown = evidence.verdict(row) != evidence.OPEN
        grid[place] = points if shown else 0
        axes.text(
            place[1],
            place[0],
            f"{points:+.1f}".replace("-", "\N{MINUS SIGN}"),
            ha="center",
            va="center",
            fontsize=11,
            weight="bold" if shown else "normal",
            color="white" if shown and abs(points) > 6 else curves.INK,
        )
    axes.imshow(grid, cmap=colours, vmin=-12, vmax=12, aspect="auto")
    labels = [
        "\n".join(textwrap.fill(part, 15) for part in re.split(r" (?=\()", each))
        for each in titles
    ]
    axes.set_xticks(range(len(titles)), labels, fontsize=9)
    methods = {row["role"]: row["methods"] for row in rows}
    heads = [f"{textwrap.fill(r, 24)}\n({methods[r]})" for r in roles]
    axes.set_yticks(range(len(roles)), heads, fontsize=9)
    axes.tick_params(length=0)
    axes.set_title(
        "Which families gain on FedAvg, in points of test accuracy (digits, if no other"
        " data are named)",
        fontsize=12,
    )
    figure.text(
        0.2,
        0.03,
        "Median of a family's methods (in brackets) minus FedAvg, mean of the last five"
        " rounds, paired by seed.\nBold and coloured: shown (exact sign flips, Holm"
        " over the families of a column, 0.05). Empty: not run.",
        fontsize=9,
    )
    files.write_bytes(path, curves.as_png(figure))


def _mean(values, method, setting, quantity):
    known = [
        row[quantity]
        for row in values
        if (row["method"], row["setting"]) == (method, setting)
    ]
    if not known or "" in known:  # A run diverged.
        return "-"
    return f"{100 * statistics.fmean(map(float, known)):.1f}"


def study_tables():
    """The sections of the page of results, one for each published study."""
    parts = []
    for name in published():
        asked = studies.read(name)
        values = studies.published(name, "values.csv")
        tested = published_claims(name)
        codes = [
            f"{row['code']} (commit {row['commit'] or 'not in this history'})"
            for row in studies.published(name, "commits.csv")
        ]
        columns = ("last_five", "score", "ema", "clients_worst_tenth")
        heads = ["method", *("last five", "last", "EMA", "worst tenth")]
        one_base = len({row["than"] for row in tested}) == 1
        heads += [f"difference to {_THAN}" if one_base else "difference", "p (Holm)"]
        if name in _BY_DEFAULT:
            heads += ["last five by default", "chosen"]
        chosen = _tuned(name, {row["seed"] for row in values})
        settings = [*dict.fromkeys(row["where"] for row in tested)]
        shown = ["setting"] if len(settings) > 1 else []
        lines = []
        for setting in settings:
            here = [row for row in tested if row["where"] == setting]
            here.sort(key=lambda row: -float(row["mean"] or "-inf"))
            bases = dict.fromkeys(row["than"] for row in here)
            own = {row["method"]: row for row in here}
            names = [*(b for b in bases if b not in own), *own]
            place = _titles(name)[setting]
            for method in names:
                row = own.get(method)
                difference = evidence.points(row) if row and row["mean"] else "-"
                if row and not one_base:
                    difference += f" ({row['than']})"
                is_shown = row and row["verdict"] not in (claims.OPEN, "not measured")
                p = f"{float(row['p_holm']):.2g}" if row and row["p_holm"] else "-"
                cells = [_mean(values, method, setting, c) for c in columns]
                if catalogue.has_own_models(method):
                    cells[-1] = "-"  # It is of the clients' own models.
                mark = f"**{difference}**" if is_shown else difference
                lines.append(
                    [*([place] if shown else []), f"`{method}`", *cells, mark, p]
                    + chosen.get(method, [])
                )
        parts += [
            f"### `bin/study {name}`",
            "",
            asked.question,
            "",
            f"Written down on {asked.written}; made by the code {', '.join(codes)}."
            f" Accuracy in percent, mean over {_seeds(values)} seeds; the difference is"
            " of the last five rounds, in points, with its 95 % interval; in bold what"
            f" exact sign flips show, adjusted by Holm over {len(tested)} tests."
            f"{changed(name)}",
            "",
            reference.table([*shown, *heads], lines),
            "",
        ]
    return "\n".join(parts).rstrip()


def _tuned(name, seeds):
    """By method of a study that tunes: its accuracy by default, and its settings."""
    by_default = [
        row
        for row in studies.published(_BY_DEFAULT.get(name, ""), "values.csv")
        if row["seed"] in seeds
    ]
    found = {}
    for row in studies.published(name, "grid.csv"):
        method, is_best = row.pop("process"), row.pop(tuning.BEST) == "True"
        if is_best:
            found[method] = [
                _mean(by_default, method, "", _QUANTITY),
                ", ".join(
                    f"{setting.removeprefix('client_')} {value}"
                    for setting, value in row.items()
                    if value and setting not in _OF_GRID
                ),
            ]
    return found


def _seeds(values):
    return len({row["seed"] for row in values})


def _titles(name):
    rows = studies.published(name, "conditions.csv")
    return {row["setting"]: row["title"] for row in rows}


def _published_cells():
    """Returns published accuracies by table, (table part, column) and process."""
    found = {}
    for recipe in recipes.recipes():
        table = recipe.name.rpartition("/")[0]
        numbers = re.findall(r"\d+\.\d+", recipe.published)
        if table in _PUBLISHED and numbers and recipe.column != "Time / round":
            process = recipe.settings["process"]
            place = recipe.table.key, recipe.column
            column = found.setdefault(table, {}).setdefault(place, {})
            # A process that a table has several times counts with its best row.
            value = float(numbers[min(_PUBLISHED[table], len(numbers) - 1)])
            column[process] = max(value, column.get(process, value))
    return found


def _taus(ours, columns, names, counts):
    """Returns Kendall's tau-b with our values, averaged over columns, by resample.

    `counts` has how often each method is in each resample: (resamples, methods).
    """

    def signs(values):
        own = np.array([values[name] for name in names])
        return np.sign(own[:, None] - own)

    def total(pairs):
        return (counts @ pairs * counts).sum(axis=1)

    own, others = signs(ours), [signs(column) for column in columns]
    with np.errstate(invalid="ignore"):  # A resample may have only one method.
        return np.mean(
            [total(own * o) / np.sqrt(total(own**2) * total(o**2)) for o in others],
            axis=0,
        )


def transfer_rows():
    """Returns Kendall's tau between our ranking of methods and each published one.

    The 95 % interval is the exact bootstrap over methods: all resamples, weighted by
    their probability, but for those in which tau is undefined.
    """
    rows = []
    for place in _OF_RANKS:
        by = {}
        for row in studies.published(place, "values.csv"):
            by.setdefault(row["method"], []).append(row[_QUANTITY])
        ours = {
            name: statistics.fmean(map(float, each))
            for name, each in by.items()
            if "" not in each  # No run diverged.
        }
        for table, columns in _published_cells().items():
            names = [*ours.keys() & set.intersection(*map(set, columns.values()))]
            names.sort()
            if len(names) < 5:
                continue
            count = len(names)
            drawn = itertools.combinations_with_replacement(range(count), count)
            counts = np.stack([np.bincount(each, minlength=count) for each in drawn])
            chances = scipy_stats.multinomial(count, np.full(count, 1 / count))
            taus = _taus(ours, columns.values(), names, counts)
            (tau,) = taus[(counts == 1).all(axis=1)]
            known = np.isfinite(taus)
            low, high = np.quantile(
                taus[known],
                [0.025, 0.975],
                weights=chances.pmf(counts)[known],
                method="inverted_cdf",
            )
            rows.append(
                {
                    "study": place,
                    "table": table,
                    "methods": count,
                    "columns": len(columns),
                    "tau": tau,
                    "low": low,
                    "high": high,
                }
            )
    return rows


def transfer():
    """The table of how well ranks here agree with published ones."""

    def number(value):
        return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")

    rows = [
        [
            f"`{row['study']}`",
            row["table"],
            f"{row['methods']}",
            number(row["tau"]),
            f"{number(row['low'])} to {number(row['high'])}",
        ]
        for row in transfer_rows()
    ]
    heads = [
        "study here",
        "published table",
        "methods",
        "Kendall's tau",
        "95 % interval",
    ]
    return reference.table(heads, rows)
