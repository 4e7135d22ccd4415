"""Settings from the environment, and the CPUs that are really granted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.cli import main
from service.settings import Settings, granted_cpus, process_environment


def test_the_environment_sets_settings_and_host_and_port_have_no_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATTENTION_MAX_TEXTS", "3")
    monkeypatch.setenv("PORT", "8123")
    monkeypatch.setenv("HOST", "0.0.0.0")
    settings = Settings()
    assert (settings.max_texts, settings.port, settings.host) == (3, 8123, "0.0.0.0")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATTENTION_MAX_TEXTS", "0"),
        ("ATTENTION_DTYPE", "int4"),
        ("PORT", "70000"),
        ("ATTENTION_DEADLINE_SECONDS", "inf"),
        ("ATTENTION_DEADLINE_SECONDS", "-1"),
        ("ATTENTION_ROOT_PATH", "/a/../b"),
        ("ATTENTION_ROOT_PATH", "/ü"),
    ],
)
def test_a_setting_that_makes_no_sense_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        Settings()
    assert main(["serve"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"attention-service: {name}: ")
    assert message.count("\n") == 1


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(13)))


def group(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    member = folder / "membership"
    member.write_text(membership)
    return folder / "cgroup", member


@pytest.mark.parametrize(
    ("membership", "files", "cpus"),
    [
        ("0::/\n", {}, 13),
        ("0::/\n", {"cpu.max": "max 100000"}, 13),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "900000 100000", "a/b/cpu.max": "500000 100000"}, 5),
        ("0::/not/here\n", {"cpu.max": "700000 100000"}, 7),
        (
            "3:memory:/a\n4:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "400000", "cpu/a/cpu.cfs_period_us": "100000"},
            4,
        ),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 13),
    ],
)
def test_threads_are_the_cpus_that_the_quota_grants(
    many_cpus: None, tmp_path: Path, membership: str, files: dict[str, str], cpus: int
) -> None:
    assert granted_cpus(*group(tmp_path, membership, files)) == cpus


def test_affinity_counts_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 9})
    assert granted_cpus(*group(tmp_path, "0::/\n", {"cpu.max": "500000 100000"})) == 2


def test_a_server_has_the_threads_it_was_told_and_they_spin_only_briefly() -> None:
    environment = process_environment(Settings(threads=3))
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("3", "3")
    assert 0 < int(environment["GOMP_SPINCOUNT"]) <= 10_000
    assert "OMP_WAIT_POLICY" not in environment


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=1", "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_what_the_user_tells_glibc_stays(monkeypatch: pytest.MonkeyPatch, given: str, wanted: str) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", given)
    told = process_environment(Settings())["GLIBC_TUNABLES"]
    assert told == wanted
    monkeypatch.setenv("GLIBC_TUNABLES", told)  # a process that starts itself anew does so once
    assert process_environment(Settings())["GLIBC_TUNABLES"] == told


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("[::]", False),
        ("", False),
        ("10.0.0.7", False),
        ("localhost.example", False),
    ],
)
def test_the_loopback_is_told_from_what_others_reach(host: str, near: bool) -> None:
    assert Settings(host=host).on_loopback is near
