"""Trains in a web service, which answers while it does.

    bin/launch --dev -m tff_reg.tasks.examples.web_service --runs_dir=DIR

    POST   /runs             starts a run; the body is JSON with settings by the names
                             of bin/run's flags: {"process": "fedalign", "seed": 1};
                             64 KiB at most
    GET    /runs             all runs
    GET    /runs/ID          a run: id, state, rounds, total_rounds, error
    GET    /runs/ID/metrics  a line of JSON a round as it is done, all from the first
                             on, then one with the state that it ended in
    DELETE /runs/ID          stops it after the round under way
    POST   /runs/ID          goes on with one that was stopped or failed, by a restart
                             of the service for instance

States are waiting, running, finished, stopped and failed. A run is in DIR/ID, as
bin/run would have left it. SIGTERM and Ctrl-C stop all runs, then the service. Who can
reach the port can start runs: put what asks for passwords before it.

  --runs_dir=DIR     directory for the runs [runs/service]
  --port=N           port; 0 for any [8080]
  --address=HOST     address to listen at [127.0.0.1]
  --runs_at_once=N   more wait [1]
"""

import asyncio
import json
import math
import pathlib
import signal
import sys
import uuid
from typing import Any

from absl import flags, logging
from tornado import httpserver, iostream, netutil, web

from tff_reg import experiment, files, quiet, runtime, scratch
from tff_reg.commands import command_line
from tff_reg.experiment.config import run_config as config_lib, runtime_settings
from tff_reg.experiment.rounds import directory, metrics, progress

_COMMAND = "tff_reg.tasks.examples.web_service"
_ACTIVE = ("waiting", "running")
# Maximum bytes of a request's body. All settings of a run take about 4 KB.
LONGEST_BODY = 2**16
# Time limit for a request's head, and then for its body.
REQUEST_SECONDS = 60.0


def is_asked_for(setting):
    """Whether a request may have a setting; the service itself sets all locations."""
    is_place = (
        setting.placeholder in ("DIR", "FILE")
        or setting.group == runtime_settings.WHERE
    )
    return not is_place and setting.name != "overwrite"


def read_request(body, path):
    """Returns the configuration that a request's body gives.

    Args:
      body: Bytes, JSON.
      path: The run's directory.

    Returns:
      An `experiment.RunConfig`.

    Raises:
      ValueError: If the body gives no valid run; the message is one sentence.
    """
    try:
        given = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError(
            'The body must be a JSON object of settings: {"process": "fedavg"}.'
        )
    askable = {each.name for each in config_lib.listed() if is_asked_for(each)}
    for name in given:
        if name not in askable:
            raise ValueError(f"{name} is no setting that a request can have.")
    return experiment.RunConfig.of({**given, "output_dir": str(path)})


class Run:
    """A run: its state, and the metrics of its rounds."""

    def __init__(self, config):
        """Reads the state and the metrics in the run's directory.

        Args:
          config: The `experiment.RunConfig` of the run.
        """
        self.config = config.resolved()
        self.path = path = pathlib.Path(self.config.output_dir)
        self.rows = []
        self.error = None
        self.task = None
        self.is_stopping = False
        self._changed = asyncio.Event()
        finished = directory.RunDirectory(path).is_finished(self.config.total_rounds)
        self.state = "finished" if finished else "stopped"
        if (path / "metrics.csv").exists():
            text = (path / "metrics.csv").read_text("utf-8")
            self.rows = metrics.MetricsTable.parse(text).rows()

    def describe(self):
        """Returns a summary of the run for JSON."""
        return {
            "id": self.path.name,
            "state": self.state,
            "rounds": len(self.rows),
            "total_rounds": self.config.total_rounds,
            "error": self.error,
        }

    def begin(self, training):
        """Starts a coroutine that trains and adds all rows, from the first on."""
        self.rows, self.state = [], "waiting"
        self.task = asyncio.create_task(training)

    def add(self, row):
        """Adds a round's row."""
        self.rows.append(row)
        self.change("running")

    def change(self, state, error=None):
        """Changes the state, and wakes all coroutines that wait for a change."""
        self.state, self.error = state, error
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self):
        """Yields every row as it comes, until the run ends."""
        count = 0
        while True:
            changed = self._changed
            while count < len(self.rows):
                yield self.rows[count]
                count += 1
            if self.state not in _ACTIVE:
                return
            await changed.wait()


class Runs:
    """All runs in a directory; made inside the event loop that trains them."""

    def __init__(self, root, runs_at_once=1):
        """Loads the runs in the directory, and logs files that give no run.

        Args:
          root: The directory, a `pathlib.Path`.
          runs_at_once: Number of runs at once; further runs wait.

        Raises:
          SettingError: If nothing can be written there.
        """
        self._root = root
        self._turn = asyncio.Semaphore(runs_at_once)
        self._runs = {}
        files.make_directory(root, "runs_dir")
        for path in sorted(root.glob("*.json")):
            try:
                config = read_request(path.read_bytes(), root / path.stem)
                self._runs[path.stem] = Run(config)
            except (OSError, ValueError) as error:
                logging.error("%s is not served: %s", path, error)

    def all(self):
        """Returns all runs."""
        return list(self._runs.values())

    def get(self, run_id):
        """Returns a run by its id; None if there is none."""
        return self._runs.get(run_id)

    async def new(self, body):
        """Starts a run, given the body of a request.

        Raises:
          ValueError: If the body gives no valid run.
        """
        run_id = uuid.uuid4().hex
        config = experiment.check(read_request(body, self._root / run_id))
        # From now on the run is known, whatever happens.
        files.write_text(self._root / f"{run_id}.json", body.decode("utf-8"))
        return await self.resume(Run(config))

    async def resume(self, run):
        """Starts the rest of a run, unless it is active or finished.

        Returns:
          The current `Run`; followers of the previous `Run` see its end.
        """
        if run.is_stopping:
            await self.stop(run)
            run = self._runs[run.path.name]
        if run.state not in (*_ACTIVE, "finished"):
            run = Run(run.config)
            run.begin(self._train(run))
            self._runs[run.path.name] = run
        return run

    async def stop(self, run):
        """Stops a run, if it is active, and waits until it has stopped."""
        if run.state in _ACTIVE:
            run.is_stopping = True
            run.task.cancel()
            await asyncio.wait([run.task])

    async def close(self):
        """Stops all runs."""
        await asyncio.gather(*map(self.stop, self.all()))

    async def _train(self, run):
        try:
            async with self._turn:
                run.change("running")
                await experiment.run_async(
                    run.config, progress=progress.Silence(), on_round=run.add
                )
        except asyncio.CancelledError:
            run.change("stopped")
        # One run's failure must not be the end of others.
        except Exception as error:  # pylint: disable=broad-except
            logging.exception("Run %s failed.", run.path.name)
            run.change("failed", str(error))
        else:
            run.change("finished")


class RequestError(web.HTTPError):
    """Raised when a request cannot be served; the answer says why."""

    def __init__(self, status, why):
        super().__init__(status)
        self.why = why


@web.stream_request_body
class _Handler(web.RequestHandler):
    """Answers in JSON, errors too; refuses long bodies before they are read."""

    def initialize(self, runs=None):
        self._runs: Any = runs

    def write_error(self, status_code, **kwargs):
        error = kwargs.get("exc_info", (None, None))[1]
        self.finish({"error": getattr(error, "why", self._reason)})

    def prepare(self):
        if self._runs is None:
            raise RequestError(404, f"There is nothing at {self.request.path}.")
        self._body = bytearray()
        try:
            length = int(self.request.headers.get("Content-Length", 0))
        except ValueError as error:
            raise RequestError(400, "Content-Length is not a length.") from error
        self._check_length(length)

    def data_received(self, chunk):
        # Keeps no more than that of a body of unknown length.
        if len(self._body) <= LONGEST_BODY:
            self._body += chunk

    def _check_length(self, length):
        if length > LONGEST_BODY:
            raise RequestError(413, f"The body may have {LONGEST_BODY} bytes at most.")

    def _run(self, run_id):
        run = self._runs.get(run_id)
        if run is None:
            raise RequestError(404, f"There is no run {run_id}.")
        return run


class _AllRuns(_Handler):
    def get(self):
        self.finish({"runs": [run.describe() for run in self._runs.all()]})

    async def post(self):
        self._check_length(len(self._body))
        try:
            run = await self._runs.new(bytes(self._body))
        except ValueError as error:
            raise RequestError(400, str(error)) from error
        self.set_status(201)
        self.set_header("Location", f"/runs/{run.path.name}")
        self.finish(run.describe())


class _OneRun(_Handler):
    def get(self, run_id):
        self.finish(self._run(run_id).describe())

    async def post(self, run_id):
        self.finish((await self._runs.resume(self._run(run_id))).describe())

    async def delete(self, run_id):
        run = self._run(run_id)
        await self._runs.stop(run)
        self.finish(run.describe())


class _Metrics(_Handler):
    async def get(self, run_id):
        run = self._run(run_id)
        self.set_header("Content-Type", "application/x-ndjson")
        try:
            async for row in run.follow():
                # JSON has no NaN.
                cells = {
                    name: None if value is None or not math.isfinite(value) else value
                    for name, value in row.items()
                }
                self.write(json.dumps(cells) + "\n")
                await self.flush()
            self.finish(json.dumps({"state": run.state, "error": run.error}) + "\n")
        except iostream.StreamClosedError:
            pass  # The client has gone; the run continues.


def build_server(runs):
    """Returns the service of the `Runs`, a `tornado.httpserver.HTTPServer`."""
    its = dict(runs=runs)
    application = web.Application(
        [
            (r"/runs", _AllRuns, its),
            (r"/runs/([0-9a-f]+)", _OneRun, its),
            (r"/runs/([0-9a-f]+)/metrics", _Metrics, its),
        ],
        default_handler_class=_Handler,
        log_function=lambda handler: None,
    )
    return httpserver.HTTPServer(
        application,
        idle_connection_timeout=REQUEST_SECONDS,
        body_timeout=REQUEST_SECONDS,
    )


async def serve(root, sockets, address, runs_at_once):
    """Serves at the sockets, bound to the address, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runs = Runs(root, runs_at_once)
    server = build_server(runs)
    server.add_sockets(sockets)
    port = sockets[0].getsockname()[1]
    print(f"Listening at http://{address}:{port}, runs are in {root}", flush=True)
    await stop.wait()
    print("Stopping after the rounds under way.", flush=True)
    server.stop()
    await runs.close()
    await server.close_all_connections()


def main():
    """Serves as the flags say."""
    command_line.answer_help(sys.argv[1:], __doc__ or "")
    scratch.use_own_folder()
    given = flags.FlagValues()
    flags.DEFINE_string("runs_dir", "runs/service", "Directory.", given)
    flags.DEFINE_integer("port", 8080, "Port.", 0, 65535, given)
    flags.DEFINE_string("address", "127.0.0.1", "Address.", given)
    flags.DEFINE_integer("runs_at_once", 1, "More wait.", 1, flag_values=given)
    command_line.parse(sys.argv[1:], given, command=_COMMAND)
    quiet.silence()
    logging.set_verbosity(logging.ERROR)
    try:
        # Before TensorFlow is imported, which takes seconds.
        sockets = netutil.bind_sockets(given.port, given.address)
        runtime.use("in_process")
        root = pathlib.Path(given.runs_dir)
        asyncio.run(serve(root, sockets, given.address, given.runs_at_once))
    except (OSError, ValueError) as error:
        command_line.fail(error, command=_COMMAND)


if __name__ == "__main__":
    main()
