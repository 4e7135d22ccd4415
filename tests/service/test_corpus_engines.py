"""Where a corpus run's workers run: real Ray, with workers that do no more than a test needs.

Run as a script, this file is the driver of a local Ray that a test watches, or kills, from outside.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from service.corpus.engines import EngineError, _Actor, in_process, on_ray

ROOT = Path(__file__).parents[2]
Run = Callable[..., Iterator[Any]]

pytestmark = pytest.mark.timeout(90)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not come true in time")
        time.sleep(0.02)


class NotTwoError(Exception):
    """Cannot be unpickled: it is made of one thing and pickled as two."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{number} is not two.", number)


class Worker:
    """Does what a shard says, and leaves word of it in a folder."""

    def __init__(self, folder: Path, fault: Exception | None = None) -> None:
        self.folder = folder
        self.note("built")
        if fault is not None:
            raise fault

    def note(self, what: str) -> None:
        with (self.folder / what).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, shard: str) -> tuple[str, int]:
        self.note(shard)
        match shard.split():
            case ["meet", _]:  # both at once, or never
                wait_until(lambda: all((self.folder / f"meet {one}").exists() for one in (1, 2)))
            case ["wait"]:
                wait_until((self.folder / "go on").exists, 50)
            case ["die"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["die", "once"] if len(noted(self.folder, shard)) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["fail"]:
                raise LookupError("The shard lies nowhere.")
            case ["fail", "oddly"]:
                raise NotTwoError(3)
            case ["variable", name]:  # as it was before Python started
                lines = Path("/proc/self/environ").read_bytes().decode().split("\0")
                return next((line for line in lines if line.startswith(f"{name}=")), ""), os.getpid()
        return shard, os.getpid()


def noted(folder: Path, what: str) -> list[int]:
    """The processes that left word of it."""
    file = folder / what
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children(pid: int) -> set[int]:
    """A process with all that it started, and these again."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> list[str]:
    """The addresses on which processes accept connections: hexadecimal, as the kernel writes them."""
    sockets = set()
    for descriptor in itertools.chain(*(Path(f"/proc/{pid}/fd").iterdir() for pid in pids)):
        try:
            sockets.add(str(descriptor.readlink()))
        except OSError:
            continue
    rows = [
        line.split()
        for file in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{file}").read_text().splitlines()
    ]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


# --- in this process


def test_one_worker_is_built_in_this_process_and_takes_the_shards_in_turn(tmp_path: Path) -> None:
    shards = iter(["2", "3", "5"])
    results = in_process(functools.partial(Worker, tmp_path), shards)
    assert next(results) == ("2", os.getpid())
    assert next(shards) == "3"  # not read ahead
    assert [*results] == [("5", os.getpid())]
    assert noted(tmp_path, "built") == [os.getpid()]


@pytest.mark.parametrize("shard", ["fail", "build"])
def test_an_error_in_this_process_is_an_engine_error_with_its_sentence(tmp_path: Path, shard: str) -> None:
    fault = LookupError("The shard lies nowhere.") if shard == "build" else None
    results = in_process(functools.partial(Worker, tmp_path, fault), [shard])
    with pytest.raises(EngineError, match=r"^The shard lies nowhere\.$") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, LookupError)


# --- on a cluster of two CPUs


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster that is not ours to stop."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = f"127.0.0.1:{port}"
    command = [
        Path(sys.executable).parent / "ray",
        "start",
        "--head",
        f"--port={port}",
        "--num-cpus=2",
        "--block",
    ]
    options = ["--include-dashboard=false", "--disable-usage-stats", f"--object-store-memory={128 << 20}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    head = subprocess.Popen([*command, *options], env=environment, **quiet)

    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return any(b"raylet" in Path(f"/proc/{pid}/comm").read_bytes() for pid in children(head.pid))

    wait_until(answers, 30)
    yield address
    started = children(head.pid)
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    head.wait()
    wait_until(lambda: not any(map(alive, started)))


@pytest.fixture
def run(cluster: str, tmp_path: Path) -> Run:
    """`on_ray` on the cluster; its workers know this module by value, as they cannot import it."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def on_cluster(
        shards: list[str],
        *,
        fault: Exception | None = None,
        actors: int | None = 2,
        threads: int = 1,
        environment: Mapping[str, str] = {},
    ) -> Iterator[Any]:
        make = functools.partial(Worker, tmp_path, fault)
        return on_ray(make, shards, actors=actors, threads=threads, environment=environment, address=cluster)

    return on_cluster


def test_two_workers_are_built_and_work_side_by_side(run: Run, tmp_path: Path) -> None:
    shards = ["meet 1", "meet 2", "2", "3", "5"]
    results = [*run(shards, actors=None)]
    assert sorted(shard for shard, _ in results) == sorted(shards)
    assert len({pid for _, pid in results}) == 2
    assert sorted(noted(tmp_path, "built")) == sorted({pid for _, pid in results})


def test_there_are_as_many_workers_as_there_are_cpus_for(run: Run, tmp_path: Path) -> None:
    assert len([*run(["2", "3", "5"], actors=None, threads=2)]) == 3
    assert len(noted(tmp_path, "built")) == 1
    with pytest.raises(EngineError, match=r"^No machine of the Ray cluster has 3 CPUs"):
        [*run(["2"], actors=None, threads=3)]


def test_the_environment_is_there_before_python_starts(run: Run) -> None:
    environment = {"OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "7"}
    shards = [f"variable {name}" for name in environment]
    assert {said for said, _ in run(shards, environment=environment)} == {
        "OMP_NUM_THREADS=3",
        "PYTHONHASHSEED=7",
    }


def test_a_result_comes_before_others_are_there_and_closing_frees_the_workers(
    run: Run, tmp_path: Path
) -> None:
    results = run(["wait", "2"])
    assert next(results)[0] == "2"
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < 10
    wait_until(lambda: not any(map(alive, noted(tmp_path, "built"))), 10)
    assert len([*run(["3"])]) == 1  # the cluster still runs


def test_a_shard_whose_process_is_killed_is_done_again_and_all_come_once(run: Run, tmp_path: Path) -> None:
    shards = ["die once", "2", "3", "5"]
    assert sorted(shard for shard, _ in run(shards)) == sorted(shards)
    assert len(noted(tmp_path, "die once")) == 2


def test_a_shard_that_kills_its_process_every_time_ends_the_run_after_three(run: Run, tmp_path: Path) -> None:
    results = run(["2", "3", "die"])
    done = [next(results)[0], next(results)[0]]
    assert sorted(done) == ["2", "3"]
    with pytest.raises(EngineError, match=r"died 3 times; want of memory .* Ray's logs are in /.*/logs\.$"):
        next(results)
    assert len(noted(tmp_path, "die")) == 3


@pytest.mark.parametrize("shard", ["fail", "build"])
def test_an_error_of_a_worker_ends_the_run_with_its_sentence(run: Run, tmp_path: Path, shard: str) -> None:
    fault = LookupError("The shard lies nowhere.") if shard == "build" else None
    with pytest.raises(EngineError, match=r"^The shard lies nowhere\.$") as caught:
        [*run([shard], fault=fault)]
    assert isinstance(caught.value.__cause__, LookupError)
    assert "in __call__" in caught.value.__cause__.__notes__[0]
    assert len(noted(tmp_path, "built")) == 1


def test_an_error_that_cannot_be_pickled_still_has_its_sentence(run: Run) -> None:
    with pytest.raises(EngineError, match=r"3 is not two"):
        [*run(["fail oddly"])]


def test_a_worker_that_cannot_start_is_no_worker_that_died(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ModuleType("elsewhere")
    elsewhere._Actor = _Actor
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)
    monkeypatch.setattr(_Actor, "__module__", "elsewhere")
    with pytest.raises(EngineError, match=r"installed on every node\?\): .*No module named 'elsewhere'"):
        [*run(["2"])]


def test_the_workers_of_a_killed_driver_end_and_the_cluster_runs_on(
    run: Run, cluster: str, tmp_path: Path
) -> None:
    driver = start(tmp_path, "2", "wait", cluster=cluster)
    wait_until(lambda: bool(noted(tmp_path, "wait")), 30)
    driver.kill()
    driver.communicate(timeout=15)
    wait_until(lambda: not any(map(alive, noted(tmp_path, "built"))), 15)
    assert len([*run(["3"])]) == 1


# --- where there is none


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:10001", "somewhere", ""])
def test_an_address_without_a_cluster_is_an_engine_error(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError, match=address or "The address  is not one"):
        next(on_ray(str, ["2"], actors=1, threads=1, environment={}, address=address))
    assert time.monotonic() - began < 20


def test_without_ray_the_error_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install '\.\[corpus\]'.*--engine local"):
        next(on_ray(str, ["2"], actors=1, threads=1, environment={}))


def test_no_shards_need_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert [*on_ray(str, [], actors=1, threads=1, environment={})] == []


# --- a Ray of our own


def start(folder: Path, *shards: str, cluster: str = "") -> subprocess.Popen[str]:
    """This file as a driver, which prints the shards that are done; on a Ray of its own where there is no cluster."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
    if cluster:
        environment["CLUSTER"] = cluster
    command = [sys.executable, "-W", "default", __file__, str(folder), *shards]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def test_a_ray_of_our_own_listens_on_the_loopback_only_says_nothing_and_ends(tmp_path: Path) -> None:
    driver = start(tmp_path, "die once", "2", "wait")
    wait_until(lambda: bool(noted(tmp_path, "wait")), 30)
    started = children(driver.pid)
    addresses = listening(started)
    (tmp_path / "go on").touch()
    out, err = driver.communicate(timeout=30)
    assert err == ""
    assert sorted(out.split("\n")) == ["", "2", "die once", "wait"]
    assert driver.returncode == 0
    assert len(addresses) > 5
    assert set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1
    wait_until(lambda: not any(map(alive, started)), 15)


def test_nothing_is_left_of_it_however_the_driver_ends(tmp_path: Path) -> None:
    drivers = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        folder = tmp_path / number.name
        folder.mkdir()
        drivers[number] = start(folder, "wait"), folder
    for number, (driver, folder) in drivers.items():
        wait_until(lambda folder=folder: bool(noted(folder, "wait")), 50)
        started = children(driver.pid)
        assert {*noted(folder, "built")} < started
        driver.send_signal(number)
        _, err = driver.communicate(timeout=15)
        wait_until(lambda started=started: not any(map(alive, started)), 15)
        assert err.rstrip().rpartition("\n")[2] == ("KeyboardInterrupt" if number == signal.SIGINT else "")
        assert driver.returncode == -number


if __name__ == "__main__":
    make = functools.partial(Worker, Path(sys.argv[1]))
    where = os.environ.get("CLUSTER")
    variables = {"OMP_NUM_THREADS": "1"}
    for done, _ in on_ray(make, sys.argv[2:], actors=2, threads=1, environment=variables, address=where):
        print(done, flush=True)
