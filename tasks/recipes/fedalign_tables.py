"""The tables of the FedAlign paper.

M. Mendieta et al., "Local Learning Matters: Rethinking Data
Heterogeneity in Federated Learning" (FedAlign), CVPR 2022.
"""

from __future__ import annotations

from tff_reg.methods import papers
from tff_reg.tasks.recipes.variants import (
    SEEDS,
    THREE_RUNS,
    Paper,
    Table,
    variant,
)

_GRADAUGS = {
    count: variant(
        process="gradaug",
        gradaug_strength=strength,
        gradaug_subnetworks=count,
        gradaug_minimum_width=0.8,
    )
    for count, strength in {1: 2.0, 2: 1.75, 3: 1.5, 4: 1.25}.items()
}
_SAMPLED = variant(num_clients=64, clients_per_round=16)
_IMAGENET_200 = variant(
    "The 200 classes are those of the authors' code. Their 500 images per class depend"
    " on the order of files on their disk; ours differ.",
    task="imagenet200",
    model="resnet18_imagenet",
    augmentation="resized_crop",
)
_FEDALIGN = Paper(
    "fedalign",
    "Local Learning Matters (FedAlign), Mendieta et al., CVPR 2022",
    variant(
        "Batch size, Nesterov momentum, weight decay and dropping the short last batch"
        " of an epoch follow the authors' code. There the momentum carries over between"
        " clients and rounds; here it starts at zero.",
        measure=THREE_RUNS,
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
        "FedAvg": variant(process="fedavg"),
        "FedProx": variant(process="fedprox", fedprox_strength=1e-4),
        "MOON": variant(
            process="moon", projector="moon", moon_strength=1.0, moon_temperature=0.5
        ),
        "Mixup": variant(process="mixup", mixup_concentration=0.1),
        "StochDepth": variant(
            process="stochdepth", stochdepth_survival_probability=0.9
        ),
        "GradAug": _GRADAUGS[2],
        **{f"GradAug (n = {count})": variant for count, variant in _GRADAUGS.items()},
        "FedAlign": variant(
            "Gradients are clipped at norm 10 for FedAlign alone, as in the authors'"
            " code.",
            process="fedalign",
            fedalign_strength=0.45,
            fedalign_width=0.25,
            max_gradient_norm=10.0,
        ),
    },
    {
        "Acc., lambda_max, H_T, H_N, H_D": variant(),
        "alpha = 0.1": variant(concentration=0.1),
        "alpha = 0.5": variant(),
        "alpha = 2.5": variant(concentration=2.5),
        "homog": variant(partition="iid", concentration=None),
        "E = 10": variant(local_epochs=10),
        "E = 20": variant(),
        "E = 30": variant(local_epochs=30),
        "C = 16": variant(),
        "C = 32": variant(num_clients=32, clients_per_round=32),
        "C = 64": variant(num_clients=64, clients_per_round=64),
        "C = 64 x 0.25": _SAMPLED,
        "C = 64 x 0.25 (100)": _SAMPLED | variant(total_rounds=100),
        "Acc., MFLOPs, Param, Time": variant(),
        "CIFAR-10, C = 16": variant(
            measure=f"{THREE_RUNS}; MFLOPs, parameters in M", task="cifar10"
        ),
        "CIFAR-10, C = 64 x 0.25 (100)": _SAMPLED
        | variant(task="cifar10", total_rounds=100),
        "ImageNet-200, C = 16": _IMAGENET_200
        | variant(measure=f"{THREE_RUNS}; GFLOPs, parameters in M"),
        "ImageNet-200, C = 32 x 0.125 (50)": _IMAGENET_200
        | variant(num_clients=32, clients_per_round=4, total_rounds=50),
    },
)
TABLES = (
    Table(
        _FEDALIGN,
        "1",
        variant(
            "The run gives the accuracy and the model; the other numbers and Figure 1"
            " are measured on the model. The authors' code keeps the best round's model"
            " (bin/analyze --weights=best), and its H_N and H_D are the columns"
            " h_n_code and h_d_code.",
            measure="accuracy in %; top Hessian eigenvalue, trace, H_N and H_D of the"
            " final model",
            keep_best=True,
        ),
    ),
    Table(
        _FEDALIGN,
        "2",
        SEEDS,
    ),
    Table(
        _FEDALIGN,
        "3",
        SEEDS,
    ),
    Table(
        _FEDALIGN,
        "4",
        SEEDS,
    ),
    Table(
        _FEDALIGN,
        "5",
        SEEDS
        | variant(
            measure="accuracy in %, MFLOPs, parameters in M, seconds a round on 4 RTX"
            " 2080 Ti"
        ),
    ),
    Table(
        _FEDALIGN,
        "6",
        SEEDS,
    ),
    Table(
        _FEDALIGN,
        "7",
        SEEDS,
        exceptions=[
            (
                "GradAug*",
                "ImageNet-200*",
                variant(
                    "The resolutions are the authors' code's for ImageNet: 224, 192,"
                    " 160 and 128.",
                    gradaug_resolutions=(1.0, 192 / 224, 160 / 224, 128 / 224),
                ),
            )
        ],
    ),
)
