"""The service as a user starts it, with the real weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from service.weights import ModelFiles
from tests.serving import Server, serving

WITHOUT_WEIGHTS = ("test_hazards", "test_soak", "test_disconnects")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.stem not in WITHOUT_WEIGHTS:
            item.add_marker(pytest.mark.weights)


@pytest.fixture(scope="session")
def server(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running
