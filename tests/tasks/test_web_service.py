"""The web service, on the loopback: it answers while it trains, stops and goes on."""

import asyncio
import contextlib
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from tornado import httpclient, testing

from tests import commands
from tests.experiment.finished import Wrapped, results
from tests.tasks import browsers
from tff_reg import experiment, runtime
from tff_reg.experiment.rounds import progress, runs
from tff_reg.tasks.examples import web_service

SECONDS = browsers.SECONDS
SMALL = dict(
    process="fedavg",
    model="cnn",
    total_rounds=4,
    num_clients=4,
    clients_per_round=2,
    local_epochs=1,
    seed=3,
)


@pytest.fixture(scope="module", autouse=True)
def in_process():
    with runtime.running("in_process"):
        yield


def nested(depth):
    """A list in lists."""
    found = []
    for _ in range(depth):
        found = [found]
    return found


class Held(Wrapped):
    """A process whose rounds wait until they may go on, from a given one on."""

    def __init__(self, process, first):
        super().__init__(process, self._hold)
        self._first = first
        self.in_round, self.go_on = threading.Event(), threading.Event()

    def _hold(self, round_num):
        if round_num >= self._first:
            self.in_round.set()
            assert self.go_on.wait(SECONDS)


@pytest.fixture(scope="module")
def prepared():
    """What is made of `SMALL`: tests share it."""
    config = experiment.RunConfig(**SMALL).resolved()
    return experiment.prepare(config, progress=progress.Silence())


@pytest.fixture
def preparing(prepared, monkeypatch):
    """Sets the process that every run gets, built once."""

    def set_process(process):
        def prepare(checked, progress, on_round, **others):
            own = dict(process=process, output_dir=checked.directory)
            own.update(seed=checked.config.seed, on_round=on_round)
            return dataclasses.replace(prepared, **own)

        monkeypatch.setattr(runs, "prepare_checked", prepare)

    return set_process


@pytest.fixture
def held(prepared, preparing):
    process = Held(prepared.process, first=3)
    preparing(process)
    return process


@pytest.fixture(scope="module")
def unbroken(prepared, tmp_path_factory):
    """The directory of the same run, which nothing interrupted."""
    path = tmp_path_factory.mktemp("unbroken")
    dataclasses.replace(prepared, output_dir=path).run()
    return path


def test_a_run_gives_a_line_a_round_and_the_files_of_any_run(unbroken, tmp_path):
    async def main():
        async with browsers.serving(tmp_path) as browser:
            run_id = await browser.start(SMALL)
            *rows, last = await browser.follow(run_id)
            assert last == {"state": "finished", "error": None}
            assert [row["round_num"] for row in rows] == [1, 2, 3, 4]
            assert all(0 < row["training/loss"] < 5 for row in rows)
            assert rows[-1]["evaluation/accuracy"] > 0.15
            expected = dict(
                id=run_id, state="finished", rounds=4, total_rounds=4, error=None
            )
            assert await browser.ask("GET", f"/runs/{run_id}") == (200, expected)
            assert await browser.ask("GET", "/runs") == (200, {"runs": [expected]})
            # There is nothing left to do, and nothing to stop.
            assert await browser.ask("POST", f"/runs/{run_id}") == (200, expected)
            assert await browser.ask("DELETE", f"/runs/{run_id}") == (200, expected)
            assert await browser.follow(run_id) == [*rows, last]
            return run_id

    run_id = asyncio.run(main())
    assert results(tmp_path / run_id) == results(unbroken)

    async def after_a_restart():
        async with browsers.serving(tmp_path) as browser:
            return await browser.follow(run_id)

    lines = asyncio.run(after_a_restart())
    assert [line.get("round_num") for line in lines] == [1, 2, 3, 4, None]
    assert lines[-1]["state"] == "finished"


def test_it_answers_during_a_round_stops_after_it_and_goes_on_after_a_restart(
    prepared, held, preparing, unbroken, tmp_path
):
    async def main():
        loop = asyncio.get_running_loop()
        async with browsers.serving(tmp_path) as browser:
            run_id = await browser.start(SMALL)
            two_rounds = asyncio.Event()

            def on_line(line):
                if line.get("round_num") == 2:
                    two_rounds.set()

            following = asyncio.create_task(browser.follow(run_id, on_line))
            # The lines come while the third round has not ended, and cannot.
            await two_rounds.wait()
            await loop.run_in_executor(None, held.in_round.wait, SECONDS)
            code, run = await browser.ask("GET", f"/runs/{run_id}")
            assert (code, run["state"], run["rounds"]) == (200, "running", 2)
            stopping = asyncio.create_task(browser.ask("DELETE", f"/runs/{run_id}"))
            second = await browser.start({**SMALL, "seed": 4})
            _, run = await browser.ask("GET", f"/runs/{second}")
            assert run["state"] == "waiting"
            code, run = await browser.ask("DELETE", f"/runs/{second}")
            assert (code, run["state"], run["rounds"]) == (200, "stopped", 0)
            assert not stopping.done() and not following.done()
            held.go_on.set()
            code, run = await stopping
            assert (code, run["state"]) == (200, "stopped")
            lines = await following
            assert lines[-1] == {"state": "stopped", "error": None}
            return run_id

    run_id = asyncio.run(main())
    assert not (tmp_path / run_id / "summary.json").exists()
    preparing(prepared.process)

    async def after_a_restart():
        async with browsers.serving(tmp_path) as browser:
            _, run = await browser.ask("GET", f"/runs/{run_id}")
            assert (run["state"], run["rounds"]) == ("stopped", 3)
            code, run = await browser.ask("POST", f"/runs/{run_id}")
            assert (code, run["id"], run["state"]) == (200, run_id, "waiting")
            *rows, last = await browser.follow(run_id)
            assert [row["round_num"] for row in rows] == [1, 2, 3, 4]
            assert last == {"state": "finished", "error": None}

    asyncio.run(after_a_restart())
    assert results(tmp_path / run_id) == results(unbroken)


def test_a_failed_run_says_why_and_can_go_on(prepared, preparing, unbroken, tmp_path):
    def fail(round_num):
        if round_num == 2:
            raise RuntimeError("no memory")

    preparing(Wrapped(prepared.process, fail))

    async def main():
        async with browsers.serving(tmp_path) as browser:
            run_id = await browser.start(SMALL)
            lines = await browser.follow(run_id)
            assert lines[-1] == {
                "state": "failed",
                "error": "Round 2 failed: RuntimeError: no memory",
            }
            assert len(lines) == 2
            await browser.ask("POST", f"/runs/{run_id}")
            lines = await browser.follow(run_id)
            assert lines[-1]["state"] == "finished" and len(lines) == 5
            return run_id

    run_id = asyncio.run(main())
    assert results(tmp_path / run_id) == results(unbroken)


def test_a_run_goes_on_when_who_follows_it_leaves(held, unbroken, tmp_path):
    async def main():
        async with browsers.serving(tmp_path) as browser:
            run_id = await browser.start(SMALL)
            first = asyncio.Event()
            leaving = asyncio.create_task(
                browser.follow(run_id, lambda line: first.set())
            )
            await first.wait()
            # Its connection goes with the client.
            browser._client.close()
            leaving.cancel()
            held.go_on.set()
            other = browsers.Browser(browser.port)
            lines = await other.follow(run_id)
            assert lines[-1]["state"] == "finished"
            return run_id

    run_id = asyncio.run(main())
    assert results(tmp_path / run_id) == results(unbroken)


def test_a_request_may_name_a_recipe():
    body = {"recipe": "fedalign/table2/mixup-alpha0.1", "seed": 3, "batch_size": 32}
    asked = web_service.read_request(json.dumps(body).encode(), "here")
    assert asked.given() == {**body, "output_dir": "here"}
    found = asked.resolved()
    assert (found.process, found.seed, found.batch_size) == ("mixup", 3, 32)
    assert found.concentration == 0.1 and found.output_dir == "here"


@pytest.mark.parametrize(
    "body, error",
    [
        (b"process=fedavg", "The body must be a JSON object of settings: "),
        (["fedavg"], "The body must be a JSON object of settings: "),
        (b'{"process": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", "The body must be a"),
        (
            '{"process": "fedavg"}'.encode("utf-16"),
            "The body must be a JSON object of ",
        ),
        ({"process": float("nan")}, "process=nan: give one text"),
        ({"process": ["fedavg"]}, "process=fedavg: give one text"),
        ({"process": "a+" * 30_000}, "process=a+a+a"),
        ({**SMALL, "seed": nested(500)}, "seed=[[[[[[[...]]]]]]]: it must be a whole "),
        ({**SMALL, "client_learning_rate": 10**400}, "client_learning_rate=1000"),
        ({"process": "fedalgin"}, "process=fedalgin: Unknown process 'fedalgin'. Did"),
        ({**SMALL, "round": 3}, "round is no setting that a request can have."),
        ({**SMALL, "output_dir": "/"}, "output_dir is no setting that a request can"),
        ({**SMALL, "data_dir": "/etc"}, "data_dir is no setting that a request can "),
        ({**SMALL, "devices": "CPU:0"}, "devices is no setting that a request can "),
        (
            {**SMALL, "total_rounds": "3"},
            "total_rounds=3: it must be a whole number",
        ),
        ({**SMALL, "total_rounds": True}, "total_rounds=true: it must be a whole"),
        ({**SMALL, "client_learning_rate": float("nan")}, "client_learning_rate=nan: "),
        ({**SMALL, "task": "tiny_imagenet"}, "tiny_imagenet"),
    ],
)
def test_a_body_that_makes_no_run_is_refused_in_a_sentence(body, error, tmp_path):
    async def main():
        async with browsers.serving(tmp_path) as browser:
            answer = await browser.ask("POST", "/runs", body)
            assert await browser.ask("GET", "/runs") == (200, {"runs": []})
            return answer

    code, answer = asyncio.run(main())
    assert code == 400
    assert answer["error"].startswith(error) or error == "tiny_imagenet"
    assert error in answer["error"] and "\n" not in answer["error"]
    assert not list(tmp_path.iterdir())


def test_a_long_body_is_refused_before_it_is_read(tmp_path):
    longest = b" " * web_service.LONGEST_BODY
    refused = (413, {"error": "The body may have 65536 bytes at most."})
    # Says that 50 MB come, and sends none.
    request = b"POST /runs HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n"

    async def send(write):
        for _ in range(20):
            await write(b" " * 2**12)

    async def main():
        async with browsers.serving(tmp_path) as browser:
            code, answer = await browser.ask("POST", "/runs", longest)
            assert code == 400 and "JSON object" in answer["error"]
            assert await browser.ask("POST", "/runs", longest + b" ") == refused
            # One that does not say how long it is.
            chunked = dict(body_producer=send)
            assert await browser.ask("POST", "/runs", **chunked) == refused
            reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), SECONDS)
            assert answer.startswith(b"HTTP/1.1 413 ")
            writer.write(b" ")
            writer.close()
            code, _ = await browser.ask("POST", "/runs", {"process": "fedalgin"})
            assert code == 400

    asyncio.run(main())
    assert not list(tmp_path.iterdir())


def test_what_is_no_request_of_a_run_is_said_and_keeps_nobody_from_starting(
    unbroken, tmp_path, caplog
):
    for name, text in {"12ab": "{", "34": '{"name": "x"}', "56": "{}"}.items():
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "78.json").mkdir()
    # What a run left is damaged.
    (tmp_path / "9a.json").write_text(json.dumps(SMALL))
    (tmp_path / "9a").mkdir()
    (tmp_path / "9a" / "metrics.csv").write_text("round_num\nx")
    (tmp_path / "bc.json").write_text(json.dumps(SMALL))
    shutil.copytree(unbroken, tmp_path / "bc")

    async def main():
        async with browsers.serving(tmp_path) as browser:
            _, answer = await browser.ask("GET", "/runs")
            return [(run["id"], run["state"]) for run in answer["runs"]]

    assert asyncio.run(main()) == [("bc", "finished")]
    said = [record.getMessage() for record in caplog.records]
    names = ["12ab", "34", "56", "78", "9a"]
    assert len(said) == 5 and not any("\n" in line for line in said)
    for name, line in zip(names, said):
        assert line.startswith(f"{tmp_path / name}.json is not served: ")


def test_a_run_that_is_being_stopped_goes_on_when_it_is_resumed(
    held, unbroken, tmp_path
):
    async def main():
        loop = asyncio.get_running_loop()
        async with browsers.serving(tmp_path) as browser:
            run_id = await browser.start(SMALL)
            path = f"/runs/{run_id}"
            await loop.run_in_executor(None, held.in_round.wait, SECONDS)
            asked = [("DELETE", path), ("POST", path), ("DELETE", "/runs/0")]
            asked += [("POST", path), ("GET", path)]
            *answers, last = [asyncio.create_task(browser.ask(*a)) for a in asked]
            assert (await last)[1]["state"] == "running"
            held.go_on.set()
            (_, stopped), first, _, second = await asyncio.gather(*answers)
            assert stopped["state"] == "stopped"
            for code, run in (first, second):
                assert (code, run["state"]) in [(200, "waiting"), (200, "running")]
            lines = await browser.follow(run_id)
            assert lines[-1]["state"] == "finished" and len(lines) == 5
            return run_id

    run_id = asyncio.run(main())
    assert results(tmp_path / run_id) == results(unbroken)


@pytest.mark.parametrize(
    "sent",
    ["POST /runs HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{", "POST /ru"],
)
def test_who_stops_in_the_middle_of_a_request_is_let_go(sent, tmp_path, monkeypatch):
    monkeypatch.setattr(web_service, "REQUEST_SECONDS", 0.3)

    async def main():
        async with browsers.serving(tmp_path) as browser:
            reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
            writer.write(sent.encode())
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""
            writer.close()

    asyncio.run(main())


def test_what_is_not_there_is_a_404_in_json(tmp_path):
    async def main():
        async with browsers.serving(tmp_path) as browser:
            for method in ("GET", "POST", "DELETE"):
                code, answer = await browser.ask(method, "/runs/0123")
                assert (code, answer) == (404, {"error": "There is no run 0123."})
            code, answer = await browser.ask("GET", "/runs/0123/metrics")
            assert (code, answer) == (404, {"error": "There is no run 0123."})
            code, answer = await browser.ask("GET", "/else")
            assert (code, answer) == (404, {"error": "There is nothing at /else."})
            code, answer = await browser.ask("PUT", "/runs", {})
            assert (code, answer) == (405, {"error": "Method Not Allowed"})

    asyncio.run(main())


def start_service(*flags):
    return subprocess.Popen(
        [sys.executable, "-m", "tff_reg.tasks.examples.web_service", *flags],
        cwd=commands.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_sigterm_stops_the_service_and_its_run_resumably(tmp_path):
    service = start_service("--port=0", f"--runs_dir={tmp_path}")
    line = service.stdout.readline()
    assert line.startswith("Listening at http://127.0.0.1:"), service.stderr.read()
    port = line.split(",")[0].rpartition(":")[2]

    async def main():
        browser = browsers.Browser(port)
        run_id = await browser.start({**SMALL, "total_rounds": 100_000})
        first = asyncio.Event()
        following = asyncio.create_task(
            browser.follow(run_id, lambda line: first.set())
        )
        await first.wait()
        service.send_signal(signal.SIGTERM)
        with contextlib.suppress(httpclient.HTTPError, OSError):
            await following
        return run_id

    run_id = asyncio.run(main())
    output, errors = service.communicate(timeout=SECONDS)
    assert (service.returncode, errors) == (0, "")
    assert output == "Stopping after the rounds under way.\n"
    run = experiment.RunDirectory(tmp_path / run_id)
    (*_, last) = run.checkpoints.all()
    last.verify()
    assert last.round_num >= 1 and not run.is_finished(100_000)
    # Nobody holds it.
    run.begin(run.config)
    run.close()


def test_a_port_in_use_is_said_in_a_line(tmp_path):
    socket, port = testing.bind_unused_port()
    with socket:
        service = start_service(f"--port={port}", f"--runs_dir={tmp_path}")
        _, errors = service.communicate(timeout=SECONDS)
    assert service.returncode == 2
    assert errors.startswith("tff_reg.tasks.examples.web_service: ")
    assert "in use" in errors and errors.count("\n") == 1
