"""Runs one of TFF's workers on this machine: `bin/worker --help` says how.

The thin end of `tff_reg.runtime.service`.
"""

import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

# pylint: disable=wrong-import-position
from tff_reg.experiment import interruption

if __name__ == "__main__":
    # First of all, so that Ctrl-C is answered while the rest is imported, too.
    _INTERRUPTION = interruption.Interruption()

from absl import app, flags

from tff_reg import quiet, runtime
from tff_reg.experiment import command_line
from tff_reg.runtime import addresses, service

_COMMAND = "bin/worker"
_FLAGS = flags.FLAGS
_HELP = """\
bin/worker --port=N
  Lets runs on other machines train clients here: starts TFF's own worker and keeps it
  until Ctrl-C. On the other machine, with one worker or several:

    bin/run --process=fedalign --runtime=remote --workers=node1:8000,node2:8000

  --port=N                where to listen, on all addresses of this machine

  Whoever reaches the port can run code here: nobody is asked who they are, and nothing
  is encrypted. Use it in a private network only, behind a firewall; ssh -L brings the
  port elsewhere. The environment variable TF_NUM_INTRAOP_THREADS sets TensorFlow's
  threads for one operation, TFF_REG_WORKER_LOG a file for what the worker says."""

flags.DEFINE_string("port", None, "Where to listen.")


def main(arguments):
    """Serves until the worker ends or a signal comes."""
    if len(arguments) > 1:
        command_line.fail(
            f"{arguments[1]} is not a flag; --help lists them.", command=_COMMAND
        )
    if _FLAGS.port is None:
        command_line.fail(
            "--port is missing; --help says what it is.", command=_COMMAND
        )
    quiet.silence()
    try:
        port = addresses.parse_port(_FLAGS.port)
        service.check_port(port)
    except ValueError as error:
        command_line.fail(f"--port={_FLAGS.port}: {error}", command=_COMMAND)
    worker = service.Service(port)
    _INTERRUPTION.before_exit(worker.stop)
    _INTERRUPTION.say(lambda: f"the worker on port {port} has ended")
    try:
        print(worker.start(), flush=True)
        worker.wait()
        threading.Event().wait()  # A signal has ended the worker, and now ends us.
    except runtime.WorkerError as error:
        command_line.fail(error, exit_code=1, command=_COMMAND)


if __name__ == "__main__":
    app.define_help_flags()
    main(
        command_line.parse_own(sys.argv, help_text=_HELP, command=_COMMAND)
    )
