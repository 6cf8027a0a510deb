"""Set-up of all tests; runs before any of them imports TensorFlow.

Grappler's optimisations stay on, although the tests would start faster without: what
is tested should be what runs.
"""

import os
import tempfile

from tff_reg import quiet, scratch

quiet.silence()

# What tests write, and processes that they start, kill and do not wait for, is in one
# folder that goes with the tests. `--basetemp=DIR` keeps the tests' own files.
scratch.use_own_folder()
os.environ["TMPDIR"] = tempfile.gettempdir()
os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())

# Tests are small; on a machine with many cores, starting their threads costs more than
# they save. Code that sets thread counts itself is not affected.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(_name, str(min(4, os.cpu_count() or 1)))
