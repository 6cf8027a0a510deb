"""Set-up of all tests; runs before any of them imports TensorFlow.

Grappler's optimisations stay on, although the tests would start faster without: what
is tested should be what runs.
"""

import os

from tff_reg import quiet

quiet.silence()

# Tests are small; on a machine with many cores, starting their threads costs more than
# they save. Code that sets thread counts itself is not affected.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(_name, str(min(4, os.cpu_count() or 1)))


def pytest_addoption(parser):
    parser.addoption(
        "--strict-golden",
        action="store_true",
        help="fail where a golden file has what the tests do not compare",
    )


def pytest_configure(config):
    # Of our own files everything is compared.
    if config.getoption("--strict-golden") or not os.environ.get("TFF_REG_GOLDEN"):
        config.addinivalue_line("filterwarnings", "error:not compared:UserWarning")
