"""Ask the advisory services about every version in constraints.txt: `make check` fails on a known vulnerability.

Exit code 1 where one is known, 0 where none is, and 0 with a warning where no service that knows advisories can be
reached: a mirror of the package index often knows none, and a build behind one must still pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
SECONDS = 180  # for a service to answer for all
# A version with advisories, which is not used: a service that knows none of them knows no others either
CANARY = "django==2.2"
# Advisories that do not concern this service: id -> reason. Each is said again at every run.
IGNORED: dict[str, str] = {}


def main(arguments: Sequence[str]) -> int:
    """Audit the file of pinned versions that is named, constraints.txt by default."""
    pinned = Path(arguments[0] if arguments else "constraints.txt").read_text(encoding="utf-8")
    for service in SERVICES:
        found = _ask(service, pinned)
        if found is not None:
            return _judge(service, found)
        print(f"audit: {service} knows no advisories from here", file=sys.stderr)
    print("audit: WARNING: no advisory service could be reached; NOTHING WAS AUDITED", file=sys.stderr)
    return 0


def _ask(service: str, pinned: str) -> list[dict[str, Any]] | None:
    """What a service says of each version; None where it cannot be reached, or does not even know the canary's."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{pinned}\n{CANARY}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service, "--format", "json"]
        command += [
            "--progress-spinner",
            "off",
            "--timeout",
            "15",
            "--cache-dir",
            str(Path(folder) / "cache"),
        ]
        command += ["--no-deps", "--disable-pip", "--requirement", str(requirements)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError, LookupError):
            return None
    name = CANARY.partition("==")[0]
    if not any(one["name"] == name and one.get("vulns") for one in found):
        return None
    return [one for one in found if one["name"] != name]


def _judge(service: str, found: Sequence[dict[str, Any]]) -> int:
    unknown = [one["name"] for one in found if "skip_reason" in one]
    known, ignored = [], []
    for one in found:
        for advisory in one.get("vulns", ()):
            ids = [advisory["id"], *advisory.get("aliases", ())]
            fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
            reason = next((IGNORED[id] for id in ids if id in IGNORED), None)
            line = f"{one['name']} {one['version']}: {' = '.join(ids)}; mended in {fixed}"
            known.append(line) if reason is None else ignored.append(f"{line}; ignored: {reason}")
    for line in (*(f"KNOWN VULNERABILITY: {one}" for one in known), *ignored):
        print(f"audit: {line}", file=sys.stderr)
    if unknown:
        print(f"audit: WARNING: {service} does not know {', '.join(unknown)}", file=sys.stderr)
    print(
        f"audit: {len(found) - len(unknown)} versions asked of {service}, {len(known)} known vulnerabilities"
    )
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
