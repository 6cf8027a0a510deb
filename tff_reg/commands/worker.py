"""Runs one of TFF's workers on this machine: `bin/worker --help` says how.

The thin end of `tff_reg.runtime.service`.
"""

import threading

from tff_reg import quiet, runtime
from tff_reg.experiment import command_line
from tff_reg.lazy import flags
from tff_reg.runtime import addresses, service

_COMMAND = "bin/worker"
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


@command_line.command(_HELP)
def main(argv, stop):
    """Serves until the worker ends or a signal comes."""
    given = flags.FlagValues()
    flags.DEFINE_string("port", None, "Where to listen.", given)
    command_line.parse(argv, given, command=_COMMAND)
    if given.port is None:
        command_line.fail(
            "--port is missing; --help says what it is.", command=_COMMAND
        )
    quiet.silence()
    try:
        port = addresses.parse_port(given.port)
        service.check_port(port)
    except ValueError as error:
        command_line.fail(f"--port={given.port}: {error}", command=_COMMAND)
    worker = service.Service(port)
    stop.before_exit(worker.stop)
    stop.say(lambda: f"the worker on port {port} has ended")
    try:
        print(worker.start(), flush=True)
        worker.wait()
        threading.Event().wait()  # A signal has ended the worker, and now ends us.
    except runtime.WorkerError as error:
        command_line.fail(error, exit_code=1, command=_COMMAND)
