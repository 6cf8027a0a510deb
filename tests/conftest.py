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
