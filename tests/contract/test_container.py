"""Dockerfile and docker-compose.yml agree with each other, with the settings and with gunicorn's configuration."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from flask.testing import FlaskClient
from pydantic import AliasChoices

from service import gunicorn_conf
from service.cli import main
from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = ("weights", "attention")  # beside what others made
FOREIGN_VARIABLES = {"HF_ENDPOINT", "HF_TOKEN", "PIP_INDEX_URL"}  # read by huggingface_hub and pip, not by us


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, argument), continued lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, argument) for name, _, argument in (line.partition(" ") for line in joined.splitlines())]


def arguments(instruction: str) -> list[str]:
    return [argument for name, argument in instructions() if name == instruction]


def image_environment() -> dict[str, str]:
    words = [word for argument in arguments("ENV") for word in shlex.split(argument)]
    return dict(word.split("=", 1) for word in words)


def health_command() -> list[str]:
    (healthcheck,) = arguments("HEALTHCHECK")
    command: list[str] = json.loads(healthcheck.partition("CMD ")[2])
    return command


def with_defaults(value: str) -> str:
    """Interpolate as compose does where nothing is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def all_services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(with_defaults(COMPOSE))["services"]
    return loaded


def services() -> dict[str, dict[str, Any]]:
    """Those of our own image."""
    return {name: all_services()[name] for name in OURS}


def setting_variables() -> set[str]:
    names = set()
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        names.add(str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"ATTENTION_{name.upper()}")
    return names


def seconds(duration: str) -> int:
    match = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    assert match is not None, duration
    return 60 * int(match[1] or 0) + int(match[2] or 0)


@contextmanager
def server_answering(status: int, seen: list[str]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def check_health(port: int) -> int:
    """Run the image's own health command, in an environment whose proxy answers nothing."""
    program, *rest = health_command()
    assert program == "python"
    environment = os.environ | {"PORT": str(port), "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    return subprocess.run([sys.executable, *rest], env=environment, capture_output=True).returncode


def test_the_image_sets_what_the_settings_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in setting_variables():
        monkeypatch.delenv(name, raising=False)
    for name, value in image_environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.host == "0.0.0.0"  # else no published port would lead to it
    assert arguments("EXPOSE") == [str(settings.port)]
    assert arguments("VOLUME") == [str(settings.cache)]
    assert settings.cache in Path(image_environment()["HF_HOME"]).parents


def test_every_attention_variable_is_a_setting() -> None:
    in_image = {name for name in image_environment() if not name.startswith(("PYTHON", "PIP_", "HF_", "MPL"))}
    in_compose = {name for service in services().values() for name in service["environment"]}
    assert "ATTENTION_MODEL" in in_compose
    assert in_image <= setting_variables()
    assert in_compose - FOREIGN_VARIABLES <= setting_variables()


def test_every_variable_of_the_hub_that_the_readme_offers_reaches_the_fetch() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    offered = set(re.findall(r"`(HF_\w+)`", readme))
    assert "HF_TOKEN" in offered
    # set by the image
    assert offered <= services()["weights"]["environment"].keys() | image_environment().keys()
    assert not {"HF_TOKEN"} & services()["attention"]["environment"].keys()  # it never asks the hub


def test_the_image_runs_as_a_numbered_user_who_owns_the_volume() -> None:
    (user,) = arguments("USER")
    number, _, group = user.partition(":")  # by number, so that an orchestrator can tell that it is not root
    assert int(number) > 0
    assert int(group) > 0
    cache = image_environment()["ATTENTION_CACHE"]
    order = instructions()
    made = next(i for i, (_, argument) in enumerate(order) if f"-o {number} -g {group} {cache}" in argument)
    names = [name for name, _ in order]
    assert made < names.index("VOLUME"), "a volume takes the owner of the folder that it covers"
    assert max(i for i, name in enumerate(names) if name == "RUN") < names.index("USER")


def test_healthy_means_that_the_service_is_ready(client: FlaskClient) -> None:
    seen: list[str] = []
    with server_answering(200, seen) as port:
        assert check_health(port) == 0
    with server_answering(503, seen) as port:
        assert check_health(port) == 1
    assert check_health(port) == 1  # nobody listens there now
    assert set(seen) == {"/health/ready"}
    assert client.get(seen[0]).status_code == 200


def test_entry_points_are_commands_in_exec_form(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,), (command,) = (json.loads(*arguments(name)) for name in ("ENTRYPOINT", "CMD"))
    assert entry in PROJECT["scripts"]  # a list of words: no shell stands between TERM and the service
    commands = [command, *(word for service in services().values() for word in service.get("command", []))]
    assert commands == ["serve", "fetch-weights"]
    for name in commands:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
    assert "fetch-weights" in capsys.readouterr().out


def test_the_service_starts_after_one_fetch_into_the_volume_that_it_reads() -> None:
    weights, attention = services()["weights"], services()["attention"]
    assert weights["command"] == ["fetch-weights"]
    assert weights.get("restart", "no") == "no"
    assert attention["depends_on"] == {"weights": {"condition": "service_completed_successfully"}}
    cache = image_environment()["ATTENTION_CACHE"]
    volume, _ = yaml.safe_load(COMPOSE)["volumes"]
    assert weights["volumes"] == [f"{volume}:{cache}"]
    assert attention["volumes"] == [f"{volume}:{cache}:ro"]
    models = {service["environment"]["ATTENTION_MODEL"] for service in services().values()}
    assert models == {Settings.model_fields["model"].default}


def test_both_services_share_one_image_that_is_built_once() -> None:
    images = {service["image"] for service in services().values()}
    builders = [name for name, service in services().items() if "build" in service]
    assert (len(images), len(builders)) == (1, 1)
    assert {service["pull_policy"] for service in services().values()} == {"never"}


def test_the_port_is_published_on_the_loopback_address_only() -> None:
    default = Settings.model_fields["port"].default
    ports = {name: service.get("ports", []) for name, service in all_services().items()}
    assert ports == {
        "weights": [],
        "attention": [f"127.0.0.1:{default}:{image_environment()['PORT']}"],
        "prometheus": ["127.0.0.1:9090:9090"],
    }
    assert "${PORT:-" in COMPOSE


def test_a_stop_waits_longer_than_gunicorn_does() -> None:
    attention = services()["attention"]
    assert seconds(attention["stop_grace_period"]) > gunicorn_conf.graceful_timeout
    assert "ATTENTION_DEADLINE_SECONDS" not in attention["environment"]  # it would move gunicorn's limit only


def test_containers_have_no_privileges_and_a_read_only_root() -> None:
    for service in all_services().values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True
        assert not {"privileged", "cap_add", "network_mode", "pid", "devices"} & service.keys()
    for service in services().values():
        assert service["tmpfs"] == ["/tmp"]
        assert service["init"] is True


def test_every_container_has_its_limits_and_its_log_is_rotated() -> None:
    for service in all_services().values():
        assert service["logging"] == {
            "driver": "json-file",
            "options": {"max-size": "10m", "max-file": "3"},
        }
        assert re.fullmatch(r"\d+[gm]", service["mem_limit"])
        assert service["pids_limit"] >= 128
    attention = services()["attention"]
    assert attention["pids_limit"] > 2 * gunicorn_conf.threads
    assert attention["memswap_limit"] == attention["mem_limit"]  # no swap
    assert float(attention["cpus"]) == 0  # all of the machine's, however few; CPUS grants less
    assert "${CPUS:-0}" in COMPOSE


def test_compose_shows_the_healthcheck_of_the_image() -> None:
    shown = services()["attention"]["healthcheck"]
    assert "test" not in shown  # else the image's command, which is tested above, would not be what runs
    (instruction,) = arguments("HEALTHCHECK")
    options = dict(re.findall(r"--([\w-]+)=(\S+)", instruction.partition(" CMD ")[0]))
    assert {name.replace("-", "_"): value for name, value in options.items()} == {
        name: str(value) for name, value in shown.items()
    }


def test_prometheus_is_optional_and_scrapes_the_service_within_the_network() -> None:
    prometheus = all_services()["prometheus"]
    assert prometheus["profiles"] == ["metrics"]
    assert all("profiles" not in service for service in services().values())
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in prometheus["command"])
    mounts = dict(mount.split(":", 1) for mount in prometheus["volumes"])
    folder = mounts["./deploy/prometheus"]
    assert folder == "/etc/prometheus:ro"
    assert flags["config.file"] == "/etc/prometheus/prometheus.yml"
    assert mounts["prometheus"] == flags["storage.tsdb.path"]
    assert {"storage.tsdb.retention.time", "storage.tsdb.retention.size"} <= flags.keys()  # a bounded volume
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    jobs = [job for job in config["scrape_configs"] if job.get("metrics_path", "/metrics") == "/metrics"]
    targets = {
        target for job in jobs for group in job.get("static_configs", []) for target in group["targets"]
    }
    assert f"attention:{image_environment()['PORT']}" in targets


def test_nothing_but_the_package_reaches_the_image() -> None:
    assert arguments("COPY") == arguments("ADD") == []
    first, *rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()[1:]
    assert first == "*"
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    packaging = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert allowed == {"attention_core", "service"} | packaging
    sent = [path for name in allowed for path in (ROOT / name).rglob("*") if "__pycache__" not in path.parts]
    assert len(sent) > 20
    weights = {".safetensors", ".gguf", ".bin", ".pt", ".pth", ".whl", ".npz"}
    assert [path for path in sent if path.suffix in weights or path.stat().st_size > 2_000_000] == []


def test_every_installation_is_pinned() -> None:
    commands = [
        part.strip() for run in arguments("RUN") for part in re.split("&&|;", run) if "pip install" in part
    ]
    own = [command for command in commands if command.endswith("pip install --no-deps /src")]
    assert len(own) == 1
    assert len(commands) == 3
    assert all("-c /constraints.txt" in command for command in commands if command not in own)


def test_dependencies_are_installed_before_the_code_is_there() -> None:
    whole_context = [i for i, run in enumerate(arguments("RUN")) if "type=bind,target=/src" in run]
    assert whole_context == [len(arguments("RUN")) - 1]


def test_no_registry_is_named_but_pytorchs_own() -> None:
    hosts = {urlsplit(url).hostname for url in re.findall(r"https?://[^\s\"']+", DOCKERFILE + COMPOSE)}
    assert hosts == {"download.pytorch.org", "127.0.0.1"}
    assert arguments("ARG") == ["TORCH_INDEX=https://download.pytorch.org/whl/cpu", "EXTRAS="]
    base = r"(scratch AS wheels|python:\d+\.\d+-slim-bookworm)"  # without a host: the engine's default
    assert all(re.fullmatch(base, image) for image in arguments("FROM"))
    for service in services().values():
        for name, source in service.get("build", {}).get("additional_contexts", {}).items():
            assert source == "docker-image://scratch"
            assert f"scratch AS {name}" in arguments("FROM")  # so that it is optional without compose, too


def test_the_base_images_python_is_one_that_the_package_supports() -> None:
    version = re.search(r"python:(\d+)\.(\d+)", arguments("FROM")[-1])
    minimum = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"])
    assert version is not None
    assert minimum is not None
    assert tuple(map(int, version.groups())) >= tuple(map(int, minimum.groups()))


def test_reading_gunicorns_settings_changes_nothing_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    before = dict(os.environ)
    conf = importlib.reload(importlib.import_module("service.gunicorn_conf"))
    assert dict(os.environ) == before
    assert "HF_HUB_OFFLINE=1" in conf.raw_env  # gunicorn sets these in its own processes


def test_gunicorn_neither_preloads_nor_opens_a_control_socket() -> None:
    conf = importlib.import_module("service.gunicorn_conf")
    assert conf.preload_app is False  # a forked OpenMP pool hangs at its first parallel operation
    assert conf.control_socket_disable is True  # its thread in the master could hang a start
    assert (conf.workers, conf.max_requests) == (1, 0)
    assert conf.threads > Settings().max_in_flight
