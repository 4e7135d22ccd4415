"""Each format is read back by its own reader, and carries the numbers of the answer."""

from __future__ import annotations

import base64
import csv
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from service.formats import drawing, npz, page, pictures, tables
from service.formats import json as json_format
from service.formats.views import visible

LAYERS, HEADS = [3, 11], [0, 2, 5]  # as chosen by a request: neither all nor from 0
TOKENS = ["The", "cat", "$x$", "a\nb", "猫", "=1+1", "</script>"]


def softmax_maps(queries: int, seed: int = 5) -> np.ndarray:
    """Causal maps whose rows sum to 1: float32 [layer, head, query, key]."""
    scores = np.random.default_rng(seed).normal(size=(len(LAYERS), len(HEADS), queries, queries))
    weights = np.tril(np.exp(scores))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def result(
    labels: Sequence[str], maps: Sequence[Mapping[str, Any]], *, unit: str = "token", **more: Any
) -> dict[str, Any]:
    text = " ".join(labels)
    starts = np.cumsum([0, *(len(label) + 1 for label in labels)]).tolist()
    items = [
        {"index": i, "text": label, "start": start, "end": start + len(label)}
        for i, (label, start) in enumerate(zip(labels, starts, strict=False))
    ]
    tokens = [{**item, "id": 31 + i, "raw": "Ġ" + item["text"], "word": i} for i, item in enumerate(items)]
    words = [{**item, "tokens": (i,)} for i, item in enumerate(items)]
    return {
        "text": text,
        "tokens": tokens,
        "words": words,
        "unit": unit,
        "maps": list(maps),
        "warnings": [],
        **more,
    }


def answer(*results: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": {"id": "tiny", "sha256": None, "dtype": "float32"}, "results": list(results)}


def head_maps(weights: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"layer": layer, "head": head, "kv_head": head // 2, "weights": weights[i, j]}
        for i, layer in enumerate(LAYERS)
        for j, head in enumerate(HEADS)
    ]


def one_map(labels: Sequence[str], weights: np.ndarray | None = None, **more: Any) -> dict[str, Any]:
    weights = softmax_maps(len(labels))[0, 0] if weights is None else weights
    return answer(result(labels, [{"layer": 5, "head": 3, "kv_head": 0, "weights": weights}], **more))


ALL_MAPS = softmax_maps(len(TOKENS))


@pytest.fixture
def payload() -> dict[str, Any]:
    return answer(result(TOKENS, head_maps(ALL_MAPS)))


def as_json(payload: Mapping[str, Any]) -> Any:
    return json.loads(json_format.dumps(payload))


def read_csv(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))


# --- rows and CSV -------------------------------------------------------------------------------------------


def test_csv_has_one_row_a_weight_with_the_numbers_and_order_of_the_json_answer(
    payload: dict[str, Any],
) -> None:
    rows = read_csv(tables.csv(payload))
    expected = [
        [
            str(one["layer"]),
            str(one["head"]),
            str(query),
            TOKENS[query],
            str(key),
            TOKENS[key],
            json.dumps(weight),
        ]
        for one in as_json(payload)["results"][0]["maps"]
        for query, row in enumerate(one["weights"])
        for key, weight in enumerate(row)
    ]
    assert list(rows[0]) == ["layer", "head", "query_pos", "query_token", "key_pos", "key_token", "weight"]
    assert [[*row.values()][:6] for row in rows] == [row[:6] for row in expected]
    assert np.array_equal(
        np.array([row["weight"] for row in rows], dtype=np.float32).reshape(ALL_MAPS.shape), ALL_MAPS
    )


def test_rows_are_flat_records_of_the_causal_positions_only(payload: dict[str, Any]) -> None:
    rows = tables.rows(payload)
    n = len(TOKENS)
    assert len(rows) == len(LAYERS) * len(HEADS) * n * (n + 1) // 2
    read = np.zeros_like(ALL_MAPS)
    for row in rows:
        assert list(row) == [
            "text_index",
            "layer",
            "head",
            "aggregate",
            "query_pos",
            "query_token",
            "key_pos",
            "key_token",
            "weight",
        ]
        assert (row["text_index"], row["aggregate"]) == (0, None)
        assert (row["query_token"], row["key_token"]) == (TOKENS[row["query_pos"]], TOKENS[row["key_pos"]])
        place = LAYERS.index(row["layer"]), HEADS.index(row["head"]), row["query_pos"], row["key_pos"]
        read[place] = row["weight"]
    assert np.array_equal(read, ALL_MAPS)


def test_rows_as_json_are_the_same_records(payload: dict[str, Any]) -> None:
    assert json.loads(tables.rows_json(payload)) == tables.rows(payload)
    assert (
        json.loads(tables.rows_json(answer({"error": {"code": "c", "pointer": "/p", "detail": "d"}}))) == []
    )


def test_a_weight_shows_the_digits_of_its_float32_not_of_the_double_behind_it() -> None:
    weights = np.array([[1, 0], [0.131, 0.869]], dtype=np.float32)
    assert tables.rows(one_map(["a", "b"], weights))[-1]["weight"] == 0.869
    assert tables.csv(one_map(["a", "b"], weights)).endswith(b"\r\n5,3,1,b,1,b,0.869\r\n")


def test_chosen_rows_keep_their_positions() -> None:
    weights = softmax_maps(5)[0, 0][[1, 4]]
    payload = one_map(list("abcde"), weights, queries=[1, 4])
    assert [(row["query_pos"], row["key_pos"]) for row in tables.rows(payload)] == [
        (1, 0),
        (1, 1),
        *((4, key) for key in range(5)),
    ]
    assert [row["query_token"] for row in read_csv(tables.csv(payload))] == ["b"] * 5 + ["e"] * 5


def test_aggregates_and_several_texts_get_a_column_each_after_the_others() -> None:
    mean = {"aggregate": "mean", "weights": softmax_maps(3)[0, 0]}
    skipped = {"error": {"code": "empty_text", "pointer": "/texts/0", "detail": "The text is empty."}}
    payload = answer(
        skipped, result(["a", "b", "c"], [mean]), result(["d"], [{**mean, "weights": np.ones((1, 1))}])
    )
    rows = read_csv(tables.csv(payload))
    assert list(rows[0])[7:] == ["aggregate", "text_index"]
    assert [row["text_index"] for row in rows] == ["1"] * 9 + ["2"]
    assert {(row["layer"], row["head"], row["aggregate"]) for row in rows} == {("", "", "mean")}
    assert {(row["layer"], row["head"], row["aggregate"]) for row in tables.rows(payload)} == {
        (None, None, "mean")
    }


def test_words_are_the_labels_where_the_unit_is_the_word() -> None:
    payload = one_map(["a", "b"], unit="word")
    payload["results"][0]["words"][1]["text"] = "word"
    assert read_csv(tables.csv(payload))[-1]["query_token"] == "word"
    assert tables.rows(payload)[-1]["key_token"] == "word"


def test_future_keys_without_a_number_are_empty_cells_and_no_rows() -> None:
    weights = np.array([[2.5, np.nan], [-0.5, 0.25]], dtype=np.float32)
    payload = one_map(["a", "b"], weights)
    assert [row["weight"] for row in read_csv(tables.csv(payload))] == ["2.5", "", "-0.5", "0.25"]
    assert [row["weight"] for row in tables.rows(payload)] == [2.5, -0.5, 0.25]


def top_payload() -> dict[str, Any]:
    top = [
        [{"key": 0, "weight": 1.0}],
        [{"key": 1, "weight": 0.75}],
        [{"key": 2, "weight": 0.5}, {"key": 0, "weight": 0.25}],
    ]
    return answer(result(["a", "b", "c"], [{"layer": 5, "head": 3, "kv_head": 0, "top": top}]))


def test_with_top_k_only_the_weights_that_were_sent_have_rows() -> None:
    expected = [(0, 0, 1.0), (1, 1, 0.75), (2, 0, 0.25), (2, 2, 0.5)]
    rows = read_csv(tables.csv(top_payload()))
    assert [(int(r["query_pos"]), int(r["key_pos"]), float(r["weight"])) for r in rows] == expected
    assert [(r["query_pos"], r["key_pos"], r["weight"]) for r in tables.rows(top_payload())] == expected


def test_a_last_row_without_top_weights_adds_no_empty_rows() -> None:
    top: list[list[dict[str, float]]] = [[{"key": 0, "weight": 1.0}], [{"key": 1, "weight": 0.75}], []]
    payload = answer(result(["a", "b", "c"], [{"layer": 5, "head": 3, "kv_head": 0, "top": top}]))
    assert [row["weight"] for row in read_csv(tables.csv(payload))] == ["1.0", "0.75"]


@pytest.mark.parametrize(
    "label",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\rx",
        "\nx",
        "  =1",
        "＝1",
        "＋1",
        "－1",
        "＠x",
        "\u200b=1",
        "\ufeff@x",
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_is_defused_only_when_asked(label: str) -> None:
    payload = one_map([label, "b"])
    assert read_csv(tables.csv(payload))[0]["query_token"] == label
    assert read_csv(tables.csv(payload, spreadsheet=True))[0]["query_token"] == "'" + label


def test_the_spreadsheet_form_changes_nothing_else() -> None:
    weights = np.array([[-2.5, 0], [1.5, 0.25]], dtype=np.float32)
    payload = one_map(
        [
            "a=b",
            "don't",
        ][:2],
        weights,
    )
    assert tables.csv(payload, spreadsheet=True) == tables.csv(payload)


@given(st.lists(st.text(max_size=9), min_size=1, max_size=5))
def test_any_token_comes_back_from_csv_as_it_was(labels: list[str]) -> None:
    rows = read_csv(tables.csv(one_map(labels)))
    assert [row["key_token"] for row in rows] == labels * len(labels)


# --- NPZ ----------------------------------------------------------------------------------------------------


def load(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return dict(archive)


def test_npz_holds_exact_float32_by_layer_and_head(payload: dict[str, Any]) -> None:
    arrays = load(npz.npz(payload))
    assert arrays["weights_0"].dtype == np.float32
    assert np.array_equal(arrays["weights_0"], ALL_MAPS)
    assert arrays["layers_0"].tolist() == LAYERS
    assert arrays["heads_0"].tolist() == HEADS
    assert arrays["queries_0"].tolist() == list(range(len(TOKENS)))
    assert arrays["tokens_0"].tolist() == arrays["words_0"].tolist() == TOKENS


def test_npz_metadata_is_the_answer_without_its_maps(payload: dict[str, Any]) -> None:
    metadata = json.loads(load(npz.npz(payload))["metadata"].item())
    expected = as_json(payload)
    del expected["results"][0]["maps"]
    assert metadata == expected


def test_npz_numbers_texts_by_their_place_and_names_the_skipped_in_its_metadata() -> None:
    weights = softmax_maps(3)[0, 0]
    skipped = {"error": {"code": "empty_text", "pointer": "/texts/0", "detail": "The text is empty."}}
    payload = answer(skipped, result(["a", "b", "c"], [{"aggregate": "max", "weights": weights}]))
    arrays = load(npz.npz(payload))
    assert sorted(arrays) == ["metadata", "queries_1", "tokens_1", "weights_1", "words_1"]
    assert np.array_equal(arrays["weights_1"], weights)
    assert json.loads(arrays["metadata"].item())["results"][0] == skipped


def test_npz_marks_what_is_not_there_with_nan() -> None:
    nan = np.nan
    weights = np.array([[2.5, nan], [-0.5, 0.25]], dtype=np.float32)
    assert np.array_equal(
        load(npz.npz(one_map(["a", "b"], weights)))["weights_0"][0, 0], weights, equal_nan=True
    )
    top = np.array([[1, nan, nan], [nan, 0.75, nan], [0.25, nan, 0.5]], dtype=np.float32)
    assert np.array_equal(load(npz.npz(top_payload()))["weights_0"][0, 0], top, equal_nan=True)


def test_one_long_word_does_not_make_every_label_of_an_npz_as_wide() -> None:
    long = "a" * 100_000
    data = npz.npz(one_map([long, "b", "c"]))
    assert load(data)["tokens_0"].tolist() == ["a" * 64, "b", "c"]
    assert json.loads(load(data)["metadata"].item())["results"][0]["tokens"][0]["text"] == long
    assert len(data) < 10 * len(long)


# --- pictures -----------------------------------------------------------------------------------------------


def svg_root(payload: Mapping[str, Any], **options: Any) -> ET.Element:
    return ET.fromstring(pictures.picture(payload, "svg", **options))


def svg_texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def svg_images(root: ET.Element) -> Iterator[np.ndarray]:
    """The RGB pixels of each embedded image, one pixel a cell."""
    for element in root.iter("{http://www.w3.org/2000/svg}image"):
        head, _, data = element.attrib["{http://www.w3.org/1999/xlink}href"].partition(",")
        assert head == "data:image/png;base64"
        image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
        yield np.asarray(image)


def expected_colors(weights: np.ndarray, colormap: str = "viridis") -> np.ndarray:
    """RGB of a map on the scale from 0 to 1; white where the key lies ahead."""
    colors = matplotlib.colormaps[colormap](weights.astype(np.float64), bytes=True)[..., :3]
    colors[np.triu(np.ones(weights.shape, dtype=bool), 1)] = 255
    return colors


@pytest.mark.parametrize("colormap", drawing.COLORMAPS)
def test_the_colours_of_an_svg_are_the_weights(colormap: str) -> None:
    weights = softmax_maps(7)[0, 0]
    heat, _bar = svg_images(svg_root(one_map(TOKENS, weights), colormap=colormap))
    assert np.array_equal(heat, expected_colors(weights, colormap))


def test_an_svg_shows_every_token_as_text_and_runs_nothing() -> None:
    root = svg_root(one_map(TOKENS))
    texts = svg_texts(root)
    for label in ["The", "cat", "$x$", "a↵b", "=1+1", "</script>"]:
        assert texts.count(label) == 2  # a row and a column
    assert "L5H3" in texts
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert root.attrib["width"] == "600pt"  # 800 CSS pixels


@pytest.mark.parametrize("width", [200, 801, 1600])
def test_a_png_has_the_width_asked_for_and_each_cell_the_colour_of_its_weight(width: int) -> None:
    weights = softmax_maps(5)[0, 0]
    image = Image.open(io.BytesIO(pictures.picture(one_map(list("abcde"), weights), "png", width=width)))
    assert (image.format, image.width) == ("PNG", width)
    pixels = np.asarray(image.convert("RGB"))
    centers = np.full((5, 5, 2), np.nan)
    for i, j in zip(*np.tril_indices(5), strict=True):
        cell = np.argwhere((pixels == expected_colors(weights)[i, j]).all(-1))
        assert len(cell) > (width / 5 / 3) ** 2 / 2
        centers[i, j] = np.median(cell, axis=0)
    rows, columns = np.nanmean(centers[..., 0], axis=1), np.nanmean(centers[..., 1], axis=0)
    assert (np.diff(rows) > width / 20).all()  # queries down
    assert (np.diff(columns) > width / 20).all()  # keys across


def test_a_picture_says_what_it_shows_and_of_which_model() -> None:
    payload = one_map(["a", "b"])
    root = svg_root(payload)
    info = Image.open(io.BytesIO(pictures.picture(payload, "png"))).info
    assert root.findtext("{http://www.w3.org/2000/svg}title") == info["Title"] == "Attention of tiny: L5H3"
    (description,) = root.iter("{http://purl.org/dc/elements/1.1/}description")
    assert description.text == info["Description"]
    assert json.loads(info["Description"]) == {"model": payload["model"]}


@pytest.mark.parametrize("width", [200, 260, 800])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_the_model_is_named_beside_the_title_or_below(width: int, tokens: int) -> None:
    payload = one_map(["a"] * tokens)
    payload["model"]["id"] = "an-organisation/a-model-of-some-size"
    root = svg_root(payload, width=width)
    (name,) = [one for one in root.iter("{http://www.w3.org/2000/svg}text") if "model" in (one.text or "")]
    title = next(one for one in root.iter("{http://www.w3.org/2000/svg}text") if one.text == "L5H3")
    below = float(name.attrib["y"]) > float(title.attrib["y"])
    assert below == (width < 800)
    assert float(name.attrib["y"]) * 4 / 3 <= height_of(root) - 4


def height_of(root: ET.Element) -> float:
    return float(root.attrib["height"].removesuffix("pt")) * 4 / 3


@pytest.mark.parametrize("queries", [[0], [0, 28]])
def test_the_colour_bar_of_few_rows_stays_in_the_picture(queries: list[int]) -> None:
    weights = softmax_maps(29)[0, 0][queries]
    root = svg_root(one_map(["a"] * 29, weights, queries=queries))
    *_, bar = root.iter("{http://www.w3.org/2000/svg}image")
    *_, scale, _, top = map(float, bar.attrib["transform"].removeprefix("matrix(")[:-1].split())
    assert (top + scale * int(bar.attrib["height"])) * 4 / 3 < height_of(root) - 4


def test_heads_of_one_layer_are_tiles_in_order(payload: dict[str, Any]) -> None:
    payload["results"][0]["maps"] = payload["results"][0]["maps"][:3]
    root = svg_root(payload)
    *tiles, _bar = svg_images(root)
    for tile, weights in zip(tiles, ALL_MAPS[0], strict=True):
        assert np.array_equal(tile, expected_colors(weights))
    assert [text for text in svg_texts(root) if text.startswith("L")] == ["L3H0", "L3H2", "L3H5"]


def test_layers_and_heads_are_a_mosaic_with_numbers_at_its_margins() -> None:
    weights = softmax_maps(3)[0, 0]
    maps = [{"layer": l_, "head": h, "kv_head": 0, "weights": weights} for l_ in range(24) for h in range(14)]
    root = svg_root(answer(result(["a", "b", "c"], maps)))
    texts = svg_texts(root)
    assert len(list(svg_images(root))) == 24 * 14 + 1
    assert [texts.count(str(number)) for number in (5, 13, 23)] == [2, 2, 1]


def test_a_sink_stays_bright_where_cells_are_smaller_than_pixels() -> None:
    sink = np.zeros((97, 97), dtype=np.float32)
    sink[:, 0] = 1
    maps = [{"layer": l_, "head": h, "kv_head": 0, "weights": sink} for l_ in range(11) for h in range(13)]
    data = pictures.picture(answer(result(["a"] * 97, maps)), "png", width=700)
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    bright = np.abs(pixels - expected_colors(np.array([[0.5]]))[0, 0]).sum(-1) < 60
    assert bright.sum() > 11 * 13 * 30  # most of the first column of every tile


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_picture_is_the_same_bytes_in_any_thread(kind: Any) -> None:
    payloads = [one_map(TOKENS[: 2 + i % 5], softmax_maps(2 + i % 5, seed=i % 5)[0, 0]) for i in range(8)]
    serial = [pictures.picture(payload, kind) for payload in payloads]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            assert list(pool.map(lambda payload: pictures.picture(payload, kind), payloads)) == serial
    assert len(set(serial)) == 5


@pytest.mark.parametrize("tokens", [1, 2, 6, 30, 60, 211])
def test_a_label_stands_at_every_token_that_has_room_for_one(tokens: int) -> None:
    labels = [f"t{i}" for i in range(tokens)]
    texts = svg_texts(svg_root(one_map(labels)))
    shown = [label for label in labels if texts.count(label) == 2]
    assert shown == (labels if tokens <= 60 else labels[:: 211 // (len(shown) - 1)][: len(shown)])
    assert len(shown) >= min(tokens, 50)


def test_cells_carry_their_numbers_where_they_fit() -> None:
    weights = np.array([[1, 0], [0.131, 0.869]], dtype=np.float32)
    texts = svg_texts(svg_root(one_map(["a", "b"], weights)))
    assert [text for text in texts if "." in text] == ["1.00", "0.13", "0.87", "0.5"]  # and the colour bar's


def test_chosen_rows_and_top_weights_leave_the_rest_blank() -> None:
    weights = softmax_maps(5)[0, 0]
    heat, _bar = svg_images(svg_root(one_map(list("abcde"), weights[[0, 3]], queries=[0, 3])))
    assert np.array_equal(heat, expected_colors(weights)[[0, 3]])
    heat, _bar = svg_images(svg_root(top_payload()))
    blank = (heat == 255).all(-1)
    assert blank.tolist() == [[False, True, True], [True, False, True], [False, True, False]]


def test_scores_are_drawn_from_the_lowest_to_the_highest() -> None:
    weights = np.array([[6, np.nan], [-2, 2]], dtype=np.float32)
    heat, _bar = svg_images(svg_root(one_map(["a", "b"], weights)))
    scaled = np.array([[1, 0], [0, 0.5]])
    assert np.array_equal(heat, expected_colors(scaled))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=4))
def test_any_token_can_be_drawn_without_a_warning_and_stays_well_formed(labels: list[str]) -> None:
    svg_root(one_map(labels))


def test_a_character_that_no_font_has_is_its_code_point() -> None:
    absent = next(chr(point) for point in range(0x12000, 0x12400) if point not in drawing.glyphs())
    assert svg_texts(svg_root(one_map([absent, "b"]))).count(f"U+{ord(absent):04X}") == 2


def test_what_cannot_be_seen_is_made_visible() -> None:
    assert [
        visible(label)
        for label in [
            *("\n", "  ", "a b", "\t", "x\x00", "\u202eabc", "\u200d", "\u0e31", "e\u0301"),
            *("\u00a0", " \u3000", "\u3164\u2800", "a\u00a0b"),
        ]
    ] == [
        "↵",
        "␣␣",
        "a b",
        "⇥",
        "xU+0000",
        "U+202Eabc",
        "U+200D",
        "◌\u0e31",
        "e\u0301",
        "U+00A0",
        "␣U+3000",
        "U+3164U+2800",
        "a\u00a0b",
    ]


def test_long_labels_are_cut_by_the_columns_they_take() -> None:
    texts = svg_texts(svg_root(one_map(["a" * 17, "b" * 16, "我" * 8 if has_glyph("我") else "c", "d"])))
    assert "a" * 15 + "…" in texts
    assert "b" * 16 in texts


def has_glyph(character: str) -> bool:
    return ord(character) in drawing.glyphs()


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"width": 199}, "out_of_range", "width"),
        ({"width": 4001}, "out_of_range", "width"),
        ({"colormap": "jet"}, "unknown_option", "colormap"),
    ],
)
def test_a_picture_refuses_what_it_cannot_do(options: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(drawing.PictureError) as caught:
        pictures.picture(one_map(["a"]), "png", **options)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_there_is_no_picture_of_a_text_that_was_skipped() -> None:
    skipped = {"error": {"code": "empty_text", "pointer": "/texts/0", "detail": "The text is empty."}}
    with pytest.raises(drawing.PictureError) as caught:
        pictures.picture(answer(skipped, one_map(["a"])["results"][0]), "svg")
    assert caught.value.code == "nothing_to_draw"


def test_a_picture_of_few_heads_and_many_layers_is_not_endless() -> None:
    maps = [
        {"layer": l_, "head": h, "kv_head": 0, "weights": np.ones((1, 1))} for l_ in range(64) for h in (0, 1)
    ]
    image = Image.open(io.BytesIO(pictures.picture(answer(result(["a"], maps)), "png", width=2000)))
    assert image.width == 2000
    assert image.height <= drawing.MAX_HEIGHT


# --- the page -----------------------------------------------------------------------------------------------


class Scripts(HTMLParser):
    """Text and attributes of the script elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self._inside = False
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.found.append((dict(attrs), ""))
        self._inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            attributes, text = self.found[-1]
            self.found[-1] = attributes, text + data


def page_data(payload: Mapping[str, Any]) -> Any:
    scripts = Scripts(page.page(payload).decode()).found
    assert [attributes.get("type") for attributes, _ in scripts] == ["application/json", None]
    return json.loads(scripts[0][1])


def test_the_page_carries_the_answer_with_labels_that_can_be_seen(payload: dict[str, Any]) -> None:
    data = page_data(payload)
    (found,) = data["results"]
    assert [token.pop("label") for token in found["tokens"]] == [*TOKENS[:3], "a↵b", *TOKENS[4:]]
    for word in found["words"]:
        del word["label"]
    assert data == as_json(payload)
    weights = np.array([one["weights"] for one in found["maps"]], dtype=np.float32)
    assert np.array_equal(weights.reshape(ALL_MAPS.shape), ALL_MAPS)


def test_no_token_can_leave_the_data_of_the_page() -> None:
    hostile = ["</script><script>alert(1)</script>", "<!--<script>", "\u2028", "&lt;", "{{data}}"]
    clean = Scripts(page.page(one_map(["a"] * len(hostile))).decode()).tags
    html = page.page(one_map(hostile)).decode()
    assert Scripts(html).tags == clean
    assert "\u2028" not in html
    assert [token["text"] for token in page_data(one_map(hostile))["results"][0]["tokens"]] == hostile


@given(st.lists(st.text(max_size=9), min_size=1, max_size=5))
def test_any_token_comes_back_from_the_page_as_it_was(labels: list[str]) -> None:
    assert [token["text"] for token in page_data(one_map(labels))["results"][0]["tokens"]] == labels


def test_the_page_asks_for_nothing_from_outside(payload: dict[str, Any]) -> None:
    html = page.page(payload).decode().replace("http://www.w3.org/2000/svg", "")  # a name that nobody asks
    assert f'content="{page.CONTENT_SECURITY_POLICY}"' in html
    assert page.CONTENT_SECURITY_POLICY.startswith("default-src 'none';")
    for reference in ("http:", "https:", "src=", "href=", "url(", "@import", "eval("):
        assert reference not in html


# --- all of them --------------------------------------------------------------------------------------------

RENDERERS: list[Callable[[Mapping[str, object]], object]] = [
    tables.rows,
    tables.rows_json,
    tables.csv,
    npz.npz,
    page.page,
    lambda payload: pictures.picture(payload, "svg"),
]


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize(("place", "value"), [((1, 0), np.nan), ((0, 1), np.inf), ((1, 1), -np.inf)])
def test_a_number_that_is_not_finite_is_never_sent_as_data(
    render: Callable[[Mapping[str, object]], object], place: tuple[int, int], value: float
) -> None:
    weights = np.array([[1, 0], [0.5, 0.5]], dtype=np.float32)
    weights[place] = value
    with pytest.raises(ValueError, match="not finite"):
        render(one_map(["a", "b"], weights))
