"""Every table of the four papers: what its rows and columns set, what it prints.

A cell's settings are the paper's, the table's, the row's and the column's together,
the later ones going before the earlier; None takes a setting away. What is not an
experiment is left out: MAN's Table 3 counts operations by formulae.

Sources: M. Mendieta et al., "Local Learning Matters: Rethinking Data Heterogeneity in
Federated Learning" (FedAlign), CVPR 2022; J. Kim et al., "Multi-Level Branched
Regularization for Federated Learning" (FedMLB), ICML 2022; M. Yashwanth et al.,
"Minimizing Layerwise Activation Norm Improves Generalization in Federated Learning"
(MAN), WACV 2024; S. Gupta et al., "UniVarFL: Uniformity and Variance Regularized
Federated Learning for Heterogeneous Data".
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_reg.methods import papers


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a paper, a table, a row or a column sets; `a | b` is both, b the stronger.

    Attributes:
      settings: Settings of a run by name; None takes one away.
      notes: What differs from the paper, or what it leaves open; whole sentences.
      measure: What the numbers are.
    """

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    measure: str = ""

    def __or__(self, other: Variant) -> Variant:
        return Variant(
            {**self.settings, **other.settings},
            (*self.notes, *other.notes),
            other.measure or self.measure,
        )


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
      name: What its recipes' names begin with.
      title: With authors and year.
      base: What all its experiments share.
      rows: The rows of its tables, by name.
      columns: The columns of its tables, by name.
    """

    name: str
    title: str
    base: Variant
    rows: Mapping[str, Variant]
    columns: Mapping[str, Variant]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
      paper: The paper.
      text: The table as printed: its number, a part in brackets if it has two, and what
        it is about; a line of column names, of which a star marks the one whose recipes
        have the row's name alone; a line a row. Cells are separated by '|'.
      base: What all its cells share.
      columns: By name, what the paper's tables do not share.
      exceptions: Where a cell is more than row and column together: a pattern of the
        row's name, one of the column's, and what is added.
    """

    paper: Paper
    text: str
    base: Variant = Variant()
    columns: Mapping[str, Variant] = dataclasses.field(default_factory=dict)
    exceptions: Sequence[tuple[str, str, Variant]] = ()

    @property
    def _heading(self) -> Sequence[str]:
        heading = re.match(r"(\d+)(?: \((.*?)\))?: (.*)", self.text)
        assert heading is not None, self.text
        return heading.groups("")

    @property
    def number(self) -> int:
        """The table's number."""
        return int(self._heading[0])

    @property
    def part(self) -> str:
        """What distinguishes the recipes of (b) from those of (a), or nothing."""
        return self._heading[1]

    @property
    def title(self) -> str:
        """What it is about."""
        return self._heading[2]

    def cells(self) -> Iterator[tuple[str, str, bool, str]]:
        """Yields each cell: row, column, whether this is marked, what is printed."""
        header, *lines = (
            [cell.strip() for cell in line.split("|")]
            for line in self.text.strip().splitlines()[1:]
        )
        for row, *printed in lines:
            for column, numbers in zip(header[1:], printed):
                yield row, column.lstrip("*"), column.startswith("*"), numbers

    def variants(self, row: str, column: str) -> list[Variant]:
        """What a cell is set by, the strongest last."""
        return [
            self.paper.base,
            self.base,
            self.paper.rows[row],
            {**self.paper.columns, **self.columns}[column],
            *(
                added
                for rows, columns, added in self.exceptions
                if fnmatch.fnmatchcase(row, rows)
                and fnmatch.fnmatchcase(column, columns)
            ),
        ]


def _set(*notes: str, measure: str = "", **settings: Any) -> Variant:
    return Variant(settings, notes, measure)


def _added(variant: Variant, method: str) -> Variant:
    """The same with another method."""
    parts = [variant.settings["process"], method]
    process = "+".join(part for part in parts if part != "fedavg")
    return variant | _set(process=process)


_THREE_RUNS = "accuracy in %, mean and deviation of three runs"
_SEEDS = _set("The paper runs it three times: --seed=0, 1 and 2.")

# FedAlign -----------------------------------------------------------------------------

_GRADAUGS = {
    count: _set(
        process="gradaug",
        gradaug_strength=strength,
        gradaug_subnetworks=count,
        gradaug_minimum_width=0.8,
    )
    for count, strength in {1: 2.0, 2: 1.75, 3: 1.5, 4: 1.25}.items()
}
_SAMPLED = _set(num_clients=64, clients_per_round=16)
_IMAGENET_200 = _set(
    "The 200 classes are those of the authors' code; which 500 images of each they took"
    " depends on their disk, and ours are others.",
    task="imagenet200",
    model="resnet18_imagenet",
    augmentation="resized_crop",
)
_FEDALIGN = Paper(
    "fedalign",
    "Local Learning Matters (FedAlign), Mendieta et al., CVPR 2022",
    _set(
        "Batch size, Nesterov momentum and weight decay are the authors' code's, and"
        " that the short last batch of an epoch is dropped. Its momentum also lives on"
        " from client to client and from round to round; here each begins with none.",
        measure=_THREE_RUNS,
        process="fedavg",
        task="cifar100",
        model="resnet56",
        norm="batch",
        augmentation="crop_flip",
        **papers.FEDALIGN,
        drop_remainder=True,
        max_gradient_norm=0.0,
    ),
    {
        "FedAvg": _set(process="fedavg"),
        "FedProx": _set(process="fedprox", fedprox_strength=1e-4),
        "MOON": _set(
            process="moon", projector="moon", moon_strength=1.0, moon_temperature=0.5
        ),
        "Mixup": _set(process="mixup", mixup_concentration=0.1),
        "StochDepth": _set(process="stochdepth", stochdepth_survival_probability=0.9),
        "GradAug": _GRADAUGS[2],
        **{f"GradAug (n = {count})": variant for count, variant in _GRADAUGS.items()},
        "FedAlign": _set(
            "Gradients are clipped at norm 10 for FedAlign alone, as in the authors'"
            " code.",
            process="fedalign",
            fedalign_strength=0.45,
            fedalign_width=0.25,
            max_gradient_norm=10.0,
        ),
    },
    {
        "Acc., lambda_max, H_T, H_N, H_D": _set(),
        "alpha = 0.1": _set(concentration=0.1),
        "alpha = 0.5": _set(),
        "alpha = 2.5": _set(concentration=2.5),
        "homog": _set(partition="iid", concentration=None),
        "E = 10": _set(local_epochs=10),
        "E = 20": _set(),
        "E = 30": _set(local_epochs=30),
        "C = 16": _set(),
        "C = 32": _set(num_clients=32, clients_per_round=32),
        "C = 64": _set(num_clients=64, clients_per_round=64),
        "C = 64 x 0.25": _SAMPLED,
        "C = 64 x 0.25 (100)": _SAMPLED | _set(total_rounds=100),
        "Acc., MFLOPs, Param, Time": _set(),
        "CIFAR-10, C = 16": _set(
            measure=f"{_THREE_RUNS}; MFLOPs, parameters in M", task="cifar10"
        ),
        "CIFAR-10, C = 64 x 0.25 (100)": _SAMPLED
        | _set(task="cifar10", total_rounds=100),
        "ImageNet-200, C = 16": _IMAGENET_200
        | _set(measure=f"{_THREE_RUNS}; GFLOPs, parameters in M"),
        "ImageNet-200, C = 32 x 0.125 (50)": _IMAGENET_200
        | _set(num_clients=32, clients_per_round=4, total_rounds=50),
    },
)
_FEDALIGN_TABLES = (
    Table(
        _FEDALIGN,
        """1: Accuracy and second-order metrics, CIFAR-100
                   | *Acc., lambda_max, H_T, H_N, H_D
        FedAvg     | 52.9, 297, 6240, 11360, 0.98
        FedProx    | 53.0, 270, 6132, 6522, 0.98
        MOON       | 55.3, 252, 5520, 5712, 0.97
        Mixup      | 54.0, 216, 5468, 15434, 0.99
        StochDepth | 55.5, 215, 3970, 8267, 0.97
        GradAug    | 57.1, 167, 2597, 2924, 0.96
        """,
        _set(
            "The run gives the accuracy and the model, of which the others are"
            " measured; Figure 1 is drawn of it, too. The authors' code keeps the model"
            " of the best round (bin/analyze --weights=best), and its H_N and H_D are"
            " those of h_n_code and h_d_code.",
            measure="accuracy in %; top Hessian eigenvalue, trace, H_N and H_D of the"
            " final model",
            keep_best=True,
        ),
    ),
    Table(
        _FEDALIGN,
        """2: Degrees of data heterogeneity, CIFAR-100
                   | alpha = 0.1 | *alpha = 0.5 | alpha = 2.5 | homog
        FedAvg     | 45.0 ± 0.2  | 52.9 ± 0.1  | 54.4 ± 0.2  | 54.9 ± 0.4
        FedProx    | 45.2 ± 0.3  | 53.1 ± 0.3  | 54.5 ± 0.3  | 54.8 ± 0.5
        MOON       | 46.5 ± 0.5  | 55.0 ± 0.5  | 56.3 ± 0.6  | 56.3 ± 0.5
        Mixup      | 44.3 ± 0.1  | 54.0 ± 0.1  | 55.5 ± 0.4  | 56.7 ± 0.4
        StochDepth | 48.2 ± 0.3  | 55.5 ± 0.2  | 57.6 ± 0.2  | 58.1 ± 0.6
        GradAug    | 48.6 ± 0.4  | 57.0 ± 0.1  | 59.6 ± 0.2  | 60.5 ± 0.2
        """,
        _SEEDS,
    ),
    Table(
        _FEDALIGN,
        """3: Number of local epochs, CIFAR-100
                   | E = 10     | *E = 20     | E = 30
        FedAvg     | 50.6 ± 0.1 | 52.9 ± 0.1 | 53.2 ± 0.3
        FedProx    | 50.7 ± 0.5 | 53.1 ± 0.3 | 52.8 ± 0.1
        MOON       | 50.7 ± 0.4 | 55.0 ± 0.5 | 55.2 ± 0.4
        Mixup      | 50.5 ± 0.4 | 54.0 ± 0.1 | 54.4 ± 0.3
        StochDepth | 50.9 ± 0.6 | 55.5 ± 0.2 | 56.4 ± 0.3
        GradAug    | 53.5 ± 0.3 | 57.0 ± 0.1 | 57.7 ± 0.3
        """,
        _SEEDS,
    ),
    Table(
        _FEDALIGN,
        """4: Number of clients and client sampling, CIFAR-100
                   | *C = 16     | C = 32     | C = 64     | C = 64 x 0.25 \
                   | C = 64 x 0.25 (100)
        FedAvg     | 52.9 ± 0.1 | 44.5 ± 0.3 | 34.6 ± 0.2 | 32.7 ± 0.5    | 46.5 ± 0.6
        FedProx    | 53.1 ± 0.3 | 44.5 ± 0.6 | 34.8 ± 0.2 | 32.5 ± 0.4    | 46.2 ± 0.1
        MOON       | 55.0 ± 0.5 | 45.8 ± 0.3 | 35.2 ± 0.8 | 34.2 ± 0.2    | 49.5 ± 0.7
        Mixup      | 54.0 ± 0.1 | 46.0 ± 0.1 | 36.0 ± 0.2 | 33.6 ± 0.6    | 49.1 ± 0.2
        StochDepth | 55.5 ± 0.2 | 47.5 ± 0.2 | 35.5 ± 0.6 | 34.6 ± 0.1    | 51.4 ± 0.1
        GradAug    | 57.0 ± 0.1 | 50.4 ± 0.1 | 40.2 ± 0.1 | 38.1 ± 0.3    | 53.3 ± 0.5
        """,
        _SEEDS,
    ),
    Table(
        _FEDALIGN,
        """5: Local compute, stored parameters and wall-clock time, CIFAR-100
                        | *Acc., MFLOPs, Param, Time
        FedAvg          | 52.9 ± 0.1, 87.3, 0.61, 137.2
        FedProx         | 53.1 ± 0.3, 87.3, 1.21, 161.9
        MOON            | 55.0 ± 0.5, 262.2, 2.21, 414.2
        Mixup           | 54.0 ± 0.1, 87.3, 0.61, 137.8
        StochDepth      | 55.5 ± 0.2, 82.4, 0.61, 136.7
        GradAug (n = 1) | 56.7 ± 0.3, 133.9, 0.61, 229.2
        GradAug (n = 2) | 57.0 ± 0.1, 170.7, 0.61, 323.9
        GradAug (n = 3) | 56.8 ± 0.3, 217.4, 0.61, 417.7
        GradAug (n = 4) | 56.9 ± 0.3, 264.1, 0.61, 514.4
        FedAlign        | 56.9 ± 0.5, 89.1, 0.61, 166.2
        """,
        _SEEDS
        | _set(
            measure="accuracy in %, MFLOPs, parameters in M, seconds a round on 4 RTX"
            " 2080 Ti"
        ),
    ),
    Table(
        _FEDALIGN,
        """6: FedAlign in the settings of Tables 2 to 4, CIFAR-100
                 | alpha = 0.1 | alpha = 2.5 | homog      | E = 10     | E = 30     \
                 | C = 32      | C = 64      | C = 64 x 0.25 | C = 64 x 0.25 (100)
        FedAlign | 48.7 ± 0.2  | 57.6 ± 0.6  | 58.2 ± 0.1 | 51.2 ± 0.3 | 57.9 ± 0.6 \
                 | 47.8 ± 0.3  | 36.5 ± 0.1  | 34.9 ± 0.6    | 50.9 ± 0.5
        """,
        _SEEDS,
    ),
    Table(
        _FEDALIGN,
        """7: All methods on CIFAR-10 and ImageNet-200
                        | *CIFAR-10, C = 16 | CIFAR-10, C = 64 x 0.25 (100) \
                        | ImageNet-200, C = 16 | ImageNet-200, C = 32 x 0.125 (50)
        FedAvg          | 81.9 ± 0.6, 87.3, 0.61 | 78.9 ± 0.3 \
                        | 60.7 ± 0.4, 18.1, 11.22 | 52.7 ± 0.2
        FedProx         | 81.9 ± 0.2, 87.3, 1.21 | 78.9 ± 0.7 \
                        | 61.0 ± 0.4, 18.1, 22.42 | 52.5 ± 0.3
        MOON            | 82.9 ± 0.4, 262.2, 2.21 | 79.4 ± 0.5 \
                        | 61.1 ± 0.2, 54.4, 19.96 | 54.3 ± 0.2
        Mixup           | 80.3 ± 0.4, 87.3, 0.61 | 80.5 ± 0.5 \
                        | 61.0 ± 0.3, 18.1, 11.22 | 52.3 ± 0.3
        StochDepth      | 82.2 ± 0.2, 82.4, 0.61 | 80.8 ± 0.7 \
                        | 60.5 ± 0.2, 17.3, 11.22 | 52.9 ± 0.2
        GradAug (n = 2) | 84.6 ± 0.6, 170.7, 0.61 | 83.8 ± 0.3 \
                        | 63.5 ± 0.4, 34.4, 11.22 | 55.6 ± 0.1
        GradAug (n = 1) | 84.0 ± 0.2, 133.9, 0.61 | 82.3 ± 0.5 \
                        | 62.8 ± 0.3, 25.3, 11.22 | 54.4 ± 0.4
        FedAlign        | 82.3 ± 0.3, 89.1, 0.61 | 82.3 ± 0.3 \
                        | 62.0 ± 0.1, 19.3, 11.22 | 55.1 ± 0.5
        """,
        _SEEDS,
        exceptions=[
            (
                "GradAug*",
                "ImageNet-200*",
                _set(
                    "The resolutions are the authors' code's for ImageNet: 224, 192,"
                    " 160 and 128.",
                    gradaug_resolutions=(1.0, 192 / 224, 160 / 224, 128 / 224),
                ),
            )
        ],
    ),
)

# FedMLB -------------------------------------------------------------------------------

_1000_ROUNDS = (
    "accuracy in % after 1000 rounds; ema_accuracy in summary.json is what the paper's"
    " other tables print"
)


def _targets(first: int, second: int) -> Variant:
    return _set(
        measure="moving average of the accuracy in % after 500 and 1000 rounds, rounds"
        f" until it reaches {first} % and {second} %",
        target_accuracies=(round(first / 100, 4), round(second / 100, 4)),
    )


_MLB = _set(fedmlb_cross_entropy=1.0, fedmlb_distillation=1.0, fedmlb_temperature=1.0)
_WHOLE_MLB = _set(process="fedmlb") | _MLB
_FEDMLB_SERVERS = {
    "FedAvg": _set(process="fedavg"),
    "FedAvgM": _set(
        "The paper chose FedAvgM's beta among 0.4, 0.6 and 0.8; here the 0.4 of the"
        " group's later code (FedACG).",
        process="fedavgm",
        server_optimizer="sgd",
        server_momentum=0.4,
    ),
    "FedADAM": _set(
        "FedAdam's betas are not in the paper; here 0.9 and 0.99, those of its authors"
        " and of the FedMLB group's later code (FedACG).",
        process="fedadam",
        server_optimizer="adam",
        server_learning_rate=0.01,
        server_beta1=0.9,
        server_beta2=0.99,
        server_epsilon=0.001,
        client_learning_rate=0.01,
    ),
    "FedDyn": _set(
        "The server's model is what the paper tests, not the mean of all clients'. As"
        " in the authors' code the whole gradient is clipped; FedDyn's leaves alpha w"
        " unclipped.",
        process="feddyn",
        feddyn_strength=0.1,
        feddyn_clipping="whole",
        averages_all_clients=False,
    ),
}
_FEDMLB_METHODS = {
    **_FEDMLB_SERVERS,
    **{
        f"{name} + FedMLB": _added(each, "fedmlb") | _MLB
        for name, each in _FEDMLB_SERVERS.items()
    },
    "FedMLB": _WHOLE_MLB,
    "FedMLB G->L": _WHOLE_MLB | _set(fedmlb_direction="global_to_local"),
    "FedMLB L->G": _WHOLE_MLB | _set(fedmlb_direction="local_to_global"),
    "FedAvg + KD": _set(
        "The strength and the temperature are not in the paper; here 1 and 1.",
        process="kd",
        kd_strength=1.0,
        kd_temperature=1.0,
    ),
    "FedAvg + FitNet": _set(
        "The strength is not in the paper; here 1.",
        process="fitnet",
        fitnet_strength=1.0,
    ),
    "FedProx": _set(
        "The paper chose the strength among 0.1, 0.01 and 0.001; here 0.002, as the"
        " group's later code (FedACG) adds 0.001 times the squared distance, of which"
        " FedProx has the half.",
        process="fedprox",
        fedprox_strength=0.002,
    ),
    "FedLS-NTD": _set(
        "FedLS-NTD's weights and temperature are not in the paper; here those of the"
        " group's later code (FedACG): 0.7 of the cross-entropy, 0.3 of the divergence,"
        " temperature 1. FedNTD's authors leave the cross-entropy whole and add beta ="
        " 1 times the divergence, times the squared temperature"
        " (--fedntd_cross_entropy=1, --fedntd_strength=1,"
        " --fedntd_squared_temperature).",
        process="fedntd",
        fedntd_strength=0.3,
        fedntd_cross_entropy=0.7,
        fedntd_temperature=1.0,
        fedntd_squared_temperature=False,
    ),
    "FedGKD": _set(
        "How many global models FedGKD averages is not in the paper; here 5.",
        process="fedgkd",
        fedgkd_strength=0.2,
        fedgkd_averaged_rounds=5,
    ),
}
# By the name of the row, such as "paths 135": which of the five there are.
_PATHS = {
    "paths " + "".join(map(str, subset)): subset
    for size in range(1, 6)
    for subset in itertools.combinations(range(1, 6), size)
}
# Of Table 6, by the number of paths.
_AVERAGES = ("47.89 ± 3.99", "51.86 ± 2.45", "52.89 ± 1.78", "53.69 ± 1.43", "54.58")
_LARGE = _set(num_clients=500, clients_per_round=10)
_FEDMLB = Paper(
    "fedmlb",
    "Multi-Level Branched Regularization (FedMLB), Kim et al., ICML 2022",
    _set(
        "The clipping norm, the rotations of the images and their normalisation"
        " (CIFAR-10's numbers, for CIFAR-100 too) are the authors' code's; the paper"
        " gives none of them. Strengths that the paper leaves open are those of the"
        " group's later code (FedACG), where it has them. The split is drawn anew, in"
        " the way of their code: their own are files for --partition=split_file.",
        measure=_1000_ROUNDS,
        process="fedavg",
        task="cifar100",
        model="resnet18",
        norm="group",
        augmentation="rotate_crop_flip",
        pixel_mean=(0.4914, 0.4822, 0.4465),
        pixel_std=(0.2470, 0.2435, 0.2616),
        **papers.FEDMLB,
        accuracy_at_rounds=(500, 1000),
    ),
    {
        **_FEDMLB_METHODS,
        **{
            name: _WHOLE_MLB
            | _set(
                "The sums over some of the paths are divided by the number of all, as"
                " in the authors' code; --fedmlb_divisor=chosen is the group's later"
                " one.",
                fedmlb_paths=subset,
                fedmlb_divisor="all",
            )
            for name, subset in _PATHS.items()
        },
        **{f"lambda1 = {n}": _set(fedmlb_cross_entropy=float(n)) for n in range(4)},
        "Dir(0.3)": _set(concentration=0.3),
        "Dir(0.6)": _set(concentration=0.6),
        **{
            name: _set(
                "FedMLB's public code has ResNet-18 alone; this is the network that the"
                " same group published with FedACG.",
                model=name.replace("-", "").lower(),
            )
            for name in ("VGG-9", "MobileNet", "ShuffleNet", "SqueezeNet")
        },
        "ResNet-18": _set(model="resnet18"),
    },
    {
        **_FEDMLB_METHODS,
        "100 clients": _targets(40, 48),
        "500 clients": _LARGE | _set(batch_size=10) | _targets(30, 36),
        "K = 100": _set(local_epochs=10),
        "K = 200": _set(local_epochs=20),
        "Acc.": _set(),
        "Average accuracy": _set(
            measure="accuracy in % after 1000 rounds, mean and deviation over all"
            " choices of as many paths"
        ),
        **{f"lambda2 = {n}": _set(fedmlb_distillation=float(n)) for n in range(4)},
        **{
            f"tau = {tau}": _set(fedmlb_temperature=float(tau))
            for tau in (0.75, 1, 1.5, 2, 3, 5)
        },
    },
)


def _two_data_sets(text: str, targets: Sequence[Variant], base: Variant) -> Table:
    """Tables 1, 10 and 11: CIFAR-100 and Tiny-ImageNet, 100 or 500 clients."""
    is_large = "(500 clients)" in text
    text = text.replace(": ", ": FedMLB on four server-side baselines, ", 1)
    tiny = _set(
        "The authors' code turns, crops and flips the test images of Tiny-ImageNet too,"
        " as in training; here they are tested as they are.",
        task="tiny_imagenet",
        # The task's own numbers are the authors'.
        pixel_mean=None,
        pixel_std=None,
        batch_size=20 if is_large else 100,
    )
    cifar = _set(batch_size=10 if is_large else 50)
    return Table(
        _FEDMLB,
        text,
        base | _LARGE if is_large else base,
        {
            "CIFAR-100": cifar | targets[0],
            "Tiny-ImageNet": tiny | targets[1],
        },
    )


_FEDMLB_TABLES = (
    _two_data_sets(
        """1: (a) Dir(0.3), 100 clients, 5 %
                         | *CIFAR-100               | Tiny-ImageNet
        FedAvg           | 41.88, 47.83, 924, 1000+ | 33.94, 35.42, 1000+, 1000+
        FedMLB           | 47.39, 54.58, 488, 783   | 37.20, 40.16, 539, 1000+
        FedAvgM          | 46.98, 53.24, 515, 936   | 36.10, 38.36, 794, 1000+
        FedAvgM + FedMLB | 53.02, 58.97, 349, 499   | 40.93, 43.52, 380, 642
        FedADAM          | 47.07, 54.19, 499, 947   | 36.98, 40.60, 647, 1000+
        FedADAM + FedMLB | 48.59, 58.23, 472, 645   | 35.81, 42.90, 552, 873
        FedDyn           | 48.38, 55.78, 425, 735   | 37.35, 41.17, 573, 1000+
        FedDyn + FedMLB  | 57.33, 61.81, 299, 377   | 43.05, 46.55, 324, 446
        """,
        (_targets(47, 53), _targets(38, 42)),
        _set(),
    ),
    _two_data_sets(
        """1 (500 clients): (b) Dir(0.3), 500 clients, 2 %
                         | *CIFAR-100               | Tiny-ImageNet
        FedAvg           | 29.87, 37.48, 858, 1000+ | 23.63, 29.48, 645, 1000+
        FedMLB           | 32.03, 42.61, 642, 800   | 28.39, 33.67, 429, 710
        FedAvgM          | 31.80, 40.54, 724, 955   | 26.75, 33.26, 457, 836
        FedAvgM + FedMLB | 36.21, 47.75, 496, 636   | 32.00, 37.53, 307, 500
        FedADAM          | 36.07, 47.04, 480, 653   | 29.65, 35.91, 345, 642
        FedADAM + FedMLB | 38.28, 52.68, 442, 527   | 32.14, 39.54, 311, 524
        FedDyn           | 31.58, 41.02, 691, 927   | 24.35, 29.54, 595, 1000+
        FedDyn + FedMLB  | 36.50, 49.65, 478, 611   | 30.77, 37.68, 384, 541
        """,
        (_targets(36, 40), _targets(26, 32)),
        _set(),
    ),
    Table(
        _FEDMLB,
        """2: Other local objectives, CIFAR-100, Dir(0.3)
                        | *100 clients              | 500 clients
        FedAvg          | 41.88, 47.83, 428, 1000+ | 29.87, 37.48, 504, 858
        FedAvg + KD     | 42.99, 49.17, 389, 842   | 29.83, 37.65, 505, 859
        FedAvg + FitNet | 42.04, 47.67, 419, 1000+ | 29.92, 37.63, 503, 860
        FedProx         | 42.03, 47.93, 419, 1000+ | 29.28, 36.16, 533, 966
        FedLS-NTD       | 43.22, 49.29, 386, 825   | 28.66, 35.99, 546, 1000+
        FedGKD          | 42.28, 47.96, 397, 1000+ | 29.27, 37.25, 530, 896
        FedMLB          | 47.39, 54.58, 339, 523   | 32.03, 42.61, 446, 642
        """,
    ),
    Table(
        _FEDMLB,
        """3: More local iterations, CIFAR-100, Dir(0.3), 100 clients, 5 %
                        | K = 100                  | K = 200
        FedAvg          | 41.92, 48.15, 398, 987   | 41.45, 49.25, 433, 897
        FedAvg + KD     | 42.58, 49.15, 385, 905   | 42.84, 51.48, 381, 751
        FedAvg + FitNet | 39.48, 45.80, 531, 1000+ | 37.17, 43.97, 651, 1000+
        FedProx         | 42.01, 48.17, 391, 992   | 41.30, 48.67, 458, 959
        FedLS-NTD       | 41.34, 47.09, 423, 1000+ | 39.82, 46.72, 508, 1000+
        FedGKD          | 42.04, 46.79, 387, 1000+ | 42.26, 48.85, 387, 889
        FedMLB          | 52.53, 58.52, 223, 359   | 53.12, 58.91, 183, 325
        """,
        _set("K steps are K / 10 epochs of 10 batches of 50; the paper says K alone.")
        | _targets(40, 48),
    ),
    Table(
        _FEDMLB,
        """4: Hybrid paths the other way round, CIFAR-100, Dir(0.3)
                    | *100 clients              | 500 clients
        FedAvg      | 41.88, 47.83, 428, 1000+ | 29.87, 37.48, 504, 858
        FedMLB G->L | 42.41, 47.40, 386, 1000+ | 28.53, 35.46, 571, 1000+
        FedMLB L->G | 47.39, 54.58, 339, 523   | 32.03, 42.61, 446, 642
        """,
    ),
    Table(
        _FEDMLB,
        """5: Configurations of the hybrid paths, CIFAR-100, Dir(0.3), 100 clients
                    | *Acc.
        paths 12345 | 54.58
        paths 1234  | 55.18
        paths 123   | 55.03
        paths 12    | 54.16
        paths 1     | 50.79
        paths 5     | 48.45
        paths 45    | 46.78
        paths 345   | 51.73
        paths 2345  | 52.65
        """,
        _set(
            "Our text of the paper has lost the tick marks that say which paths a row"
            " has; these are ours: the deeper ones left out one by one, then kept."
        ),
    ),
    Table(
        _FEDMLB,
        "6: Number of hybrid paths, CIFAR-100, Dir(0.3), 100 clients\n"
        "| *Average accuracy\n"
        + "\n".join(
            f"{name} | {_AVERAGES[len(subset) - 1]}" for name, subset in _PATHS.items()
        ),
    ),
    Table(
        _FEDMLB,
        """7: Weights of the two losses, CIFAR-100, Dir(0.3), 100 clients
                    | lambda2 = 0 | lambda2 = 1 | lambda2 = 2 | lambda2 = 3
        lambda1 = 0 | 47.83       | 53.27       | 54.51       | 54.21
        lambda1 = 1 | 52.10       | 54.58       | 55.52       | 56.32
        lambda1 = 2 | 52.37       | 53.05       | 54.28       | 54.16
        lambda1 = 3 | 49.54       | 53.00       | 54.34       | 53.57
        """,
        _WHOLE_MLB,
    ),
    Table(
        _FEDMLB,
        """8: Temperature, CIFAR-100, 100 clients
                 | tau = 0.75 | tau = 1 | tau = 1.5 | tau = 2 | tau = 3 | tau = 5
        Dir(0.3) | 53.90      | 54.58   | 53.87     | 53.98   | 53.60   | 53.68
        Dir(0.6) | 56.10      | 56.70   | 56.72     | 56.87   | 54.98   | 54.02
        """,
        _WHOLE_MLB,
    ),
    Table(
        _FEDMLB,
        """9: Other backbones, CIFAR-100, Dir(0.3), 100 clients, 5 %
                   | FedAvg | FedLS-NTD | FedGKD | FedMLB
        VGG-9      | 47.04  | 51.37     | 48.62  | 54.54
        MobileNet  | 38.52  | 47.66     | 47.72  | 48.34
        ShuffleNet | 37.04  | 39.27     | 38.47  | 42.29
        SqueezeNet | 39.86  | 39.56     | 42.28  | 42.71
        ResNet-18  | 47.83  | 49.29     | 47.96  | 54.58
        """,
    ),
    _two_data_sets(
        """10: (a) Dir(0.6), 100 clients, 5 %
                         | *CIFAR-100               | Tiny-ImageNet
        FedAvg           | 43.43, 48.71, 926, 1000+ | 36.15, 37.72, 1000+, 1000+
        FedMLB           | 49.36, 56.70, 465, 602   | 39.34, 42.15, 441, 917
        FedAvgM          | 46.66, 52.49, 572, 937   | 38.41, 40.75, 475, 1000+
        FedAvgM + FedMLB | 54.62, 60.91, 331, 417   | 43.96, 46.82, 294, 401
        FedADAM          | 50.81, 56.95, 427, 569   | 40.13, 42.75, 415, 813
        FedADAM + FedMLB | 53.34, 61.49, 364, 467   | 40.67, 44.96, 415, 610
        FedDyn           | 50.51, 56.79, 427, 580   | 39.39, 42.97, 423, 875
        FedDyn + FedMLB  | 57.51, 62.43, 298, 355   | 43.35, 47.43, 294, 412
        """,
        (_targets(48, 52), _targets(38, 42)),
        _set(concentration=0.6),
    ),
    _two_data_sets(
        """10 (500 clients): (b) Dir(0.6), 500 clients, 2 %
                         | *CIFAR-100                | Tiny-ImageNet
        FedAvg           | 29.36, 36.36, 966, 1000+  | 24.48, 29.94, 600, 1000+
        FedMLB           | 33.74, 43.53, 571, 1000+  | 28.97, 35.08, 415, 650
        FedAvgM          | 32.44, 41.40, 680, 1000+  | 24.65, 31.54, 575, 1000+
        FedAvgM + FedMLB | 38.35, 49.65, 421, 690    | 32.33, 37.60, 308, 483
        FedADAM          | 37.33, 47.73, 463, 756    | 31.40, 37.03, 286, 533
        FedADAM + FedMLB | 39.57, 53.53, 402, 621    | 33.71, 41.15, 292, 444
        FedDyn           | 31.63, 41.58, 677, 1000+  | 26.42, 31.80, 485, 1000+
        FedDyn + FedMLB  | 38.90, 52.72, 440, 639    | 32.52, 38.28, 350, 712
        """,
        (_targets(36, 44), _targets(26, 32)),
        _set(concentration=0.6),
    ),
    _two_data_sets(
        """11: (a) IID, 100 clients, 5 %
                         | *CIFAR-100               | Tiny-ImageNet
        FedAvg           | 43.60, 48.01, 997, 1000+ | 37.96, 38.92, 504, 1000+
        FedAvg + FedMLB  | 50.12, 56.40, 426, 584   | 40.69, 42.98, 376, 640
        FedAvgM          | 47.43, 52.83, 532, 880   | 39.79, 41.34, 346, 1000+
        FedAvgM + FedMLB | 55.29, 61.16, 294, 377   | 44.02, 47.03, 271, 382
        FedADAM          | 54.35, 60.35, 303, 416   | 43.54, 46.12, 257, 377
        FedADAM + FedMLB | 57.13, 62.58, 285, 363   | 44.27, 47.36, 276, 372
        FedDyn           | 50.37, 56.88, 397, 592   | 39.49, 42.42, 350, 848
        FedDyn + FedMLB  | 56.97, 61.41, 298, 366   | 44.28, 46.62, 277, 361
        """,
        (_targets(48, 52), _targets(38, 42)),
        _set(partition="iid", concentration=None),
    ),
    _two_data_sets(
        """11 (500 clients): (b) IID, 500 clients, 2 %
                         | *CIFAR-100                | Tiny-ImageNet
        FedAvg           | 29.96, 36.93, 903, 1000+  | 23.25, 28.92, 701, 1000+
        FedAvg + FedMLB  | 34.60, 44.95, 549, 935    | 28.27, 35.51, 435, 689
        FedAvgM          | 32.47, 41.04, 679, 1000+  | 27.52, 34.08, 445, 800
        FedAvgM + FedMLB | 38.60, 50.52, 418, 676    | 33.51, 39.37, 281, 444
        FedADAM          | 38.32, 48.70, 430, 712    | 33.30, 37.55, 252, 441
        FedADAM + FedMLB | 42.48, 55.24, 338, 539    | 35.34, 41.75, 250, 384
        FedDyn           | 35.77, 47.34, 509, 806    | 24.79, 31.75, 565, 1000+
        FedDyn + FedMLB  | 39.37, 53.11, 429, 619    | 30.46, 37.89, 384, 540
        """,
        (_targets(36, 44), _targets(26, 32)),
        _set(partition="iid", concentration=None),
    ),
)

# MAN ----------------------------------------------------------------------------------

_MAN_BASELINES = {
    "FedAvg": _set(process="fedavg"),
    "FedSAM": _set(
        "The radius is not in the paper; here the authors' code's.",
        process="fedsam",
        fedsam_radius=0.05,
    ),
    "FedASAM": _set(
        "Radius and offset are not in the paper; here the authors' code's.",
        process="fedasam",
        fedasam_radius=0.5,
        fedasam_offset=0.2,
    ),
    "FedDyn": _set(
        "alpha is not in the paper; here the 0.01 of the authors' script and of"
        " FedDyn's.",
        process="feddyn",
        feddyn_strength=0.01,
        feddyn_clipping="half",
    ),
    "FedDC": _set(
        "alpha is not in the paper; here the authors' code's.",
        process="feddc",
        feddc_strength=0.01,
    ),
    "FedSpeed": _set(
        "alpha and radius are not in the paper; here what the authors' script passes,"
        " 0.01 and 0.01, though line 109 of their run_exp.sh hints at another radius.",
        process="fedspeed",
        fedspeed_strength=0.01,
        fedspeed_radius=0.01,
    ),
}

_MAN_SPLITS = {
    "delta = 0.3": _set(concentration=0.3),
    "delta = 0.6": _set(concentration=0.6),
    "iid": _set(partition="iid", concentration=None),
}
_MAN_DATA_SETS = {
    # The code has exactly 5 images of each class at each client.
    "CIFAR-100": ({"iid": _set(partition="iid_stratified")}, 50, _set(task="cifar100")),
    "Tiny-ImageNet": (
        {},
        28,
        _set(
            task="tiny_imagenet",
            model="man_convnet",
            norm="group",
            # ImageNet's.
            pixel_mean=(0.485, 0.456, 0.406),
            pixel_std=(0.229, 0.224, 0.225),
        ),
    ),
}
_MAN = Paper(
    "man",
    "Minimizing Layerwise Activation Norm (MAN), Yashwanth et al., WACV 2024",
    _set(
        "Weight decay, clipping, augmentation and normalisation are the authors'"
        " code's, and that each of the 100 clients takes part with probability 0.1.",
        process="fedavg",
        task="cifar100",
        model="feddyn_cnn",
        norm="none",
        augmentation="half_crop_flip",
        pixel_mean=(0.5071, 0.4867, 0.4408),
        pixel_std=(0.2675, 0.2565, 0.2761),
        **papers.MAN,
        averages_all_clients=True,
        # The rounds of Table 1 are those of the accuracy itself, of this mean.
        target_measure="raw",
        target_model="all_clients",
    ),
    {
        **_MAN_BASELINES,
        **{
            f"{name} + MAN": _added(each, "man")
            for name, each in _MAN_BASELINES.items()
        },
    },
    {
        **_MAN_SPLITS,
        **{
            f"{data_set}, {split}": of_data_set
            | of_split
            | more.get(split, _set())
            | _set(
                measure="accuracy in % of the mean of all clients' models after 500"
                f" rounds, three runs; in brackets the rounds to {target} %",
                target_accuracies=(round(target / 100, 4),),
            )
            for data_set, (more, target, of_data_set) in _MAN_DATA_SETS.items()
            for split, of_split in _MAN_SPLITS.items()
        },
    },
)
_ZETA_CIFAR = _set(
    "What zeta's 0.15 multiplies is open: Eq. 15 adds 0.15 times the sum, the"
    " authors' code half of that. Here 0.075; --man_scaling=paper is 0.15. For the IID"
    " split their SAM script has 0.6 (0.3) commented out.",
    man_strength=0.15,
    man_scaling="code",
    man_terms="paper",
)
_ZETA_TINY = _set(
    "0.1 times the sum is added, as Eq. 15 says and the authors' scripts do (0.2,"
    " halved); their prose has 0.1 for what is halved.",
    "The sum is the paper's, over all layers. The authors' two codes leave the"
    " third convolution out and add a variance, or take it after its pooling"
    " (--man_terms=code, samcode).",
    man_strength=0.1,
    man_scaling="paper",
    man_terms="paper",
)
_MAN_TABLES = (
    Table(
        _MAN,
        """1: Accuracy and rounds
                   | *CIFAR-100, delta = 0.3 | CIFAR-100, delta = 0.6 | CIFAR-100, iid \
                   | Tiny-ImageNet, delta = 0.3 | Tiny-ImageNet, delta = 0.6 \
                   | Tiny-ImageNet, iid
    FedAvg         | 40.90 ± 0.62 (500+) | 40.39 ± 0.59 (500+) | 39.40 ± 0.84 (500+) \
                   | 25.35 ± 1.16 (500+) | 24.41 ± 0.41 (500+) | 23.75 ± 0.99 (500+)
    FedAvg + MAN   | 52.00 ± 0.36 (206)  | 52.42 ± 0.23 (210)  | 52.59 ± 0.25 (224)  \
                   | 28.09 ± 0.26 (437)  | 28.90 ± 0.21 (194)  | 29.11 ± 0.12 (182)
    FedSAM         | 43.44 ± 0.11 (500+) | 43.36 ± 0.24 (500+) | 41.31 ± 0.27 (500+) \
                   | 26.23 ± 0.68 (500+) | 26.04 ± 0.20 (500+) | 23.97 ± 0.83 (500+)
    FedSAM + MAN   | 51.59 ± 0.48 (326)  | 52.62 ± 0.40 (281)  | 52.85 ± 0.13 (301)  \
                   | 32.16 ± 0.20 (104)  | 32.60 ± 0.92 (87)   | 31.40 ± 0.30 (82)
    FedASAM        | 46.00 ± 0.10 (500+) | 45.48 ± 0.08 (500+) | 44.18 ± 0.61 (500+) \
                   | 27.50 ± 0.09 (500+) | 27.05 ± 0.16 (500+) | 23.96 ± 0.43 (500+)
    FedASAM + MAN  | 51.23 ± 0.20 (313)  | 51.89 ± 0.09 (351)  | 52.41 ± 0.43 (296)  \
                   | 32.50 ± 0.05 (140)  | 32.41 ± 0.32 (136)  | 31.70 ± 0.81 (93)
    FedDyn         | 49.29 ± 0.30 (500+) | 49.91 ± 0.41 (486)  | 50.04 ± 0.22 (500+) \
                   | 29.23 ± 0.06 (295)  | 28.99 ± 0.55 (308)  | 29.41 ± 1.33 (350)
    FedDyn + MAN   | 55.27 ± 0.12 (145)  | 55.63 ± 0.37 (143)  | 55.83 ± 0.56 (157)  \
                   | 32.00 ± 0.57 (132)  | 32.44 ± 0.27 (110)  | 32.31 ± 0.38 (108)
    FedDC          | 52.02 ± 0.79 (294)  | 52.64 ± 0.24 (304)  | 53.25 ± 0.86 (289)  \
                   | 31.44 ± 0.43 (170)  | 31.42 ± 0.36 (193)  | 31.21 ± 0.43 (201)
    FedDC + MAN    | 55.21 ± 0.32 (144)  | 55.40 ± 0.30 (129)  | 56.77 ± 0.31 (156)  \
                   | 35.70 ± 0.21 (73)   | 36.07 ± 0.23 (66)   | 36.53 ± 0.03 (61)
    FedSpeed       | 50.95 ± 0.02 (392)  | 51.33 ± 0.17 (390)  | 50.95 ± 0.51 (439)  \
                   | 31.12 ± 0.61 (211)  | 31.10 ± 0.27 (228)  | 29.65 ± 0.11 (363)
    FedSpeed + MAN | 55.23 ± 0.15 (163)  | 55.84 ± 0.11 (153)  | 55.89 ± 0.41 (163)  \
                   | 34.32 ± 0.63 (108)  | 35.49 ± 0.07 (78)   | 33.02 ± 0.55 (98)
        """,
        _SEEDS,
        exceptions=[
            ("*+ MAN", "CIFAR-100*", _ZETA_CIFAR),
            ("*+ MAN", "Tiny-ImageNet*", _ZETA_TINY),
            # The radii that the authors' code has for IID.
            ("FedSAM", "Tiny-ImageNet, iid", _set(fedsam_radius=0.03)),
            ("FedSAM + MAN", "Tiny-ImageNet, iid", _set(fedsam_radius=0.01)),
            ("FedASAM", "Tiny-ImageNet, iid", _set(fedasam_radius=0.1)),
            ("FedASAM + MAN", "*, iid", _set(fedasam_radius=0.1)),
        ],
    ),
    Table(
        _MAN,
        """2: Top Hessian eigenvalue and trace, CIFAR-100
                     | *delta = 0.3 | delta = 0.6
        FedAvg       | 51.49, 8744 | 53.39, 9056
        FedAvg + MAN | 43.80, 4397 | 42.00, 4747
        FedSAM       | 32.46, 4909 | 35.32, 5160
        FedSAM + MAN | 29.29, 2709 | 30.05, 2918
        FedDyn       | 51.03, 6400 | 47.03, 6717
        FedDyn + MAN | 44.84, 3964 | 38.44, 3966
        FedDC        | 35.13, 3578 | 35.13, 3578
        FedDC + MAN  | 32.99, 2974 | 32.99, 2974
        """,
        _set(
            "The run gives the model, of which both are measured (bin/analyze hessian"
            " --weights=all_clients); Figures 1 and 4 are drawn of it, too.",
            measure="top eigenvalue, trace",
        ),
        exceptions=[("*+ MAN", "*", _ZETA_CIFAR)],
    ),
)

# UniVarFL -----------------------------------------------------------------------------

_RESNET_NOTE = (
    "ResNet-18 without its first max-pooling is FedUV's here: a 3x3 stem of stride 1,"
    " and stride 2 in the first stage."
)
_ALL_NOTE = (
    "The paper holds 10 % of the training examples out for validation; here all are"
    " trained on."
)
_STL10 = _set(
    "The small CNN is described in an appendix that we do not have; here it is"
    " FedUV's.",
    _ALL_NOTE,
    task="stl10",
    model="feduv_cnn",
    pixel_mean=(0.5, 0.5, 0.5),
    pixel_std=(0.5, 0.5, 0.5),
)
_CIFAR = _set(
    _ALL_NOTE,
    _RESNET_NOTE,
    "CIFAR-100 is not augmented, as CIFAR-10 is not in FedUV's code.",
    model="resnet18_feduv",
    total_rounds=60,
    task="cifar100",
    augmentation="none",
)
_FOUR_DOMAINS = _set(
    _RESNET_NOTE,
    "There is no test set: the 10 % that the paper holds out are tested on here.",
    model="resnet18_feduv",
    total_rounds=60,
    partition="domain",
    concentration=None,
    num_clients=4,
    clients_per_round=4,
)
_UNIVARFL = Paper(
    "univarfl",
    "Uniformity and Variance Regularized Federated Learning (UniVarFL), Gupta et al",
    _set(
        "The paper follows FedUV (Son et al., CVPR 2024). Where it is silent, this is"
        " FedUV's code: batches of 128 whose short last one is dropped, a cosine"
        " learning rate over the rounds, the projector's layers, augmentation and"
        " normalisation. The repository that its abstract names has not been seen.",
        measure=_THREE_RUNS,
        process="fedavg",
        norm="batch",
        augmentation="crop_flip",
        **papers.UNIVARFL,
        drop_remainder=True,
        max_gradient_norm=0.0,
    ),
    {
        "FedAvg": _set(process="fedavg"),
        "FedProx": _set(process="fedprox", fedprox_strength=0.01),
        "MOON": _set(
            "MOON's temperature is not in the paper; here 0.5, as in FedUV's code.",
            process="moon",
            moon_strength=1.0,
            moon_temperature=0.5,
        ),
        "Freeze": _set(
            "The classifier is never trained, as the paper says. In FedUV's code"
            " clients train it, and it is only not averaged.",
            process="freeze",
        ),
        "UniVarFL": _set(
            "epsilon is not in the paper; here 0.001.",
            "The variances are the paper's, over n - 1 as in FedUV's code, which takes"
            " their square roots (--univarfl_spread=deviation).",
            process="univarfl",
            univarfl_variance_kind="sample",
            univarfl_spread="variance",
            univarfl_energy=0.5,
            univarfl_variance_per_class=0.25,
            univarfl_epsilon=0.001,
        ),
    },
    {
        "STL-10, alpha = 0.01": _STL10,
        "STL-10, alpha = 1.0": _STL10 | _set(concentration=1.0),
        "CIFAR-100, alpha = 0.01": _CIFAR,
        "CIFAR-100, alpha = 1.0": _CIFAR | _set(concentration=1.0),
        "PACS": _set(
            "How many clients PACS has is not in the paper; here one a domain. It names"
            " both networks for PACS; here ResNet-18. It does not say how large the"
            " images are; here 64x64.",
            task="pacs",
        )
        | _FOUR_DOMAINS,
        "HAM10000": _set(
            "Clients, domains, network, rounds and image size for HAM10000 are not in"
            " the paper; here as for PACS, a client a source of the images, of"
            " which FedUV's code has the same four.",
            task="ham10000",
        )
        | _FOUR_DOMAINS,
        "p = 0.1": _set(clients_per_round=1),
        "p = 0.5": _set(clients_per_round=5),
        "p = 1.0": _set(clients_per_round=10),
    },
)
_UNIVARFL_TABLES = (
    Table(
        _UNIVARFL,
        """1: Test accuracy on four data sets
                 | *STL-10, alpha = 0.01 | STL-10, alpha = 1.0 \
                 | CIFAR-100, alpha = 0.01 | CIFAR-100, alpha = 1.0 \
                 | PACS | HAM10000
        FedAvg   | 28.1 ± 1.3 | 69.1 ± 0.6 | 51.7 ± 1.9 | 58.3 ± 1.5 \
                 | 62.5 ± 0.4 | 72.8 ± 0.1
        FedProx  | 26.9 ± 0.7 | 67.6 ± 0.8 | 50.3 ± 0.4 | 59.2 ± 0.9 \
                 | 58.9 ± 0.6 | 73.5 ± 0.3
        MOON     | 26.0 ± 0.8 | 69.4 ± 0.4 | 47.9 ± 1.4 | 60.0 ± 1.0 \
                 | 63.7 ± 1.5 | 72.9 ± 0.2
        Freeze   | 23.8 ± 1.0 | 72.0 ± 0.1 | 51.5 ± 1.4 | 59.3 ± 1.9 \
                 | 61.8 ± 0.1 | 73.1 ± 0.6
        UniVarFL | 28.5 ± 1.4 | 59.9 ± 0.6 | 56.9 ± 1.0 | 60.5 ± 0.9 \
                 | 66.0 ± 0.9 | 74.6 ± 0.5
        """,
        _SEEDS,
    ),
    Table(
        _UNIVARFL,
        """2: Client participation, STL-10, alpha = 0.01
                 | p = 0.1    | p = 0.5    | *p = 1.0
        FedAvg   | 17.6 ± 3.3 | 21.6 ± 1.7 | 27.4 ± 1.7
        FedProx  | 19.4 ± 2.8 | 21.9 ± 1.5 | 26.4 ± 1.6
        MOON     | 20.6 ± 3.5 | 23.4 ± 1.8 | 25.9 ± 1.4
        Freeze   | 21.7 ± 3.5 | 23.6 ± 1.7 | 23.9 ± 1.4
        UniVarFL | 23.4 ± 3.1 | 27.9 ± 1.1 | 28.5 ± 1.4
        """,
        _STL10 | _SEEDS,
    ),
)

TABLES = _FEDALIGN_TABLES + _FEDMLB_TABLES + _MAN_TABLES + _UNIVARFL_TABLES
