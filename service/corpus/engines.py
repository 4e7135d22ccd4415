"""Where a run's workers run: in this process, or in the processes of Ray Data's actors.

An engine knows neither what a shard is nor what becomes of it: a worker is a function that `make` builds, once for
each process, and it is called with one shard after another. Ray is imported in here only, and only when it is asked
for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

S = TypeVar("S")
R = TypeVar("R")
Make = Callable[[], Callable[[S], R]]  # builds a worker

TRIES = 3  # of a shard whose worker's process dies
CONNECT_SECONDS = 10.0
STORE_BYTES = 128 << 20  # of shared memory, for shards and results; a container has often little of it

# Read by Ray when it is imported, and by the processes that it starts; what the user has set stands
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Two channels to the terminal that no logging level closes: errors of the C++ half, also where nothing is wrong,
    # and news of workers, which the driver prints to stdout
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default: without it a FutureWarning
}


class EngineError(Exception):
    """The run cannot go on; the message is a sentence for the user."""


class _WorkerDiedError(Exception):
    """A shard killed its process as often as it was tried."""


def in_process(make: Make[S, R], shards: Iterable[S]) -> Generator[R, None, None]:
    """Each shard's result, in turn, from one worker in this process.

    Raises EngineError with what a worker, or building it, raised.
    """
    worker = None
    for shard in shards:
        try:
            worker = worker or make()
            result = worker(shard)
        except Exception as error:
            raise EngineError(_sentence(error)) from error
        yield result


def on_ray(
    make: Make[S, R],
    shards: Sequence[S],
    *,
    actors: int | None,
    threads: int,
    environment: Mapping[str, str],
    gpus: int = 0,
    memory_bytes: int = 0,
    address: str | None = None,
) -> Generator[R, None, None]:
    """Each shard's result as soon as it is there, in no order, from workers in `actors` processes of `threads` CPUs.

    None: as many as each machine has CPUs, `gpus` and `memory_bytes` for. `environment` is set before Python starts in
    these processes. Without an `address` Ray is started on this machine for this process alone: it listens on the
    loopback only, and ends with the iterator, or with this process, however that ends. An `address`, host:port or auto,
    joins the cluster that runs there; this machine must be one of its nodes. A shard whose process dies is done again.

    Raises EngineError with what a worker, or building it, raised; where a shard's process died three times; where Ray
    is not installed or not reached, or, where `actors` is None, no machine has room for one.
    """
    if not shards:
        return
    ray = _import_ray()
    logs = ""
    try:
        with contextlib.ExitStack() as ours:
            logs = _connect(ray, address, actors and actors * threads, environment)
            if address is None:
                ours.enter_context(_end_with_us())
            needs = {"CPU": threads, "GPU": gpus, "memory": 0 if actors else memory_bytes}
            most = sum(_room(node["Resources"], needs) for node in ray.nodes() if node["Alive"])
            if not (most or actors):
                what = (
                    f"{threads} CPUs"
                    + " and a GPU" * gpus
                    + f" and {memory_bytes / 2**30:.1f} GiB" * bool(memory_bytes)
                )
                raise EngineError(f"No machine of the Ray cluster has {what} for a worker.")
            results = _results(ray, make, shards, min(actors or most, len(shards)), needs)
            yield from ours.enter_context(contextlib.closing(results))
    except EngineError:
        raise
    except _WorkerDiedError as error:
        why = f"The process of a shard's worker died {TRIES} times; want of memory is the usual cause."
        raise EngineError(f"{why} Ray's logs are in {logs}.") from error
    except ray.exceptions.RayError as error:
        what = "Ray failed"
        if getattr(error, "actor_init_failed", False):
            what = "A worker's process does not start (is the service installed on every node?)"
        raise EngineError(f"{what}: {_sentence(error)} Ray's logs are in {logs}.") from error
    except Exception as error:
        raise EngineError(_sentence(error)) from error
    finally:
        ray.shutdown()


def _room(resources: Mapping[str, float], needs: Mapping[str, int]) -> int:
    """How many workers a machine has room for."""
    return min(int(resources.get(name, 0)) // much for name, much in needs.items() if much)


def _import_ray() -> Any:
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with _hushed():
            import ray
            import ray.data
    except ImportError as error:
        how = "`pip install '.[corpus]'` installs it, `--engine local` does without"
        raise EngineError(f"Ray is not installed: {how}.") from error
    return ray


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Keep from the terminal Ray's warnings of its own ways, and what its C++ half writes there past Python."""
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and prints a stack where it comes: what it was to do before, it does again."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _connect(ray: Any, address: str | None, cpus: int | None, environment: Mapping[str, str]) -> str:
    """Join a cluster, or start one of our own; returns where its logs are."""
    # The level is for this process: the workers' own logs are wanted where one dies
    variables = {"RAY_BACKEND_LOG_LEVEL": "info", **environment}
    options: dict[str, Any] = {
        "runtime_env": {"env_vars": variables},
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
    }
    if address is None:
        # else Ray writes one into the home directory
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())
        options |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    elif address != "auto":
        _knock(address)
    # False, as on macOS and Windows: all of Ray's servers listen on the loopback, not on every interface. No argument
    # says so: for a given 127.0.0.1 Ray takes the network's address
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = address is not None
    try:
        # Ray lets its workers import from the folder that it is started in, before all else
        with _hushed(), _own_signals(), contextlib.chdir("/"):
            context = ray.init(address=address or "local", **options)
    except Exception as error:
        what = "Ray does not start" if address is None else "The cluster cannot be joined"
        if address is not None and "RAY_AUTH_MODE" not in os.environ:
            what += " (if it asks for a token, set RAY_AUTH_MODE=token)"
        raise EngineError(f"{what}: {_sentence(error)}") from error
    return f"{context.address_info['session_dir']}/logs"


def _knock(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself would ask there for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise EngineError(f"The address {address} is not one of a Ray cluster: host:port, or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise EngineError(f"No Ray cluster answers at {address}: {_sentence(error)}") from error


@contextlib.contextmanager
def _end_with_us() -> Iterator[None]:
    """Kill the agents of our own Ray when this process dies. All the rest ends by itself then, at once; these two would
    first try for a minute to tell a server that is gone."""
    import psutil  # there with Ray

    agents = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that has ended meanwhile
            if one.cmdline()[:1] in (["ray::DashboardAgent"], ["ray::RuntimeEnvAgent"]):
                agents.append(one.pid)
    command = ["sh", "-c", 'read _; kill -9 "$@"', "sh", *map(str, agents)]
    # the pipe closes when this process ends, however it does; Ctrl-C is not for the shell
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as watch:
        try:
            yield
        finally:
            watch.kill()


def _results(
    ray: Any, make: Make[S, R], shards: Sequence[S], pool: int, needs: Mapping[str, int]
) -> Generator[R, None, None]:
    """What the pool of workers made of the shards, as it comes; raises the first error of a worker."""
    data, pickle = ray.data, ray.cloudpickle
    log = logging.getLogger("ray.data")
    log.handlers = [one for one in log.handlers if one.name != "console"]  # the one to a file remains
    with _hushed():
        context = data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.execution_no_progress_timeout_s = -1  # it is 30 minutes, and a shard may take longer
        rows = [{"number": number, "shard": pickle.dumps(shard)} for number, shard in enumerate(shards)]
        # Ray tries again for ever. Its own limit counts also what never reached a process: where a machine is lost,
        # three calls to it fail within a second
        tries = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Tries).remote()
        answers = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            fn_constructor_args=(pickle.dumps(make), tries),
            batch_size=1,
            batch_format="pyarrow",
            # a shard behind another in the same process would die with it, and wait while others are idle
            compute=data.ActorPoolStrategy(size=pool, max_tasks_in_flight_per_actor=1),
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"] or None,
            memory=needs["memory"] or None,
        )
    for batch in answers.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
        result, error = pickle.loads(batch["outcome"][0].as_py())
        if error is not None:
            raise error
        yield result


class _Tries:
    """How often each shard was begun: kept in a process that no shard can kill."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self._begun[number] += 1
        return self._begun[number]


class _Actor:
    """A process of the pool. It builds its worker at its first shard: so a death in building counts as a try of the
    shard, where Ray would restart the process for ever; and an error in building comes back like any other."""

    def __init__(self, make: bytes, tries: Any) -> None:
        self._make = make
        self._tries = tries
        self._worker: Callable[[Any], Any] | None = None

    def __call__(self, batch: Any) -> dict[str, list[bytes]]:
        import ray

        pickle = ray.cloudpickle
        outcome: tuple[Any, Exception | None]
        try:
            if ray.get(self._tries.begin.remote(batch["number"][0].as_py())) > TRIES:
                raise _WorkerDiedError
            if self._worker is None:
                self._worker = pickle.loads(self._make)()
            outcome = self._worker(pickle.loads(batch["shard"][0].as_py())), None
        except Exception as error:
            # an error returned, not raised: Ray would wrap it in pages of its own
            outcome = None, _portable(error)
        return {"outcome": [pickle.dumps(outcome)]}


def _portable(error: Exception) -> Exception:
    """The error, or where it cannot be pickled one with its message; its traceback, which is never, as a note."""
    from ray import cloudpickle as pickle

    note = traceback.format_exc()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(_sentence(error))
    error.add_note(note)
    return error


def _sentence(error: Exception) -> str:
    """An error's message, or its last line where it is pages long, with a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1].rstrip(".") + "."
