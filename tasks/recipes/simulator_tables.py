"""The table of FL-Simulator's README.

Y. Sun, FL-Simulator, https://github.com/woodenchild95/FL-Simulator, with FedSpeed (ICLR
2023) and FedSMOO (ICML 2023) by its authors.
"""

from __future__ import annotations

from tff_reg.methods import papers
from tff_reg.tasks.recipes.variants import Paper, Table, Variant, variant

_SAM_RADIUS = 0.1
_ROWS = {
    "FedAvg": variant(process="fedavg"),
    "FedProx": variant(
        "The README gives 0.1 and 0.01 for the proximal term without saying where;"
        " here 0.1. The code clips only a part of the term; here the whole gradient is"
        " clipped.",
        process="fedprox",
        fedprox_strength=0.1,
    ),
    "FedAdam": variant(
        "The README gives the server's rates 0.1 and 0.05 without saying where; here"
        " 0.1. The code's second moment starts at 0; here at tau^2.",
        process="fedadam",
        server_optimizer="adam",
        server_learning_rate=0.1,
        server_beta1=0.9,
        server_beta2=0.99,
        server_epsilon=0.01,
    ),
    "SCAFFOLD": variant(
        "The code's control variates divide by the decayed learning rate; here by the"
        " first round's.",
        process="scaffold",
    ),
    "FedDyn": variant(
        "The README gives the decays 0.9995 and 1 without saying where; here 0.9995.",
        process="feddyn",
        feddyn_strength=0.1,
        feddyn_clipping="half",
        learning_rate_decay=0.9995,
    ),
    "FedCM": variant(process="fedcm", fedcm_share=0.1),
    "FedGamma": variant(
        "The code's control variates divide by the decayed learning rate; here by the"
        " first round's.",
        process="fedgamma",
        fedgamma_radius=0.01,
    ),
    "MoFedSAM": variant(
        "The README gives 0.05 and 0.1 for alpha without saying where; here 0.1.",
        process="mofedsam",
        mofedsam_share=0.1,
        mofedsam_radius=_SAM_RADIUS,
    ),
    "FedSpeed": variant(
        "An earlier README printed 87.72, 86.05, 85.25 and 82.05 for 100 clients.",
        process="fedspeed",
        fedspeed_strength=0.1,
        fedspeed_radius=_SAM_RADIUS,
        fedspeed_ascent="clean",
    ),
    "FedSMOO": variant(
        process="fedsmoo", fedsmoo_strength=0.1, fedsmoo_radius=_SAM_RADIUS
    ),
}
_SECONDS = variant(
    "Seconds depend on the machine: the README's are of a V100. The run is that of"
    " Dir-0.6.",
    measure="seconds per round",
)
SETTINGS: Variant = variant(
    "The README prints the best round's accuracy, of one run.",
    "The code refills a class whose examples have run out, so that some are dealt"
    " twice; here every example is dealt once.",
    "A client takes part with the probability of the README's share, as in the code.",
    measure="accuracy in % of the best round",
    process="fedavg",
    task="cifar10",
    # torchvision's network, with a stem for large images.
    model="resnet18_imagenet",
    norm="group",
    augmentation="half_crop_flip",
    pixel_mean=(0.491, 0.482, 0.447),
    pixel_std=(0.247, 0.243, 0.262),
    **{**papers.MAN, "total_rounds": 1000, "concentration": 0.6},
    averages_all_clients=False,
)
COLUMNS = {
    "IID": variant(partition="iid", concentration=None),
    "Dir-0.6": variant(),
    "Dir-0.3": variant(concentration=0.3),
    "Dir-0.1": variant(concentration=0.1),
    "Time / round": _SECONDS,
}
_PAPER = Paper(
    "fl_simulator",
    "FL-Simulator (README), Sun et al., 2023",
    SETTINGS,
    _ROWS,
    COLUMNS,
)
_UNKNOWN = variant(
    "The paper's text was not at hand: its numbers and its table's number are unknown"
    " here. The settings are those of FL-Simulator, by its authors.",
)
_FEDSMOO = Paper(
    "fedsmoo",
    "FedSMOO, Sun et al., ICML 2023",
    SETTINGS
    | _UNKNOWN
    | variant(
        "CIFAR-10 is in fl_simulator/table1.",
        task="cifar100",
        pixel_mean=(0.5071, 0.4867, 0.4408),
        pixel_std=(0.2675, 0.2565, 0.2761),
    ),
    _ROWS,
    COLUMNS,
)
_FEDINIT = Paper(
    "fedinit",
    "FedInit, Sun et al., NeurIPS 2023",
    SETTINGS | _UNKNOWN,
    {
        **_ROWS,
        "FedInit": variant(
            process="fedinit", fedinit_strength=0.1, fedinit_average="updates"
        ),
    },
    COLUMNS,
)
TABLES = (
    Table(_PAPER, "1"),
    Table(_PAPER, "1 (200 clients)", variant(num_clients=200, batch_size=25)),
    Table(_FEDSMOO, "1"),
    Table(_FEDINIT, "1"),
)
