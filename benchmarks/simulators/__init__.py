"""The same rounds in other simulators, for the subject `peers` of `bin/bench`.

`environments` makes the environments of the others. `serving` says how the programs are
spoken to, and `torch_models` has what those with PyTorch train.
"""
