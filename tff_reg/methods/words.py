"""The constants of the contract: names of models, exclusive roles, needs."""

from __future__ import annotations

# The models that a term may read, beside memories in the weights' shapes.
LOCAL = "local"
GLOBAL = "global"  # The received model.
EVALUATED = "evaluated"  # The received model in evaluation mode.
PREVIOUS = "previous"  # The client's own model at the end of its previous round.

# Roles that only one method of a combination can have.
EXAMPLES = "replace the batch by mixed examples"
LOGITS = "change the logits that the task loss sees"
GRADIENT = "define how the gradient is taken"
START = "define where a client begins"
DRIFT = "correct the drift of clients"
SERVER = "define how the server takes its step"
WEIGHTS = "define the clients' weights"
EVALUATION = "define which weights are evaluated"
FEATURES = "spread the features and vary the predictions"
CLASSIFIER = "define the classifier"
RATE = "let the learning rate fall within a round"
FIRST_STATE = "decide how a client's optimiser begins"
EXCLUSIVE = (
    EXAMPLES,
    LOGITS,
    GRADIENT,
    START,
    DRIFT,
    SERVER,
    WEIGHTS,
    EVALUATION,
    FEATURES,
    CLASSIFIER,
    RATE,
    FIRST_STATE,
)
# The roles that follow from overridden hooks.
BY_HOOK = {
    "change_batch": EXAMPLES,
    "change_logits": LOGITS,
    "gradient": GRADIENT,
    "start": START,
    "next_model": SERVER,
    "weigh": WEIGHTS,
    "evaluated": EVALUATION,
}

# Needs of a method that no hook shows.
ONE_LABEL = "examples with one label each"
UNIFORM_WEIGHTING = "the plain mean of the clients' models"
EXACT_UPLOADS = "sums of uploads without clipping and noise"

# The constants that a method's attributes may hold, by name.
ALLOWED = {
    "exclusive": {
        "DRIFT": DRIFT,
        "SERVER": SERVER,
        "FEATURES": FEATURES,
        "CLASSIFIER": CLASSIFIER,
        "RATE": RATE,
        "FIRST_STATE": FIRST_STATE,
    },
    "needs": {
        "ONE_LABEL": ONE_LABEL,
        "UNIFORM_WEIGHTING": UNIFORM_WEIGHTING,
        "EXACT_UPLOADS": EXACT_UPLOADS,
    },
}
