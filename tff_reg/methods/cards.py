"""Cards of the methods for the documentation: role, idea, use, evidence.

The documentation's method pages and the README's list are generated from them.
"""

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


# In the order of the tables: role by role.
CARDS = {
    "fedavg": Card(
        LOSS,
        "Each client trains the global model on its own data with SGD; the server "
        "averages the models, weighted by the numbers of examples.",
        "The baseline of every comparison, and hard to beat where clients' data are "
        "alike.",
    ),
    "fedprox": Card(
        LOSS,
        "Adds the squared distance between local and global weights to the loss, so "
        "that no client moves far from the global model.",
        "Clients that do very different numbers of local steps.",
    ),
    "fedalign": Card(
        LOSS,
        "Runs the last block a second time at a fraction of its width, and penalises "
        "the difference between the two Lipschitz constants.",
        "Residual networks on clients that cannot afford a second forward pass.",
    ),
    "man": Card(
        LOSS,
        "Adds the mean square of every hidden layer's activations to the loss, which "
        "leads local training to flatter minima.",
        "An addition to another method at nearly no cost.",
    ),
    "mixup": Card(
        LOSS,
        "Trains on random convex combinations of pairs of examples and of their "
        "labels.",
        "Small local data sets, where clients overfit.",
    ),
    "stochdepth": Card(
        LOSS,
        "Skips residual branches at random in local training; deep branches more "
        "often.",
        "Deep residual networks.",
    ),
    "gradaug": Card(
        LOSS,
        "Trains narrower sub-networks on resized images to agree with the whole "
        "network.",
        "Networks with room for regularisation, where a step may cost more than twice "
        "as much.",
    ),
    "moon": Card(
        FEATURES,
        "A contrastive loss pulls a client's features towards the global model's and "
        "away from those of its own previous model.",
        "Long training in which clients take part repeatedly.",
    ),
    "univarfl": Card(
        FEATURES,
        "One term spreads the features over the unit sphere, another keeps the "
        "predicted probabilities varied over the batch, as they would be on IID data.",
        "Clients that lack classes, without the global model's help.",
        NUMPY,
    ),
    "feduv": Card(
        FEATURES,
        "One term spreads the features over space, another keeps the predicted "
        "probabilities varied over the batch.",
        "Clients that lack classes, without the global model's help.",
    ),
    "feddecorr": Card(
        FEATURES,
        "Penalises the correlation between the dimensions of the features, which "
        "collapse to a few where clients have few classes.",
        "Strongly skewed classes.",
    ),
    "fitnet": Card(
        FEATURES,
        "Penalises the squared distance between local and global features, block by "
        "block.",
        "A baseline of FedMLB.",
        BY_HAND,
    ),
    "kd": Card(
        DISTILLATION,
        "Adds the divergence between the global model's predictions and the local "
        "ones to the loss.",
        "A global model that predicts better than the client's data teach.",
        BY_HAND,
    ),
    "fedntd": Card(
        DISTILLATION,
        "Distils the global model's predictions for all classes but the true one, so "
        "that clients keep what they know of classes that they lack.",
        "Clients that forget the classes that they lack.",
        BY_HAND,
    ),
    "fedgkd": Card(
        DISTILLATION,
        "Distils the predictions of the average of the last global models.",
        "Global models that change much from round to round.",
        BY_HAND,
    ),
    "fedmlb": Card(
        DISTILLATION,
        "Sends the features of every local block through the rest of the frozen "
        "global model, and trains the local blocks on the loss of these hybrid paths "
        "as well.",
        "Many rounds of a network with several blocks, where a step may cost twice as "
        "much.",
    ),
    "fedlc": Card(
        CLASSES,
        "Lowers the logits of classes that are rare on the client before the softmax.",
        "Skewed classes.",
    ),
    "fedrs": Card(
        CLASSES,
        "Scales down the logits of classes that the client lacks, so that their "
        "weights are not pushed away.",
        "Clients that lack classes.",
    ),
    "freeze": Card(
        CLASSES,
        "Keeps the classifier at its random initial weights; only the features are "
        "learned.",
        "A baseline of UniVarFL.",
        BY_HAND,
    ),
    "fedetf": Card(
        CLASSES,
        "Replaces the classifier by a fixed simplex, whose class vectors are equally "
        "far apart, and adds the logarithm of the class counts to the logits.",
        "Classifiers that drift apart under skewed classes.",
    ),
    "fedsam": Card(
        GRADIENTS,
        "Takes the gradient after a step uphill of fixed length, which leads to flat "
        "minima.",
        "Local minima that are sharp; a step costs two gradients.",
    ),
    "fedasam": Card(
        GRADIENTS,
        "FedSAM with a perturbation in proportion to each weight's size.",
        "The same, with layers of very different scales.",
    ),
    "fedlesam": Card(
        GRADIENTS,
        "FedSAM whose perturbation is the direction of the last global update, so "
        "that a step needs one gradient.",
        "FedSAM's use at FedAvg's cost.",
    ),
    "fedsol": Card(
        GRADIENTS,
        "Takes the gradient of the loss at weights perturbed along the gradient of "
        "the distillation loss.",
        "Keeping the global model's knowledge without a distillation term in the loss.",
    ),
    "scaffold": Card(
        DRIFT,
        "Corrects every local gradient by the difference between the server's and the "
        "client's control variate, an estimate of the client's drift.",
        "Skewed classes, and clients that take part repeatedly.",
        NUMPY,
    ),
    "feddyn": Card(
        DRIFT,
        "Adds to the loss a proximal term with a linear part that accumulates the "
        "client's drift, so that local and global optima agree in the limit.",
        "Skewed classes, and clients that take part repeatedly.",
    ),
    "feddc": Card(
        DRIFT,
        "Learns each client's drift from the global weights, subtracts it in a "
        "proximal term, and adds SCAFFOLD's control variates.",
        "Skewed classes, and clients that take part repeatedly.",
        NUMPY,
    ),
    "fedspeed": Card(
        DRIFT,
        "FedDyn's correction with the gradient taken after a step uphill, as in "
        "FedSAM.",
        "Long local training under skewed classes; a step costs two gradients.",
        NUMPY,
    ),
    "fedgamma": Card(
        DRIFT,
        "SCAFFOLD's control variates with FedSAM's gradients.",
        "Skewed classes; a step costs two gradients.",
        BY_HAND,
    ),
    "fedcm": Card(
        DRIFT,
        "Mixes every local gradient with the last global update: momentum from the "
        "server, applied on the clients.",
        "Few clients out of many per round, as clients keep no state.",
    ),
    "mofedsam": Card(
        DRIFT,
        "FedCM with the gradient taken after a step uphill, as in FedSAM.",
        "FedCM's use; a step costs two gradients.",
    ),
    "fednova": Card(
        SERVER,
        "Divides each client's update by its number of local steps before averaging.",
        "Clients that do very different numbers of local steps.",
    ),
    "fedacg": Card(
        SERVER,
        "Adds the server's momentum to the weights that clients receive, and holds "
        "clients near that point by a proximal term.",
        "Skewed classes, as clients keep no state.",
    ),
    "fedavgm": Card(
        SERVER,
        "Applies the mean update with momentum.",
        "Skewed classes at FedAvg's cost.",
    ),
    "fedadam": Card(
        SERVER,
        "Treats the mean update as a gradient for Adam.",
        "Models with sparse or badly scaled updates.",
    ),
    "fedyogi": Card(
        SERVER,
        "Treats the mean update as a gradient for Yogi.",
        "The same as FedAdam, with a slower second moment.",
    ),
    "fedadagrad": Card(
        SERVER,
        "Treats the mean update as a gradient for Adagrad.",
        "Models with sparse updates.",
    ),
}


def by_role() -> dict[str, list[str]]:
    """Returns the methods' names by role, in the order of the cards."""
    found: dict[str, list[str]] = {}
    for name, card in CARDS.items():
        found.setdefault(card.role, []).append(name)
    return found
