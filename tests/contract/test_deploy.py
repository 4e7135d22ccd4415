"""deploy/kubernetes agrees with itself, with the image, with the settings, with gunicorn's and with the routes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from flask.testing import FlaskClient

from service import gunicorn_conf
from service.settings import Settings
from tests.contract.test_container import (
    FOREIGN_VARIABLES,
    arguments,
    image_environment,
    setting_variables,
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LIMITS = {name: field.default for name, field in Settings.model_fields.items()}
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()


def documents() -> list[tuple[str, dict[str, Any]]]:
    """(file, resource) of all manifests."""
    return [
        (path.name, resource)
        for path in sorted(FOLDER.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for resource in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def one(kind: str, name: str | None = None) -> dict[str, Any]:
    (found,) = (
        resource
        for _, resource in documents()
        if resource["kind"] == kind and name in (None, resource["metadata"]["name"])
    )
    return found


def pods() -> dict[str, dict[str, Any]]:
    """The pod templates, by what makes them."""
    return {
        resource["kind"]: resource["spec"]["template"]
        for _, resource in documents()
        if "template" in resource.get("spec", {})
    }


def serving_pod() -> dict[str, Any]:
    spec: dict[str, Any] = one("Deployment")["spec"]["template"]["spec"]
    return spec


def serving() -> dict[str, Any]:
    (container,) = serving_pod()["containers"]
    assert isinstance(container, dict)
    return container


def containers() -> Iterator[dict[str, Any]]:
    for pod in pods().values():
        yield from (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])


def literals() -> dict[str, str]:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    return dict(literal.split("=", 1) for literal in generated["literals"])


def bytes_of(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG]i)?", quantity).groups()  # type: ignore[union-attr]
    return int(number) << {None: 0, "Ki": 10, "Mi": 20, "Gi": 30}[unit]


def seconds_of(value: str) -> int:
    return int(value.removesuffix("s"))


# --- form ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_manifest_fits_its_schema(version: str) -> None:
    for file, resource in documents():
        try:
            kubernetes_validate.validate(resource, version, strict=True)  # strict: no unknown field either
        except kubernetes_validate.ValidationError as error:
            raise AssertionError(f"{file}: {list(error.path)}: {error.message}") from None


def test_the_schemas_would_tell_a_misspelt_field() -> None:
    wrong = one("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_every_file_is_listed_and_every_listed_file_is_there() -> None:
    files = {path.name for path in FOLDER.iterdir()} - {"kustomization.yaml"}
    assert sorted(files) == sorted(KUSTOMIZATION["resources"])
    kinds = sorted(resource["kind"] for _, resource in documents())
    assert kinds == [
        "Deployment",
        "HorizontalPodAutoscaler",
        "Ingress",
        "Job",
        "Namespace",
        "NetworkPolicy",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "Service",
    ]
    assert one("Namespace")["metadata"]["name"] == KUSTOMIZATION["namespace"]


def test_the_image_has_the_tag_of_this_version() -> None:
    (image,) = KUSTOMIZATION["images"]
    assert {container["image"] for container in containers()} == {image["name"]}
    assert image["newTag"] == PROJECT["version"]
    assert all("imagePullPolicy" not in container for container in containers())  # a fixed tag: IfNotPresent


def test_no_image_has_a_tag_that_moves() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    (image,) = KUSTOMIZATION["images"]
    pulled = [service["image"] for service in compose.values() if service.get("pull_policy") != "never"]
    for name in [f"{image['newName']}:{image['newTag']}", *pulled]:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", name), name


def test_selectors_pick_the_pods_that_are_meant() -> None:
    labels = {kind: pod["metadata"]["labels"] for kind, pod in pods().items()}
    serve, fetch = labels["Deployment"], labels["Job"]

    def picks(selector: dict[str, str], pod: dict[str, str]) -> bool:
        return selector.items() <= pod.items()

    policies = {
        name: one("NetworkPolicy", name)["spec"]["podSelector"] for name in ("serve", "fetch-weights")
    }
    constraint = serving_pod()["topologySpreadConstraints"][0]
    for selector in (
        one("Deployment")["spec"]["selector"]["matchLabels"],
        one("Service")["spec"]["selector"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policies["serve"]["matchLabels"],
        constraint["labelSelector"]["matchLabels"],
    ):
        assert picks(selector, serve)
        assert not picks(selector, fetch)
    assert picks(policies["fetch-weights"]["matchLabels"], fetch)
    assert not picks(policies["fetch-weights"]["matchLabels"], serve)


# --- against the image and the settings ---------------------------------------------------------------------


def test_the_port_is_the_images_all_the_way_to_the_proxy() -> None:
    (port,) = serving()["ports"]
    assert [str(port["containerPort"])] == arguments("EXPOSE") == [image_environment()["PORT"]]
    (offered,) = one("Service")["spec"]["ports"]
    assert offered["targetPort"] == port["name"]
    (rule,) = one("Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {
        "name": one("Service")["metadata"]["name"],
        "port": {"name": offered["name"]},
    }
    assert [rule["host"]] == one("Ingress")["spec"]["tls"][0]["hosts"]
    (allowed,) = one("NetworkPolicy", "serve")["spec"]["ingress"]
    assert [one_port["port"] for one_port in allowed["ports"]] == [port["containerPort"]]
    annotations = pods()["Deployment"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])


def test_probes_ask_what_the_service_answers(client: FlaskClient) -> None:
    container = serving()
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    for probe in probes.values():
        assert probe["httpGet"]["port"] == container["ports"][0]["name"]
        assert client.get(probe["httpGet"]["path"]).status_code == 200
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/health/ready", "readiness": "/health/ready", "liveness": "/health/live"}
    times = {name: (probe["periodSeconds"], probe["failureThreshold"]) for name, probe in probes.items()}
    assert times == {"startup": (5, 60), "readiness": (5, 2), "liveness": (10, 6)}


def test_every_variable_is_a_setting() -> None:
    named = {variable["name"] for container in containers() for variable in container.get("env", [])}
    ours = (named | literals().keys()) - FOREIGN_VARIABLES - {"HF_HUB_OFFLINE", "PIP_NO_INDEX"}
    assert {"ATTENTION_MODEL", "ATTENTION_API_KEYS", "ATTENTION_SIGNING_KEY"} <= ours
    assert ours <= setting_variables()
    # it would move gunicorn's limit, but neither the grace period nor the proxy's
    assert "ATTENTION_DEADLINE_SECONDS" not in ours
    assert all(container["envFrom"] == [{"configMapRef": {"name": "model"}}] for container in containers())
    assert [one["name"] for one in KUSTOMIZATION["configMapGenerator"]] == ["model"]


def test_the_model_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in literals().items():
        monkeypatch.setenv(name, value)
    model = Settings().model
    assert re.fullmatch(r"pypi:[\w.-]+|[\w.-]+/[\w.-]+@[0-9a-f]{40}", model)


def test_secrets_are_optional_and_never_written_here() -> None:
    secret = [
        variable for container in containers() for variable in container["env"] if "valueFrom" in variable
    ]
    assert {one["name"] for one in secret} == {"HF_TOKEN", "ATTENTION_API_KEYS", "ATTENTION_SIGNING_KEY"}
    for variable in secret:
        reference = variable["valueFrom"]["secretKeyRef"]
        assert (reference["name"], reference["optional"]) == ("attention-service", True)
    assert "Secret" not in {resource["kind"] for _, resource in documents()}
    # the token of the hub stays where the hub is asked
    assert "HF_TOKEN" not in {variable["name"] for variable in serving()["env"]}


def test_a_stop_waits_longer_than_the_withdrawal_and_gunicorn_together() -> None:
    before = int(serving()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before == 10
    assert serving_pod()["terminationGracePeriodSeconds"] > before + gunicorn_conf.graceful_timeout
    assert gunicorn_conf.graceful_timeout > LIMITS["deadline_seconds"]


def test_the_proxy_waits_longer_than_the_longest_deadline_and_takes_the_same_bodies() -> None:
    annotations = one("Ingress")["metadata"]["annotations"]
    longest = LIMITS["deadline_seconds"] * LIMITS["max_tokens_per_evaluation"] / LIMITS["max_tokens_per_text"]
    assert longest >= LIMITS["deadline_seconds"]
    for prefix, body in (
        ("nginx.ingress.kubernetes.io", "proxy-body-size"),
        ("nginx.org", "client-max-body-size"),
    ):
        assert longest < seconds_of(annotations[f"{prefix}/proxy-read-timeout"]) < longest + 60
        # more than the service takes: its own 413 says the limit
        assert LIMITS["max_body_bytes"] < int(annotations[f"{prefix}/{body}"]) <= 2 * LIMITS["max_body_bytes"]
    for what in ("proxy-request-buffering", "proxy-buffering"):
        assert annotations[f"nginx.ingress.kubernetes.io/{what}"] == "on"
    nginx_keeps_seconds = 60  # upstream-keepalive-timeout and keepalive_timeout, where nobody changed them
    assert gunicorn_conf.keepalive > nginx_keeps_seconds


def test_memory_is_granted_as_by_compose_and_holds_the_cache_beside_the_model() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (default,) = set(re.findall(r"mem_limit: \$\{MEMORY:-(\d+)g\}", compose))
    granted = bytes_of(serving()["resources"]["limits"]["memory"])
    assert granted == int(default) << 30
    parameters = 494_032_768 * 4  # of a 0.5B model, in float32
    shm = next(volume for volume in serving_pod()["volumes"] if volume["name"] == "shm")
    in_memory = LIMITS["result_cache_bytes"] + bytes_of(shm["emptyDir"]["sizeLimit"])
    assert (
        parameters + (1 << 30) + in_memory < granted
    )  # 1 GiB above the model is what DESIGN grants a request


# --- what a pod may do --------------------------------------------------------------------------------------


def test_requests_are_limits() -> None:
    for container in containers():
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert resources["limits"].keys() == {"cpu", "memory"}


def test_no_container_has_a_privilege_or_a_writable_root() -> None:
    (user,) = arguments("USER")
    number, _, group = user.partition(":")
    for pod in pods().values():
        spec = pod["spec"]
        security = spec["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert [security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [
            int(number),
            int(group),
            int(group),
        ]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all("hostPath" not in volume for volume in spec["volumes"])
    for container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    labels = one("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_serving_writes_to_nothing_but_memory_and_its_own_temporary_folder() -> None:
    cache = image_environment()["ATTENTION_CACHE"]
    mounts = {mount["mountPath"]: mount for mount in serving()["volumeMounts"]}
    assert mounts.keys() == {cache, "/tmp", gunicorn_conf.worker_tmp_dir}
    assert mounts[cache]["readOnly"] is True
    assert image_environment()["MPLCONFIGDIR"].startswith("/tmp/")
    volumes = {volume["name"]: volume for volume in serving_pod()["volumes"]}
    assert volumes[mounts["/tmp"]["name"]]["emptyDir"]["sizeLimit"]
    assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"]["medium"] == "Memory"


def test_the_weights_are_fetched_once_by_what_may_go_out_and_served_by_what_may_not() -> None:
    serve, fetch = (one("NetworkPolicy", name)["spec"] for name in ("serve", "fetch-weights"))
    assert serve["policyTypes"] == fetch["policyTypes"] == ["Ingress", "Egress"]
    assert serve["egress"] == []
    assert fetch["ingress"] == []
    ports = [(port["protocol"], port["port"]) for rule in fetch["egress"] for port in rule["ports"]]
    assert ports == [("UDP", 53), ("TCP", 53), ("TCP", 443)]
    assert "169.254.0.0/16" in fetch["egress"][1]["to"][0]["ipBlock"]["except"]  # the cloud's metadata
    claim = one("PersistentVolumeClaim")["metadata"]["name"]
    for pod in pods().values():
        (weights,) = (volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume)
        assert weights["persistentVolumeClaim"]["claimName"] == claim
    (first,) = serving_pod()["initContainers"]
    (job,) = pods()["Job"]["spec"]["containers"]
    assert job["args"] == first["args"] == ["fetch-weights"]
    assert serving()["args"] == arguments("CMD")[0].strip('[]"').split()
    for container in (first, serving()):
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]
    cache = image_environment()["ATTENTION_CACHE"]
    for container in (first, job):  # writable: both take the lock in it
        assert {"name": "weights", "mountPath": cache} in container["volumeMounts"]


def test_a_roll_out_or_a_lost_node_leaves_replicas_that_answer() -> None:
    deployment, scaler = one("Deployment")["spec"], one("HorizontalPodAutoscaler")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert "replicas" not in deployment  # the autoscaler's
    assert scaler["scaleTargetRef"]["name"] == one("Deployment")["metadata"]["name"]
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    assert [metric["resource"]["name"] for metric in scaler["metrics"]] == ["cpu"]
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] < scaler["minReplicas"]
    probe = serving()["startupProbe"]
    assert deployment["progressDeadlineSeconds"] > probe["periodSeconds"] * probe["failureThreshold"]
    assert one("PersistentVolumeClaim")["spec"]["accessModes"] == [
        "ReadWriteMany"
    ]  # replicas on several nodes
