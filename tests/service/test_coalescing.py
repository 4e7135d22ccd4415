"""Calls of several requests in one pass: alike ones are joined, and what one suffers the others do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from attention_core.capture import Rows
from attention_core.errors import OutOfRangeError
from service.app import create_app
from service.coalescing import ReadCall
from service.engine import Deadline, Engine
from service.errors import DeadlineExceededError
from service.settings import Settings
from tests.conftest import wait_until
from tests.tiny import HEADS, LAYERS, tiny_model

EVERY = {layer: range(HEADS) for layer in range(LAYERS)}
TEXTS = [
    [5, 11, 17, 23, 5],
    [2, 3, 301, 0, 7, 1],
    [17, 13, 11, 7, 5, 3, 2],
    [1, 1, 2, 1, 1, 2],
    [299, 298, 297, 296, 295],
]


@dataclass
class Maps:
    """A consumer that keeps what it is given."""

    found: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def __call__(self, rows: Rows) -> None:
        assert (rows.text, rows.layer) not in self.found  # short texts: a layer comes as one block
        self.found[rows.text, rows.layer] = rows.weights.clone()


@dataclass
class Held:
    """An engine whose inference thread is kept busy until `release`; meanwhile requests wait."""

    engine: Engine
    passes: list[tuple[int, ...]]  # the shape of every batch of token ids that went through the model
    gate: threading.Event = field(default_factory=threading.Event)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(20))

    def hold(self) -> None:
        self.pool.submit(self.engine.run, lambda check: self.gate.wait(20), Deadline.after(30))
        wait_until(lambda: self.engine._running is not None)

    def ask(self, work: Any, seconds: float = 30) -> Future[tuple[float, float]]:
        before = len(self.engine._waiting)
        asked = self.pool.submit(self.engine.run, work, Deadline.after(seconds))
        wait_until(lambda: len(self.engine._waiting) > before)
        return asked


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Iterator[Held]:
    model = tiny_model()
    passes: list[tuple[int, ...]] = []
    model.reader.backbone.embed_tokens.register_forward_hook(
        lambda _, args, __: passes.append(tuple(args[0].shape))
    )
    engine = Engine(lambda: model, Settings(), coalesce_tokens=getattr(request, "param", 40)).start()
    wait_until(lambda: engine.state == "ready")
    found = Held(engine, passes)
    found.hold()
    yield found
    found.gate.set()
    found.pool.shutdown()
    engine.close()


def call(ids: Sequence[int], **options: Any) -> tuple[ReadCall, Maps]:
    maps = Maps()
    return ReadCall([ids], options.pop("heads", EVERY), options.pop("consume", maps), **options), maps


def alone(ids: Sequence[int], **options: Any) -> Maps:
    maps = Maps()
    tiny_model().reader.read([ids], EVERY, maps, **options)
    return maps


def same(found: Maps, expected: Maps) -> bool:
    return found.found.keys() == expected.found.keys() and all(
        found.found[key].shape == expected.found[key].shape
        and float((found.found[key] - expected.found[key]).abs().max()) <= 2e-6
        for key in expected.found
    )


def test_waiting_readings_that_are_alike_go_through_the_model_once_and_each_gets_its_own(held: Held) -> None:
    pairs = [call(ids) for ids in TEXTS]
    asked = [held.ask(one) for one, _ in pairs]
    held.gate.set()
    for future in asked:
        future.result(20)
    assert held.passes == [(5, 7)]
    for (_, maps), ids in zip(pairs, TEXTS, strict=True):
        assert same(maps, alone(ids))


def test_rows_asked_for_stay_each_readings_own(held: Held) -> None:
    pairs = [call(TEXTS[0], queries=[[1, 4]]), call(TEXTS[2])]
    asked = [held.ask(one) for one, _ in pairs]
    held.gate.set()
    for future in asked:
        future.result(20)
    assert held.passes == [(2, 7)]
    assert same(pairs[0][1], alone(TEXTS[0], queries=[[1, 4]]))
    assert same(pairs[1][1], alone(TEXTS[2]))


@pytest.mark.parametrize("held", [0, 14, 15], indirect=True)
def test_no_more_are_joined_than_the_setting_allows(held: Held) -> None:
    asked = [held.ask(call(ids)[0]) for ids in (TEXTS[0], TEXTS[0], TEXTS[0])]
    held.gate.set()
    for future in asked:
        future.result(20)
    expected = {0: [(1, 5)] * 3, 14: [(2, 5), (1, 5)], 15: [(3, 5)]}
    assert held.passes == expected[held.engine._coalesce_tokens]


def test_other_heads_and_other_weightings_are_read_apart_and_in_turn(held: Held) -> None:
    order: list[str] = []

    def noting(name: str) -> Any:
        return lambda rows: order.append(name) if rows.layer == 0 else None

    asked = [
        held.ask(ReadCall([TEXTS[0]], EVERY, noting("a"))),
        held.ask(ReadCall([TEXTS[1]], {0: [3]}, noting("b"))),
        held.ask(ReadCall([TEXTS[1]], EVERY, noting("c"), weighting="value_norm")),
        held.ask(lambda check: order.append("d")),
        held.ask(ReadCall([TEXTS[3]], EVERY, noting("e"))),
    ]
    held.gate.set()
    for future in asked:
        future.result(20)
    assert sorted(order[:2]) == ["a", "e"]
    assert order[2:] == ["b", "c", "d"]


def test_a_consumer_that_fails_and_a_caller_that_has_gone_harm_nobody_else(held: Held) -> None:
    def fail(rows: Rows) -> None:
        raise ZeroDivisionError

    good, other = call(TEXTS[0]), call(TEXTS[2])
    impatient, unseen = call(TEXTS[4])
    asked = [
        held.ask(good[0]),
        held.ask(call(TEXTS[1], consume=fail)[0]),
        held.ask(impatient, seconds=0.05),
        held.ask(other[0]),
    ]
    with pytest.raises(DeadlineExceededError):
        asked[2].result(20)
    held.gate.set()
    with pytest.raises(ZeroDivisionError):
        asked[1].result(20)
    asked[0].result(20), asked[3].result(20)
    assert held.passes == [(3, 7)]  # who had gone is not read at all
    assert not unseen.found
    assert same(good[1], alone(TEXTS[0]))
    assert same(other[1], alone(TEXTS[2]))


def test_a_pass_of_which_everyone_has_failed_ends_early(held: Held) -> None:
    layers: list[int] = []

    def fail(rows: Rows) -> None:
        layers.append(rows.layer)
        raise ZeroDivisionError

    asked = [held.ask(call(ids, consume=fail)[0]) for ids in TEXTS[:2]]
    held.gate.set()
    for future in asked:
        with pytest.raises(ZeroDivisionError):
            future.result(20)
    assert layers == [0, 0]


def test_what_the_model_raises_reaches_everyone_and_the_next_pass_works(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = held.engine.model.reader

    def broken(*arguments: object, **options: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", broken)
        asked = [held.ask(call(ids)[0]) for ids in TEXTS[:2]]
        held.gate.set()
        for future in asked:
            with pytest.raises(MemoryError):
                future.result(20)
    one, maps = call(TEXTS[0])
    held.engine.run(one, Deadline.after(20))
    assert same(maps, alone(TEXTS[0]))


@pytest.mark.parametrize("held", [100], indirect=True)
def test_texts_are_not_joined_where_much_would_be_padding(held: Held) -> None:
    long, short = list(range(40)), TEXTS[0]
    asked = [held.ask(call(ids)[0]) for ids in (long, short, list(range(39)), short)]
    held.gate.set()
    for future in asked:
        future.result(20)
    assert held.passes == [(2, 40), (2, 5)]


def test_a_text_counts_as_far_as_it_is_run(held: Held) -> None:
    asked = [held.ask(call(list(range(60)), queries=[[4]])[0]), held.ask(call(TEXTS[0])[0])]
    held.gate.set()
    for future in asked:
        future.result(20)
    assert held.passes == [(2, 5)]


def test_requests_of_several_texts_get_their_own(held: Held) -> None:
    maps = [Maps(), Maps()]
    asked = [
        held.ask(ReadCall([TEXTS[0], TEXTS[4]], EVERY, maps[0])),
        held.ask(ReadCall([TEXTS[4], TEXTS[0]], EVERY, maps[1])),
    ]
    held.gate.set()
    for future in asked:
        future.result(20)
    assert held.passes == [(4, 5)]
    for layer in range(LAYERS):
        for one, other in ((0, 1), (1, 0)):
            assert torch.allclose(maps[0].found[one, layer], maps[1].found[other, layer], atol=1e-6)
            assert not torch.allclose(maps[0].found[one, layer], maps[1].found[one, layer], atol=1e-3)


def test_kinds_of_question_are_not_joined(held: Held) -> None:
    asked = [held.ask(call(TEXTS[0], kind=kind)[0]) for kind in ("maps", "classify", "maps")]
    held.gate.set()
    for future in asked:
        future.result(20)
    assert held.passes == [(2, 5), (1, 5)]


def test_a_deadline_that_passes_during_a_pass_ends_that_call_alone(held: Held) -> None:
    seen: dict[str, list[int]] = {"patient": [], "impatient": []}
    patient = ReadCall([TEXTS[0]], EVERY, lambda rows: seen["patient"].append(rows.layer))

    def slow(rows: Rows) -> None:
        seen["impatient"].append(rows.layer)
        wait_until(lambda: waiting[1].done())  # its deadline passes while the first layer is read

    waiting = [held.ask(patient), held.ask(ReadCall([TEXTS[4]], EVERY, slow), seconds=0.4)]
    held.gate.set()
    with pytest.raises(DeadlineExceededError):
        waiting[1].result(20)
    waiting[0].result(20)
    assert held.passes == [(2, 5)]
    assert seen == {"patient": list(range(LAYERS)), "impatient": [0]}


def test_the_time_to_come_back_counts_a_joined_request_as_its_share(held: Held) -> None:
    held.engine._recent_seconds = 0.0
    calls = [call(TEXTS[0])[0], call(TEXTS[0], consume=lambda rows: wait_until(later.is_set))[0]]
    later = threading.Event()
    asked = [held.ask(one) for one in calls]
    held.gate.set()
    wait_until(lambda: held.engine._running is not None and not held.engine._waiting)
    before = held.engine._recent_seconds  # of the job that kept the thread busy
    threading.Timer(0.5, later.set).start()
    for future in asked:
        future.result(20)
    assert (
        held.engine._recent_seconds - 0.8 * before < 0.2 * 0.5
    )  # half of a pass of about 0.5 s, and not all of it


def test_a_read_that_is_wrong_is_refused_before_it_waits(held: Held) -> None:
    with held.engine.admit() as session, pytest.raises(OutOfRangeError):
        session.read([[1, 99999]], EVERY, lambda rows: None)
    assert not held.engine._waiting


def test_the_service_joins_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.app.load_model", lambda settings: tiny_model())
    for tokens in (0, 128):
        engine: Engine = create_app(Settings(coalesce_tokens=tokens)).extensions["engine"]
        assert engine._coalesce_tokens == tokens
        engine.close()
    assert Settings().coalesce_tokens == 128


def test_requests_joined_over_http_answer_as_alone_and_a_wrong_one_among_them_is_refused(held: Held) -> None:
    app = create_app(Settings(), held.engine)
    texts = [f"The cat {number}." for number in range(3)]

    def ask(body: dict[str, object]) -> Any:
        return app.test_client().post("/v1/attention", json={"layers": [1], "decimals": 5, **body})

    waiting = [held.pool.submit(ask, {"text": text}) for text in texts]
    wrong = held.pool.submit(ask, {"token_ids": [1, 99999]})
    assert wrong.result(20).status_code == 422
    wait_until(lambda: len(held.engine._waiting) == len(texts))
    held.gate.set()
    for text, future in zip(texts, waiting, strict=True):
        (joined,), (single,) = future.result(20).json["results"], ask({"text": text}).json["results"]
        assert joined["text"] == text
        for ours, expected in zip(joined["maps"], single["maps"], strict=True):
            assert (ours["layer"], ours["head"]) == (expected["layer"], expected["head"])
            apart = torch.tensor(ours["weights"]) - torch.tensor(expected["weights"])
            assert apart.abs().max() <= 2e-5  # both rounded to five decimals
    assert held.passes[0][0] == len(texts)
