"""A method's card for the documentation: role, idea, use, evidence."""

import dataclasses

# How the numbers of a method were checked; pages/methods.md has the details.
AUTHORS = (
    "numbers recorded from published PyTorch code: its authors' own, or that of a paper"
    " that compares with it"
)
NUMPY = "rounds or equations computed in NumPy from the formulae, without this package"
BY_HAND = "values computed by hand, and identities with other methods"
KINDS = (AUTHORS, NUMPY, BY_HAND)

LOSS = "Loss terms and local training"
FEATURES = "Features"
DISTILLATION = "Distillation from the global model"
CLASSES = "Class counts and classifiers"
GRADIENTS = "Gradient rules (sharpness-aware)"
DRIFT = "Drift corrections"
SERVER = "Server steps"
PERSONAL = "Clients' own weights"
ROLES = (LOSS, FEATURES, DISTILLATION, CLASSES, GRADIENTS, DRIFT, SERVER, PERSONAL)


@dataclasses.dataclass(frozen=True)
class Card:
    """A method's card.

    Attributes:
      role: One of the roles above.
      idea: The method's change to FedAvg's round.
      use: The case for which to choose the method.
      checked: One of the three kinds of evidence above.
    """

    role: str
    idea: str
    use: str
    checked: str = AUTHORS
