"""`benchmarks/soak.py` for a few seconds, on the tiny model: what it promises of a minute holds here too."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import soak
from tests.serving import serving_stub


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[soak.Asked, object]]:
    asked = soak.questions()
    with serving_stub(tmp_path_factory.mktemp("serial"), result_cache_bytes=0) as server:
        return list(zip(asked, soak.ask_all(f"http://127.0.0.1:{server.port}", asked), strict=True))


@pytest.mark.parametrize(
    ("name", "settings", "allowed"),
    [("capacity", {}, (200, 429)), ("deadline", {"deadline_seconds": 0.05}, (200, 429, 504))],
)
def test_it_holds_under_four_times_as_many_clients_as_places(
    tmp_path: Path,
    expected: list[tuple[soak.Asked, object]],
    name: str,
    settings: dict[str, object],
    allowed: tuple[int, ...],
) -> None:
    with serving_stub(tmp_path, result_cache_bytes=0, **settings) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert soak.worker_of(url) == server.workers()[0]
        for attempt in range(2):
            phase = soak.run_phase(name, url, expected, seconds=6, clients=32, allowed=allowed)
            broken = [promise for promise in phase.promises if not promise.kept]
            slow = bool(broken) and all(promise.what.startswith("/health") for promise in broken)
            if (
                not slow or attempt
            ):  # clients and server share the cores, and others may want them too: once more
                break
        assert [promise.row for promise in broken] == []
        assert phase.tally.statuses[429]  # it was too much
        assert "Traceback" not in server.log.read_text()
