"""Who asks the web service in tests."""

import contextlib
import json

from tornado import httpclient, testing

from tff_reg.tasks.examples import web_service

SECONDS = 60


class Browser:
    """Asks the service."""

    def __init__(self, port):
        self.port = port
        self._address = f"http://127.0.0.1:{port}"
        self._client = httpclient.AsyncHTTPClient(force_instance=True)

    async def ask(self, method, path, body=None, **options):
        """The answer's status and JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body)
        answer = await self._client.fetch(
            self._address + path,
            method=method,
            body=body,
            allow_nonstandard_methods=True,
            raise_error=False,
            request_timeout=SECONDS,
            **options,
        )
        return answer.code, json.loads(answer.body)

    async def start(self, settings):
        """The id of a new run."""
        code, run = await self.ask("POST", "/runs", settings)
        assert code == 201, run
        return run["id"]

    async def follow(self, run_id, on_line=lambda line: None):
        """All lines of a run's metrics."""
        lines, rest = [], b""

        def take(chunk):
            nonlocal rest
            *whole, rest = (rest + chunk).split(b"\n")
            for text in whole:
                lines.append(json.loads(text))
                on_line(lines[-1])

        await self._client.fetch(
            f"{self._address}/runs/{run_id}/metrics",
            streaming_callback=take,
            request_timeout=SECONDS,
        )
        assert not rest
        return lines


@contextlib.asynccontextmanager
async def serving(root, runs_at_once=1):
    """A service on a port of its own; yields one who asks it."""
    runs = web_service.Runs(root, runs_at_once)
    server = web_service.build_server(runs)
    socket, port = testing.bind_unused_port()
    server.add_sockets([socket])
    try:
        yield Browser(port)
    finally:
        server.stop()
        await runs.close()
        await server.close_all_connections()
