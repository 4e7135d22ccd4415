"""The loaded model: weights in memory, its reader and tokenizer, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

import torch
import transformers
from transformers import AutoModel

from attention_core.capture import AttentionReader, Rows
from attention_core.errors import OutOfRangeError
from service.schemas.attention import Input
from service.settings import Settings, granted_cpus
from service.texts import TextTokenizer, TokenizedText
from service.weights import ModelFiles, locate


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One copy of the weights, and what is needed to ask them something."""

    reader: AttentionReader
    tokenizer: TextTokenizer
    max_tokens: int  # the model's own maximum
    provenance: dict[str, object]

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
    # The language-model head stays on disk; transformers would report it as an unexpected weight
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    backbone = AutoModel.from_pretrained(
        files.folder, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
    )
    reader = AttentionReader(backbone.to(device).eval())
    _warm_up(reader)
    provenance: dict[str, object] = {
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
    tokenizer = TextTokenizer.from_folder(files.folder)
    return LoadedModel(reader, tokenizer, backbone.config.max_position_embeddings, provenance)


def _warm_up(reader: AttentionReader) -> None:
    """One short pass over all layers: the first is slow, and a layer that hands out nothing must stop the start."""

    def consume(rows: Rows) -> None:
        if not torch.isfinite(rows.weights).all():
            raise ValueError(f"layer {rows.layer} gives weights that are not finite")

    reader.read([[0, 1, 2]], {layer: range(reader.heads) for layer in range(reader.layers)}, consume)
