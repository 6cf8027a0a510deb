"""The tables of the UniVarFL paper.

S. Gupta et al., "UniVarFL: Uniformity and Variance Regularized
Federated Learning for Heterogeneous Data".
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

_RESNET_NOTE = (
    "ResNet-18 without its first max-pooling is FedUV's here: a 3x3 stem of stride 1,"
    " and stride 2 in the first stage."
)
_ALL_NOTE = (
    "The paper holds 10 % of the training examples out for validation; here all are"
    " trained on."
)
_STL10 = variant(
    "The small CNN is described in an appendix that we do not have; here it is"
    " FedUV's.",
    _ALL_NOTE,
    task="stl10",
    model="feduv_cnn",
    pixel_mean=(0.5, 0.5, 0.5),
    pixel_std=(0.5, 0.5, 0.5),
)
_CIFAR = variant(
    _ALL_NOTE,
    _RESNET_NOTE,
    "CIFAR-100 is not augmented, as CIFAR-10 is not in FedUV's code.",
    model="resnet18_feduv",
    total_rounds=60,
    task="cifar100",
    augmentation="none",
)
_FOUR_DOMAINS = variant(
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
    variant(
        "The paper follows FedUV (Son et al., CVPR 2024). Where it is silent, this is"
        " FedUV's code: batches of 128 whose short last one is dropped, a cosine"
        " learning rate over the rounds, the projector's layers, augmentation and"
        " normalisation. The repository that its abstract names has not been seen.",
        measure=THREE_RUNS,
        process="fedavg",
        norm="batch",
        augmentation="crop_flip",
        **papers.UNIVARFL,
        drop_remainder=True,
        max_gradient_norm=0.0,
    ),
    {
        "FedAvg": variant(process="fedavg"),
        "FedProx": variant(process="fedprox", fedprox_strength=0.01),
        "MOON": variant(
            "MOON's temperature is not in the paper; here 0.5, as in FedUV's code.",
            process="moon",
            moon_strength=1.0,
            moon_temperature=0.5,
        ),
        "Freeze": variant(
            "The classifier is never trained, as the paper says. In FedUV's code"
            " clients train it, and it is only not averaged.",
            process="freeze",
        ),
        "UniVarFL": variant(
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
        "STL-10, alpha = 1.0": _STL10 | variant(concentration=1.0),
        "CIFAR-100, alpha = 0.01": _CIFAR,
        "CIFAR-100, alpha = 1.0": _CIFAR | variant(concentration=1.0),
        "PACS": variant(
            "How many clients PACS has is not in the paper; here one a domain. It names"
            " both networks for PACS; here ResNet-18. It does not say how large the"
            " images are; here 64x64.",
            task="pacs",
        )
        | _FOUR_DOMAINS,
        "HAM10000": variant(
            "Clients, domains, network, rounds and image size for HAM10000 are not in"
            " the paper; here as for PACS, with one client per source of the images,"
            " the four sources of FedUV's code.",
            task="ham10000",
        )
        | _FOUR_DOMAINS,
        "p = 0.1": variant(clients_per_round=1),
        "p = 0.5": variant(clients_per_round=5),
        "p = 1.0": variant(clients_per_round=10),
    },
)
TABLES = (
    Table(
        _UNIVARFL,
        "1",
        SEEDS,
    ),
    Table(
        _UNIVARFL,
        "2",
        _STL10 | SEEDS,
    ),
)
