"""A Streamlit panel: a text, a layer and a head; the map as a picture and the weights as a table.

    pip install streamlit
    ATTENTION_URL=http://127.0.0.1:8000 streamlit run examples/streamlit_panel.py

Streamlit's server asks, so that a key (ATTENTION_KEY) never reaches the browser. The text goes in the body.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

import pandas as pd
import streamlit as st

SERVICE = os.environ.get("ATTENTION_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("ATTENTION_KEY")


@st.cache_data(max_entries=64, show_spinner=False)
def ask(path: str, question: dict[str, Any] | None = None) -> bytes:
    """The service's answer: of a GET, or with a question of a POST."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    body = None if question is None else json.dumps(question).encode()
    with urllib.request.urlopen(
        urllib.request.Request(SERVICE + path, body, headers), timeout=60
    ) as response:
        content: bytes = response.read()
    return content


st.title("Attention")
try:
    model = json.loads(ask("/v1/model"))
    text = st.text_input("Text", "The cat sat on the mat because it was tired.")
    layer = st.slider("Layer", 0, model["layers"] - 1, 5)
    head = st.slider("Head", 0, model["heads"] - 1, 5)
    question = {"text": text, "layers": [layer], "heads": [head]}
    picture = ask("/v1/attention?format=png", question)
    rows = pd.DataFrame(json.loads(ask("/v1/attention?format=rows", question)))
except urllib.error.HTTPError as error:
    st.error(json.load(error)["detail"])
except urllib.error.URLError as error:
    st.error(f"{SERVICE} does not answer: {error.reason}")
else:
    st.image(picture, caption=f"L{layer}H{head}: queries down, keys across")
    columns = ["query_token", "key_token", "weight"]
    st.dataframe(rows.sort_values("weight", ascending=False)[columns], hide_index=True)
