"""The loaded model: weights in memory, its reader and tokenizer, and where it came from."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModel

from attention_core.capture import AttentionReader, Rows
from attention_core.errors import OutOfRangeError
from attention_core.packed import pack
from service.schemas.attention import Input
from service.settings import Settings, granted_cpus
from service.texts import TextTokenizer, TokenizedText
from service.weights import ModelFiles, locate
from service.weights.checks import weight_files

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One copy of the weights, and what is needed to ask them something."""

    reader: AttentionReader
    tokenizer: TextTokenizer
    max_tokens: int  # the model's own maximum
    provenance: dict[str, object]
    output_matrix: Tensor | None  # [vocabulary, hidden]; None where the weights hold none

    def tokenize(
        self, one: Input, *, parse_special: bool = False, at_most: int | None = None
    ) -> TokenizedText:
        """The tokens of one input; of a text clearly longer than `at_most` tokens only the beginning's.

        Raises OutOfRangeError for an id outside the vocabulary, ChatTemplateError for messages that do not fit.
        """
        if one.token_ids is not None:
            for place, token_id in enumerate(one.token_ids):
                if token_id >= self.reader.vocabulary:
                    raise OutOfRangeError(f"token_ids/{place}", index=token_id, size=self.reader.vocabulary)
            return self.tokenizer.from_ids(one.token_ids)
        if one.messages is not None:
            return self.tokenizer.from_messages(one.messages, at_most=at_most)
        text = one.text or ""
        if one.text_pair is not None:
            return self.tokenizer.tokenize_pair(
                text, one.text_pair, parse_special=parse_special, at_most=at_most
            )
        return self.tokenizer.tokenize(text, parse_special=parse_special, at_most=at_most)


def load_model(settings: Settings) -> LoadedModel:
    """Load what `settings` names, without touching the network, and check that attention arrives from every layer.

    Raises WeightsError where the weights were not fetched, UnsupportedModelError for a model that cannot be read.
    """
    files = locate(settings.model, settings.cache)
    torch.set_num_threads(settings.threads or granted_cpus())
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return assemble(files, device=device, dtype=settings.dtype)


def assemble(files: ModelFiles, *, device: str, dtype: str) -> LoadedModel:
    """Read the weights of a folder into memory and warm them up."""
    # The backbone has no language-model head; transformers would report its matrix as an unexpected weight
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    backbone = AutoModel.from_pretrained(
        files.folder, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
    )
    backbone.to(device).eval()
    if pack(backbone):
        _map_anew(backbone, files)
    elif device == "cpu":
        log.warning("no packed products for this model, build of torch or processor: about half as fast")
    reader = AttentionReader(backbone)
    _warm_up(reader)
    tokenizer = TextTokenizer.from_folder(files.folder)
    return LoadedModel(
        reader,
        tokenizer,
        backbone.config.max_position_embeddings,
        provenance(files, device=device, dtype=dtype),
        _output_matrix(backbone, files),
    )


def loaded_bytes(files: ModelFiles, dtype: str) -> int:
    """What the stored weights take in memory, in bytes, as numbers of this type."""
    numbers = 0
    for path in weight_files(files.folder, files.id):
        with safe_open(path, framework="pt") as tensors:
            numbers += sum(math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())  # noqa: SIM118
    return numbers * int(getattr(torch, dtype).itemsize)


def provenance(files: ModelFiles, *, device: str, dtype: str) -> dict[str, object]:
    """Which weights these are, where they come from, and what computes with them."""
    return {
        "requested": files.requested,
        "id": files.id,
        "revision": files.revision,
        "sha256": files.sha256,
        "variant": files.variant,
        "quantization": files.quantization,
        "fallback": files.fallback,
        "dtype": dtype,
        "device": device,
        "versions": {
            "service": version("attention-service"),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _map_anew(backbone: Any, files: ModelFiles) -> None:
    """Map what is left of the weights once more: the old mapping goes, and with it the pages of what was packed."""
    left = dict(backbone.named_parameters())
    for path in weight_files(files.folder, files.id):
        with safe_open(path, framework="pt") as tensors:
            stored = set(tensors.keys())
            for name, parameter in left.items():
                key = next((key for key in (name, f"model.{name}") if key in stored), None)
                if key is not None and (found := tensors.get_tensor(key)).dtype == parameter.dtype:
                    parameter.data = found


def _output_matrix(backbone: Any, files: ModelFiles) -> Tensor | None:
    """What turns the last layer's states into logits: the stored `lm_head.weight`, else the embedding where it is tied.

    A stored one is mapped, not read: it takes no memory until the first substitution asks for it, and then its pages
    are the file's own, which the system shares between processes and may take back.
    """
    for path in weight_files(files.folder, files.id):
        with safe_open(path, framework="pt") as tensors:
            if "lm_head.weight" in tensors.keys():  # noqa: SIM118 - not a dict: it has no `in` of its own
                stored: Tensor = tensors.get_tensor("lm_head.weight")
                return stored
    if backbone.config.tie_word_embeddings:
        embedding: Tensor = backbone.get_input_embeddings().weight
        return embedding
    return None


def _warm_up(reader: AttentionReader) -> None:
    """One short pass over all layers: the first is slow, and a layer that hands out nothing must stop the start."""

    def consume(rows: Rows) -> None:
        if not torch.isfinite(rows.weights).all():
            raise ValueError(f"layer {rows.layer} gives weights that are not finite")

    reader.read([[0, 1, 2]], {layer: range(reader.heads) for layer in range(reader.layers)}, consume)
