"""The same rounds in other simulators, for the subject `peers` of `bin/bench`.

`environments` makes the environments of the other simulators. `serving` defines the
programs' questions and answers, and `torch_models` the networks of those with PyTorch.
"""
