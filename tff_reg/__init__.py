"""Local-regularisation methods for federated learning as TensorFlow Federated processes.

Importing this package loads neither TensorFlow nor TensorFlow Federated; the
sub-packages that need them load them at first use (see `tff_reg.lazy`).
"""

__version__ = "0.1.0"
