"""The dependency audit fails on a known vulnerability, and says so where nobody could be asked."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def advisory(name: str) -> dict[str, Any]:
    affected = {"package": {"name": name, "ecosystem": "PyPI"}, "ranges": []}
    return {"id": "TEST-2026-7", "aliases": ["CVE-2026-7"], "summary": "A test's.", "affected": [affected]}


class Advisories(BaseHTTPRequestHandler):
    """As much of OSV's API as pip-audit asks for."""

    vulnerable: frozenset[str] = frozenset()

    def do_POST(self) -> None:
        name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
        body = json.dumps({"vulns": [advisory(name)]} if name in self.vulnerable else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def osv(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Advisories]]:
    """A service of advisories that knows the canary's."""

    class Ours(Advisories):
        vulnerable = frozenset({"django"})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ours)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("PIP_AUDIT_OSV_URL", f"http://127.0.0.1:{server.server_port}/v1/query")
    monkeypatch.setattr(audit, "SERVICES", ("osv",))
    yield Ours
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def pinned(tmp_path: Path) -> str:
    file = tmp_path / "constraints.txt"
    file.write_text("# two\nflask==3.1.3\nnumpy==2.2.0\n")
    return str(file)


def test_versions_without_advisories_pass(
    audit: ModuleType, osv: type[Advisories], pinned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main([pinned]) == 0
    assert capsys.readouterr().out == "audit: 2 versions asked of osv, 0 known vulnerabilities\n"


def test_a_known_vulnerability_fails_and_is_named(
    audit: ModuleType, osv: type[Advisories], pinned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    osv.vulnerable = frozenset({"django", "flask"})
    assert audit.main([pinned]) == 1
    said = capsys.readouterr()
    assert "KNOWN VULNERABILITY: flask 3.1.3: CVE-2026-7 = TEST-2026-7" in said.err
    assert "1 known vulnerabilities" in said.out


def test_an_ignored_advisory_passes_and_its_reason_is_said(
    audit: ModuleType, osv: type[Advisories], pinned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    osv.vulnerable = frozenset({"django", "flask"})
    audit.IGNORED["CVE-2026-7"] = "of a part that is not used"
    assert audit.main([pinned]) == 0
    assert "ignored: of a part that is not used" in capsys.readouterr().err


def test_a_service_that_knows_no_advisories_at_all_is_not_believed(
    audit: ModuleType, osv: type[Advisories], pinned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    osv.vulnerable = frozenset()  # as a mirror of the package index
    assert audit.main([pinned]) == 0
    assert "WARNING: no advisory service could be reached; NOTHING WAS AUDITED" in capsys.readouterr().err


def test_a_service_that_cannot_be_reached_is_a_warning(
    audit: ModuleType,
    osv: type[Advisories],
    pinned: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_AUDIT_OSV_URL", "http://127.0.0.1:9/v1/query")
    assert audit.main([pinned]) == 0
    said = capsys.readouterr()
    assert "NOTHING WAS AUDITED" in said.err
    assert not said.out


def test_make_check_audits_and_the_canary_is_no_dependency(audit: ModuleType) -> None:
    assert "$(BIN)/python .ci/audit.py" in (ROOT / "Makefile").read_text(encoding="utf-8")
    name = audit.CANARY.partition("==")[0]
    assert f"\n{name}==" not in (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    assert all(reason.strip() for reason in audit.IGNORED.values())
