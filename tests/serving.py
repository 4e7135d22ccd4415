"""A real gunicorn on a free port of the loopback: on the real weights, or as a test directs the tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.settings import Settings, process_environment

MODEL = "pypi:qwen2.5-coder-0.5b-instruct"


@dataclass
class Answer:
    status: int
    headers: Any
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Server:
    """A running `attention-service serve`."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def request(
        self, method: str, path: str, body: object = None, *, seconds: float = 120, **headers: str
    ) -> Answer:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: object, **headers: str) -> Answer:
        return self.request("POST", path, body, **headers)

    def raw(self, data: bytes, *, seconds: float = 30) -> bytes:
        """Bytes on the wire, and all that comes back until the server closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            received = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while chunk := connection.recv(65536):
                    received += chunk
            return received

    def wait_ready(self, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError):
                if self.get("/health/ready").status == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"not ready in {seconds} s:\n{self.log.read_text()[-3000:]}")

    def workers(self) -> list[int]:
        """Process ids of gunicorn's workers."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    folder: Path, command: Sequence[str], variables: Mapping[str, str], *, ready: bool = True
) -> Iterator[Server]:
    """A server started by a command, in a clean environment, ended by the signal an orchestrator sends."""
    port = free_port()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ATTENTION_") or name == "ATTENTION_CACHE"
    }
    environment |= {"HOST": "127.0.0.1", "PORT": str(port)}
    environment["ATTENTION_RESULT_CACHE_BYTES"] = "0"  # what asks twice wants the model's answer twice
    environment |= variables
    log = folder / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    server = Server(process, port, log)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def _variables(settings: Mapping[str, object]) -> dict[str, str]:
    return {f"ATTENTION_{name.upper()}": str(value) for name, value in settings.items()}


@contextlib.contextmanager
def serving(folder: Path, **settings: object) -> Iterator[Server]:
    """`attention-service serve` as a user starts it."""
    command = [sys.executable, "-m", "service.cli", "serve"]
    with running(folder, command, {"ATTENTION_MODEL": MODEL, **_variables(settings)}) as server:
        yield server


@contextlib.contextmanager
def serving_stub(folder: Path, *options: str, ready: bool = True, **settings: object) -> Iterator[Server]:
    """gunicorn with the service's configuration and `tests.e2e.stub`, which does as the files in `folder` say."""
    command = [sys.executable, "-m", "gunicorn", "-c", "python:service.gunicorn_conf", *options]
    variables = {"STUB_FOLDER": str(folder), **process_environment(Settings()), **_variables(settings)}
    with running(folder, [*command, "tests.e2e.stub:app()"], variables, ready=ready) as server:
        yield server
