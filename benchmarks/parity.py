"""Compares other libraries' methods with ours, on the same weights and batches.

All train the same small network from the same initial weights on the same batches of
digits, in the same order, all clients in each round, with the same settings. Where the
results differ, a NumPy version of the paper's formula with a named departure
(`benchmarks.simulators.formulas`) has to equal the library's weights: only then is the
difference explained. The formula, as a rule without a departure, has to equal ours.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.shared import subject
from benchmarks.simulators import environments
from tff_reg import lazy
from tff_reg.lazy import np

datasets = lazy.module("sklearn.datasets")
formulas = lazy.module("benchmarks.simulators.formulas")

# Distance of weights, divided by how far ours moved, up to which they are equal.
TOLERANCE = 1e-4
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_OURS = "tff_reg"


class Library(NamedTuple):
    """A program that runs a library's methods.

    Attributes:
      title: Its name in the table.
      program: The module of `benchmarks.simulators`.
      environment: Its environment there; None for this process's environment.
      arguments: The program's arguments after the two files.
    """

    title: str
    program: str
    environment: str | None
    arguments: tuple[str, ...] = ()


LIBRARIES = {
    _OURS: Library("tff_reg", "parity_own", None, (_OURS,)),
    "tff": Library("TFF", "parity_own", None, ("tff",)),
    "fluke": Library("fluke", "parity_fluke", "fluke"),
    "flower": Library("Flower", "parity_flower", "torch"),
    "fedjax": Library("FedJAX", "parity_fedjax", "jax"),
    "pfl": Library("pfl-research", "parity_pfl", "torch"),
}

# Why a library's method that we have, too, is not among `PAIRS`.
NOT_COMPARED = {
    "Flower's FedProx": "the wheel has the server's half only, which sends mu",
    "Flower's baselines": "they are no package; its wheel has the strategies",
    "FL-bench": "it is no package and cannot be imported",
    "fluke's FedBN": "the network of the comparison has no norms",
    "fluke's Ditto": "its global model is FedAvg's; personal models are not read",
    "fluke's FedBABU, FedProto": "not tried",
    "fluke's FedDyn, clients sampled": "all clients take part in each round here",
    "pfl's SCAFFOLD, use_gradient_as_control_variate": "Option I; ours is Option II",
}


class Method(NamedTuple):
    """A method and its settings.

    Attributes:
      title: Its name in the table.
      run: Its name in the programs and, if `formulas` has it, there.
      problem: One of `problems()`.
      settings: In the paper's symbols; programs translate them.
    """

    title: str
    run: str
    problem: str = "uneven"
    settings: Mapping[str, Any] = {}


def _adaptive(kind: str, beta1: float) -> Method:
    own = {"kind": kind, "eta": 0.05, "beta1": beta1, "beta2": 0.99, "tau": 1e-3}
    return Method(f"Fed{kind.capitalize()}", "adaptive", settings=own)


METHODS = {
    "fedavg": Method("FedAvg", "fedavg"),
    "fedavg_momentum": Method("FedAvg, client momentum", "fedavg", "momentum"),
    "fedprox": Method("FedProx", "fedprox", settings={"mu": 0.5}),
    "scaffold": Method("SCAFFOLD", "scaffold", "even"),
    "scaffold_decay": Method("SCAFFOLD, decaying rate", "scaffold", "decay"),
    "scaffold_momentum": Method("SCAFFOLD, client momentum", "scaffold", "momentum"),
    "feddyn": Method("FedDyn", "feddyn", "even", {"alpha": 0.1}),
    "moon": Method("MOON", "moon", settings={"mu": 1.0, "tau": 0.5}),
    "fednova": Method("FedNova", "fednova"),
    "fedavgm": Method("FedAvgM", "fedavgm", settings={"beta": 0.5}),
    "fedadam": _adaptive("adam", 0.9),
    "fedyogi": _adaptive("yogi", 0.9),
    "fedadagrad": _adaptive("adagrad", 0.0),
    "fedlc": Method("FedLC", "fedlc", settings={"tau": 1.0}),
    "fedrs": Method("FedRS", "fedrs", settings={"alpha": 0.5}),
    "fedsam": Method("FedSAM", "fedsam", settings={"rho": 0.05}),
    "fedexp": Method("FedExP", "fedexp", settings={"epsilon": 1e-4}),
    "fedper": Method("FedPer", "fedper"),
    "fedrep": Method("FedRep", "fedrep", settings={"head_share": 0.5}),
    "pfedme": Method(
        "pFedMe",
        "pfedme",
        "even",
        {"lamda": 1.0, "steps": 3, "rate": 0.05, "beta": 0.5},
    ),
}


# What a proven difference is.
DEPARTS = "departs from the paper"
OTHER = "another algorithm"
OPEN = "open in the paper"


class Pair(NamedTuple):
    """What is known of a library's version of a method.

    Attributes:
      there: The departures of `formulas` with which the formula is the library's.
      here: Those with which it is ours.
      kind: `DEPARTS`; `OTHER` if the library claims another algorithm; or `OPEN`.
      finding: What differs, with the paper's equation and the library's class.
    """

    there: Mapping[str, Any] = {}
    here: Mapping[str, Any] = {}
    kind: str = DEPARTS
    finding: str = ""


_ALGORITHM_2 = "Algorithm 2 of Reddi et al. (2021)"
_SECOND_MOMENT = f"{_ALGORITHM_2} begins with v of at least tau^2"
_FLUKES_ADAPTIVE = Pair(
    {"initial_v": 0.0, "update_factor": 0.05},
    finding=f"{_SECOND_MOMENT} and takes the clients' mean update; FedOptServer begins"
    " with v = 0, and Server.aggregate has already multiplied the update by the"
    " server's rate eta, which so acts twice.",
)


def _kingma(name: str, **departures: Any) -> Pair:
    return Pair(
        {"initial_v": 0.0, "corrects_from": 1, **departures},
        kind=OTHER,
        finding=f"{_SECOND_MOMENT} and corrects no bias; {name} is Adam of Kingma and"
        " Ba (2015), with v = 0 at first and bias correction.",
    )


def _in_root(name: str) -> Pair:
    return Pair(
        {"added_in_root": 1e-6},
        kind=OTHER,
        finding=f"{_ALGORITHM_2} divides by sqrt(v) + tau; {name} divides by sqrt(v +"
        " epsilon).",
    )


PAIRS: dict[str, Pair] = {
    "tff-fedavg": Pair(),
    "tff-fedprox": Pair(
        {"sign": -1.0},
        finding="Eq. 2 of Li et al. (2020) has the gradient mu (w - w_g);"
        " build_weighted_fed_prox adds mu (w_g - w)"
        " (learning/templates/proximal_client_work.py).",
    ),
    "tff-fedavgm": Pair(),
    "tff-fedadam": _kingma("tff.learning.optimizers.build_adam"),
    "tff-fedyogi": Pair(
        {"corrects_from": 1},
        kind=OTHER,
        finding=f"{_ALGORITHM_2} corrects no bias; tff.learning.optimizers.build_yogi"
        " does, as Adam of Kingma and Ba (2015).",
    ),
    "tff-fedadagrad": _in_root("tff.learning.optimizers.build_adagrad"),
    "fluke-fedavg": Pair(),
    "fluke-fedavg_momentum": Pair(
        {"keeps_momentum": True},
        kind=OPEN,
        finding="McMahan et al. (2017) have no momentum. Client keeps its optimiser"
        " from round to round, unless persistency=False; ours begins anew, unless"
        " keep_client_optimizer is set.",
    ),
    "fluke-fedprox": Pair(),
    "fluke-scaffold": Pair(),
    "fluke-scaffold_decay": Pair(
        {"divisor": "next"},
        {"divisor": "first"},
        finding="Option II of Algorithm 1 of Karimireddy et al. (2020) divides x - y_i"
        " by K eta, with eta the rate of the steps; SCAFFOLDClient reads eta after the"
        " schedule's step, so it is the next epoch's. Ours departs, too: it takes the"
        " first round's, as the code of the MAN authors does.",
    ),
    "fluke-scaffold_momentum": Pair(
        {},
        {"variate": "gradients"},
        OPEN,
        "Karimireddy et al. (2020) have plain SGD, for which (x - y_i) / (K eta) is the"
        " mean gradient. SCAFFOLDClient takes it with momentum, too, which makes it up"
        " to 1 / (1 - momentum) times the mean; ours takes the mean of the gradients.",
    ),
    "fluke-feddyn": Pair(
        {"memory_factor": -0.1},
        finding="Algorithm 1 of Acar et al. (2021) keeps a gradient m_i per client,"
        " which grows by -alpha (w_i - w_g), subtracts m_i from the client's gradients"
        " and mean(m_i) / alpha from the mean model; FedDynClient adds alpha m_i, and"
        " FedDynServer adds mean(m_i): another sign, and one alpha too many.",
    ),
    "fluke-moon": Pair(),
    "fluke-fednova": Pair(
        {"keeps_rest": False},
        finding="Wang et al. (2020) move x by tau_eff sum p_i (x_i - x) /"
        " tau_i; FedNovaServer sums the models x_i with the weights tau_eff p_i /"
        " tau_i, whose sum is not 1 if the tau_i differ, so the model is scaled.",
    ),
    "fluke-fedavgm": Pair(
        {"skips_first": True},
        finding="Hsu et al. (2019) begin with the first round's update; FedAVGMServer"
        " sets its momentum to 0 in the first round, and the model does not move.",
    ),
    "fluke-fedadam": _FLUKES_ADAPTIVE,
    "fluke-fedyogi": _FLUKES_ADAPTIVE,
    "fluke-fedadagrad": _FLUKES_ADAPTIVE,
    "fluke-fedlc": Pair(),
    "fluke-fedrs": Pair(),
    "fluke-fedsam": Pair(
        {"keeps_gradient": True},
        finding="Eq. 2 of Foret et al. (2021) ascends along the gradient at w;"
        " SAMOptimizer.step does not clear the last step's gradient, so it ascends"
        " along the sum of both.",
    ),
    "fluke-fedexp": Pair(),
    "fluke-fedper": Pair(),
    "fluke-fedrep": Pair(),
    "fluke-pfedme": Pair(
        {"is_held": False, "uploads_personal": True},
        finding="Algorithm 1 of Dinh et al. (2020) holds theta_i near w_i and sends"
        " w_i; PFedMeClient gives the optimiser theta_i itself as w_i, so the proximal"
        " term is 0, and sends theta_i.",
    ),
    "flower-fedavg": Pair(),
    "flower-fedavgm": Pair(),
    "flower-fedadam": Pair(
        {"initial_v": 0.0, "corrects_from": 2},
        finding=f"{_SECOND_MOMENT} and corrects no bias; FedAdam begins with v = 0 and"
        " corrects the bias with t = 2 in the first round, where Kingma and Ba (2015)"
        " have t = 1.",
    ),
    "flower-fedyogi": Pair(
        {"initial_v": 0.0}, finding=f"{_SECOND_MOMENT}; FedYogi begins with v = 0."
    ),
    "flower-fedadagrad": Pair(
        {"initial_v": 0.0}, finding=f"{_SECOND_MOMENT}; FedAdagrad begins with v = 0."
    ),
    "fedjax-fedavg": Pair(),
    "fedjax-fedprox": Pair(),
    "fedjax-fedavgm": Pair(),
    "fedjax-fedadam": _kingma("fedjax.optimizers.adam", corrects_v=True),
    "fedjax-fedyogi": Pair(
        {
            "initial_m": -1e-6,
            "initial_v": 1e-6,
            "corrects_from": 1,
            "corrects_v": True,
        },
        kind=OTHER,
        finding=f"{_ALGORITHM_2} begins with m = 0 and corrects no bias;"
        " fedjax.optimizers.yogi, which is optax's, begins with m = 1e-6 and corrects"
        " it, as Adam of Kingma and Ba (2015).",
    ),
    "fedjax-fedadagrad": _in_root("fedjax.optimizers.adagrad"),
    "pfl-fedavg": Pair(),
    "pfl-fedprox": Pair(),
    "pfl-fedavgm": Pair(),
    "pfl-scaffold": Pair(
        {"sign": -1.0},
        finding="Option II of Algorithm 1 of Karimireddy et al. (2020) puts (x - y_i) /"
        " (K eta) into c_i; SCAFFOLD.train_one_user puts (y_i - x) / (K eta), and the"
        " correction of the gradients has the other sign.",
    ),
}


def problems() -> dict[str, Any]:
    """The problems by name: the same digits with other sizes or another SGD."""
    digits = datasets.load_digits()
    rng = np.random.default_rng(0)
    shapes = ((64, 16), (16,), (16, 10), (10,))
    weights = [rng.normal(size=s, scale=0.2).astype(np.float32) for s in shapes]

    def of_sizes(sizes: Sequence[int], **settings: Any) -> Any:
        images, labels = [], []
        for client, size in enumerate(sizes):
            # Each client has five classes.
            mine = np.arange(client, len(digits.target), len(sizes))
            mine = mine[(digits.target[mine] - 2 * client) % 10 < 5][:size]
            images.append((digits.data[mine] / 16).astype(np.float32))
            labels.append(digits.target[mine].astype(np.int32))
        return formulas.Problem(weights, images, labels, **settings)

    return {
        "uneven": of_sizes([24, 16, 32, 8]),
        "even": of_sizes([16] * 4),
        "decay": of_sizes([16] * 4, epochs=1, decay=0.5),
        "momentum": of_sizes([16] * 4, momentum=0.9, learning_rate=0.02),
    }


def measure(
    pairs: Sequence[str] = tuple(PAIRS),
    *,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Runs three rounds of each pair, there and here.

    Args:
      pairs: Some of `PAIRS`.
      report: Called with a line now and then, to show progress.

    Returns:
      JSON values by name, for each pair; see `row_of`.
    """
    known = problems()
    asked = {pair: METHODS[pair.partition("-")[2]] for pair in pairs}
    ours = _run(_OURS, {m.title: m for m in asked.values()}, known)
    rows = []
    for library in dict.fromkeys(pair.partition("-")[0] for pair in pairs):
        own = {p: m for p, m in asked.items() if p.startswith(f"{library}-")}
        report(f"{library}: {len(own)} methods")
        try:
            found = _run(library, own, known)
        except (subject.RefusedError, RuntimeError) as error:
            found = {"version": "", "weights": {}, "errors": dict.fromkeys(own, error)}
        for pair, method in own.items():
            about = {"pair": pair, "version": found["version"], "method": method.title}
            error = found["errors"].get(pair) or ours["errors"].get(method.title)
            if error:
                rows.append({**about, "result": f"not measured: {error}"})
                continue
            theirs = _arrays(found["weights"][pair])
            here = _arrays(ours["weights"][method.title])
            problem = known[method.problem]
            rows.append({**about, **row_of(PAIRS[pair], method, problem, theirs, here)})
    return rows


def _run(library: str, methods: Mapping[str, Method], known: Any) -> dict[str, Any]:
    """What a library's program answers."""
    chosen = LIBRARIES[library]
    python = sys.executable
    if chosen.environment:
        python = environments.python(chosen.environment)
    asked = {
        "problems": {name: formulas.to_json(each) for name, each in known.items()},
        "pairs": {n: (m.run, m.problem, m.settings) for n, m in methods.items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("asked.json", "found.json")]
        pathlib.Path(paths[0]).write_text(json.dumps(asked), encoding="utf-8")
        program = f"benchmarks.simulators.{chosen.program}"
        command = [python, "-m", program, *paths, *chosen.arguments]
        environ = {**os.environ, "FLWR_HOME": folder, "FLWR_TELEMETRY_ENABLED": "0"}
        done = subprocess.run(
            command, cwd=_ROOT, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it ended"]
            raise RuntimeError(said[-1])
        return json.loads(pathlib.Path(paths[1]).read_text(encoding="utf-8"))


def _arrays(rounds: Sequence[Any]) -> list[list[np.ndarray]]:
    return [[np.array(each) for each in weights] for weights in rounds]


def row_of(
    pair: Pair, method: Method, problem: Any, theirs: Sequence[Any], ours: Sequence[Any]
) -> dict[str, Any]:
    """Compares weights after each round.

    Args:
      pair: What is known.
      method: The method.
      problem: The problem.
      theirs: The library's weights by round; the shared ones of a personal method.
      ours: Our weights by round.

    Returns:
      JSON values by name. Distances are divided by how far our weights moved: after
      `rounds_1` and `rounds_3` theirs from ours; `theirs_from_formula` and
      `ours_from_formula` are the largest of all rounds, with the pair's departures.
      None where `formulas` does not have the method. `result` is 'equal', the pair's
      kind if the formulas prove it, or 'differs'.
    """

    def distance(one: Any, other: Any) -> float:
        return float(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(one, other))))

    shared = len(theirs[0])
    changes = [distance(w[:shared], problem.weights) for w in ours]

    def off(one: Any, other: Any) -> list[float]:
        return [distance(a, b) / c for a, b, c in zip(one, other, changes)]

    def from_formula(weights: Any, departures: Mapping[str, Any]) -> float | None:
        formula = getattr(formulas, method.run, None)
        if formula is None:
            return None
        rounds = formula(problem, **method.settings, **departures)
        return max(off(weights, itertools.islice(rounds, len(weights))))

    apart = off(theirs, ours)
    proofs = from_formula(theirs, pair.there), from_formula(ours, pair.here)
    result = "differs"
    if len(apart) == formulas.ROUNDS:
        if max(apart) <= TOLERANCE:
            result = "equal"
        elif pair.finding and all(p is not None and p <= TOLERANCE for p in proofs):
            result = pair.kind
    return {
        "rounds_1": apart[0],
        "rounds_3": apart[-1],
        "theirs_from_formula": proofs[0],
        "ours_from_formula": proofs[1],
        "result": result,
    }


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def _name(row: Mapping[str, Any]) -> str:
    return f"{LIBRARIES[row['pair'].partition('-')[0]].title} {row['version']}"


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns, and of its findings."""
    lines = subject.to_markdown(
        [
            {
                "library": _name(row),
                "method": row["method"],
                "1 round": _cell(row.get("rounds_1")),
                "3 rounds": _cell(row.get("rounds_3")),
                "theirs - formula": _cell(row.get("theirs_from_formula")),
                "ours - formula": _cell(row.get("ours_from_formula")),
                "result": row["result"],
            }
            for row in rows
        ]
    )
    findings: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        said = PAIRS[row["pair"]].finding
        if row["result"] == "equal":
            said = said and "what was known to differ is gone."
        elif row["result"] == "differs":
            said = "nothing that is known here explains the difference."
        if said and "rounds_1" in row:
            findings.setdefault((_name(row), said), []).append(row)
    lines += ["", "Findings:", ""] * bool(findings)
    for (name, said), about in findings.items():
        methods = ", ".join(row["method"] for row in about)
        only = ",".join(row["pair"] for row in about)
        lines.append(f"- {name}, {methods}: {said} `bin/bench parity --only={only}`")
    left_out = [f"- {name}: {why}." for name, why in NOT_COMPARED.items()]
    return [*lines, "", "Not compared:", "", *left_out]


def _define_flags(given: flags.FlagValues) -> None:
    help_text = "Some pairs, such as fluke-scaffold, or libraries, such as tff."
    flags.DEFINE_list("only", [], help_text, given)


def _chosen(only: Sequence[str]) -> list[str]:
    """The pairs that are named, or whose library is."""
    libraries = [library for library in LIBRARIES if library != _OURS]
    if unknown := [each for each in only if each not in (*PAIRS, *libraries)]:
        raise subject.RefusedError(
            f"--only={','.join(unknown)}: choose some of"
            f" {', '.join([*libraries, *PAIRS])}."
        )
    return [p for p in PAIRS if {p, p.partition("-")[0]} & {*only} or not only]


def _run_flags(given: flags.FlagValues) -> None:
    rows = measure(_chosen(given.only or ["tff"] * given.quick), report=subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run_flags,
    define_flags=_define_flags,
    help="""\
bin/bench parity [--only=PAIR,...] [--quick] [--json=FILE]
  The weights after one and three rounds of methods that TFF, fluke, Flower, FedJAX or
  pfl-research has, too: their code and ours on the same weights, batches and settings,
  the difference, and who departs from the paper in what. Three minutes; with --quick
  TFF alone. The first call installs the others into build/peers (4 GB).
  PAIR: a library, such as fluke, or its method, such as fluke-scaffold.""",
)
