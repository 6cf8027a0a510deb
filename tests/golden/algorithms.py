"""The algorithms of the later J files by their names: methods, memories, steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow as tf

from tff_reg import methods


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """What a file's algorithm is here.

    Attributes:
      make: The method of a configuration; None if it is FedAvg.
      by_examples: Whether clients weigh by their examples.
      memories: By the file's key, whose memory it is and the method's name of it:
        'server' or 'clients', at the end of the round, or in the form of
        'server_sent' at its start.
      rate: The factor of the learning rate in step k of K.
      decay: The weight decay of the optimiser that the file reports.
      sees_all: Whether the file's gradients have what is added after the clipping.
    """

    make: Callable[[Any], Optional[methods.Method]]
    by_examples: bool = False
    memories: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    rate: Callable[[int, int], float] = lambda k, steps: 1.0
    decay: Callable[[Any], float] = lambda config: config["weight_decay"]
    sees_all: bool = False


@dataclasses.dataclass(frozen=True)
class ByBatches(methods.Method):
    """Clients weigh by their batches, as in the code of ASD's authors."""

    name = "by_batches"

    def finish(self, local):
        steps = tf.cast(local.num_steps, local.start[0].dtype)
        return methods.Finished(share={"steps": steps})

    def weigh(self, own, total):
        return own["steps"]


def epoch_decay(config):
    """The factor of the rate per local epoch."""
    if config.get("lr_also_decays_per_local_epoch"):
        return config["lr_decay_per_round"]
    return 1.0


def _lesam(config):
    direction = "server" if config["update_cut_into_shapes"] else "published"
    return methods.FedLESAM(radius=config["rho"], direction=direction)


def _sol(config):
    part = {(1, 1): "all", (1, 0): "head", (0, 1): "body"}
    return methods.FedSOL(
        radius=config["rho"],
        perturbation=config["perturbation"],
        temperature=float(config["temperature"]),
        part=part[config["perturb_head"], config["perturb_body"]],
    )


def asd(config):
    """Also of the M file."""
    return methods.ASD(
        strength=config["lamda"],
        temperature=config["temperature"],
        label_exponent=config["beta_labels"],
        entropy_factor=config["beta_entropy"],
        entropy_temperature=config.get("entropy_temperature", 1.0),
        uniform=config["uniform"],
        not_true=config["not_true"],
    )


def _rcl(config):
    hidden = len(config["mlp"]) - 2
    numbers = {"hidden": range(1, hidden + 1), "logits": [hidden + 1]}
    return methods.FedRCL(
        contrast=config["scl_weight"],
        penalty=config["penalty_weight"],
        temperature=config["temperature"],
        negatives=config["hardest_negatives"],
        threshold=config["threshold"],
        levels=tuple(n for level in config["levels"] for n in numbers[level]),
        before_relu=config["before_relu"],
        epoch_decay=epoch_decay(config),
    )


def _gloss(rule):
    return lambda config: methods.FedGloSS(
        server_radius=config["rho"],
        radius=config["rho_l"],
        beta=config["beta"],
        rule=rule,
        warmup_rounds=max(1, config["T_s"]),
        first_radius=config["rho0"],
    )


def _wmsam(config):
    shaped = config.get("update_cut_into_shapes")
    return methods.FedWMSAM(
        share=config["alpha"],
        radius=config["rho"],
        decay=config["lr_decay_per_round"],
        direction={None: "paper", True: "shaped", False: "published"}[shaped],
    )


def _nar(config):
    own = methods.FedNAR(strength=config["weight_decay"])
    return own if config["co_clipping"] else None


_FEDCM = {"delta_sent": ("server_sent", "direction")}
_GLOSS = dict(
    by_examples=True,
    sees_all=True,
    memories={
        "pseudo_gradient": ("server", "update"),
        "sigma": ("server", "q"),
        "client_sigma": ("clients", "q"),
    },
)
_MOSWA = dict(
    memories={
        "c": ("server", "c"),
        "c_sent": ("server_sent", "c"),
        "ci": ("clients", "c"),
    }
)
_WMSAM = Algorithm(
    _wmsam,
    memories={
        "alpha": ("server", "alpha"),
        "alpha_sent": ("server_sent", "alpha"),
        "momentum": ("server", "direction"),
        "momentum_sent": ("server_sent", "direction"),
        "c_params_list": ("server", "c"),
        "c_params_list_sent": ("server_sent", "c"),
        "c_i_params_list": ("clients", "c"),
        "c_i_params_list_sent": ("clients_sent", "c"),
    },
)

KNOWN = {
    "FedCM": Algorithm(lambda own: methods.FedCM(share=own["alpha"]), memories=_FEDCM),
    "MoFedSAM": Algorithm(
        lambda own: methods.MoFedSAM(share=own["alpha"], radius=own["rho"]),
        memories=_FEDCM,
    ),
    "FedLESAM": Algorithm(
        _lesam, memories={"global_update_sent": ("server_sent", "update")}
    ),
    "FedLESAM (formula only)": Algorithm(
        lambda own: methods.FedLESAM(radius=own["rho"])
    ),
    "FedACG": Algorithm(
        lambda own: methods.FedACG(
            strength=own["prox_weight"],
            momentum=own["server_momentum"],
            epoch_decay=epoch_decay(own),
        ),
        memories={"momentum": ("server", "momentum")},
    ),
    "FedSOL": Algorithm(_sol, by_examples=True),
    "FedNova": Algorithm(
        lambda own: methods.FedNova(proximal=own["mu"], server_momentum=own["gmf"]),
        by_examples=True,
    ),
    "ASD": Algorithm(asd, by_examples=True),
    "FedRCL": Algorithm(_rcl),
    "FedVLS": Algorithm(
        lambda own: methods.FedVLS(
            distillation=own["lamda"], suppression=own["suppression"]
        ),
        by_examples=True,
    ),
    "FedSMOO": Algorithm(
        lambda own: methods.FedSMOO(radius=own["rho"], strength=own["lamb"]),
        memories={
            "global_dynamic_dual": ("server", "s"),
            "global_dynamic_dual_sent": ("server_sent", "s"),
            "mu_params_list": ("clients", "m"),
            "h_params_list": ("clients", "h"),
        },
        decay=lambda own: own["weight_decay"] + own["lamb"],
    ),
    "FedInit": Algorithm(lambda own: methods.FedInit(strength=own["relaxation"])),
    "FedInit (formula only)": Algorithm(
        lambda own: methods.FedInit(strength=own["relaxation"], average="models")
    ),
    "FedNAR": Algorithm(
        _nar,
        by_examples=True,
        decay=lambda own: 0.0 if own["co_clipping"] else own["weight_decay"],
    ),
    "FedExP": Algorithm(
        lambda own: methods.FedExP(
            epsilon=own["epsilon"], decay=own["lr_decay_per_round"]
        ),
        by_examples=True,
    ),
    "FedGloSS": Algorithm(_gloss("published"), **_GLOSS),
    "FedGloSS (formula only)": Algorithm(_gloss("paper"), **_GLOSS),
    "FedSWA": Algorithm(
        lambda own: methods.FedSWA(), rate=lambda k, steps: 2 * (1 - k / steps)
    ),
    "FedMoSWA": Algorithm(
        lambda own: methods.FedMoSWA(share=own["momentum_share"]),
        rate=lambda k, steps: 1 - k / steps,
        **_MOSWA,
    ),
    "FedMoSWA as the flag runs it": Algorithm(
        lambda own: methods.FedMoSWA(share=own["momentum_share"], rule="published"),
        sees_all=True,
        **_MOSWA,
    ),
    "FedWMSAM": _WMSAM,
    "FedWMSAM (formula only)": _WMSAM,
}


def parts(config):
    """The methods of a configuration: the algorithm's and those that it adds."""
    own = KNOWN[config["algorithm"]].make(config)
    result = [] if own is None else [own]
    if config.get("weighted_by") == "batches":
        result.append(ByBatches())
    if config.get("mu_mean"):
        result.insert(0, methods.MAN(strength=config["mu_mean"]))
    if config["algorithm"] in ("FedNAR", "FedExP") and config.get("mu"):
        result.insert(0, methods.FedProx(strength=config["mu"]))
    if config["algorithm"] == "FedSMOO" and config.get("relaxation"):
        own = methods.FedInit(strength=config["relaxation"], average="models")
        result.insert(0, own)
    return result
