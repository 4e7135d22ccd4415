"""Tiny random Qwen2 models: as a GGUF file, as a folder, and as wheels that carry the GGUF in parts."""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize
from tokenizers import pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from service.weights.wheels import WheelModel

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["c a", "ca t", "Ã ©", "Ġ t", "Ġt h"]  # "Ã©" is "é" composed, in byte-level letters
NORMAL = [*BYTES, *(merge.replace(" ", "") for merge in MERGES)]
PIECES = [*NORMAL, "<|endoftext|>", "<|im_end|>", "<tool_call>", "[PAD264]", "[PAD265]"]
KINDS = [
    *[TokenType.NORMAL] * len(NORMAL),
    *[TokenType.CONTROL] * 2,
    TokenType.USER_DEFINED,
    *[TokenType.UNUSED] * 2,
]
END, IM_END, TOOL_CALL = range(len(NORMAL), len(NORMAL) + 3)
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS = 96, 160, 2, 6, 3  # rows divide by 32, as Q8_0 needs
HEAD_SIZE = HIDDEN // HEADS
CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"


def write_gguf(
    path: Path,
    *,
    architecture: str = "qwen2",
    tied: bool = False,
    extra: dict[str, npt.NDArray[np.float32]] | None = None,
    hidden: int = HIDDEN,
    heads: int = HEADS,
    layers: int = LAYERS,
    pieces: Sequence[str] = PIECES,
    kinds: Sequence[TokenType] = KINDS,
    merges: Sequence[str] = MERGES,
    bos: int = END,
    eos: int = IM_END,
    pad: int = END,
) -> None:
    """Write a GGUF with quantised matrices; the output matrix differs from the embedding unless `tied`.

    The later arguments are what the file says, true or not; its tensors stay the same.
    """
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, architecture)
    writer.add_name("Tiny Qwen2.5 Coder 0.5B Instruct")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_block_count(layers)
    writer.add_context_length(131)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(heads)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_pad_token_id(pad)
    writer.add_chat_template(CHAT_TEMPLATE)

    def matrix(
        name: str, rows: int, columns: int, kind: GGMLQuantizationType = GGMLQuantizationType.Q8_0
    ) -> None:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    def vector(name: str, size: int) -> None:
        writer.add_tensor(name, random.standard_normal(size, dtype=np.float32))

    matrix("token_embd.weight", len(PIECES), HIDDEN, GGMLQuantizationType.Q5_0)
    vector("output_norm.weight", HIDDEN)
    if not tied:
        matrix("output.weight", len(PIECES), HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", HIDDEN)
        vector(block + "ffn_norm.weight", HIDDEN)
        for part, rows in (
            ("q", HEADS * HEAD_SIZE),
            ("k", KV_HEADS * HEAD_SIZE),
            ("v", KV_HEADS * HEAD_SIZE),
        ):
            matrix(f"{block}attn_{part}.weight", rows, HIDDEN)
            vector(f"{block}attn_{part}.bias", rows)
        matrix(block + "attn_output.weight", HIDDEN, HIDDEN)
        matrix(block + "ffn_gate.weight", FEED_FORWARD, HIDDEN, GGMLQuantizationType.F16)
        matrix(block + "ffn_up.weight", FEED_FORWARD, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, FEED_FORWARD)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(path: Path, *, shard: str | int = "1GB", spread: float = 0.02) -> None:
    """Write a model in the hub's own form, with transformers' own functions. `spread` is the weights' deviation."""
    torch.manual_seed(11)
    config = Qwen2Config(
        vocab_size=len(NORMAL) + 1,
        hidden_size=84,
        intermediate_size=101,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=131,
        tie_word_embeddings=True,
        initializer_range=spread,
    )
    Qwen2ForCausalLM(config).save_pretrained(path, max_shard_size=shard)
    vocab = {piece: i for i, piece in enumerate([*NORMAL, "<|endoftext|>"])}
    Qwen2Tokenizer(vocab=vocab, merges=[tuple(merge.split()) for merge in MERGES]).save_pretrained(path)


def write_wheels(gguf: Path, folder: Path, *, parts: int = 3) -> WheelModel:
    """Cut a GGUF into wheels that pip accepts, and pin them."""
    content = gguf.read_bytes()
    cuts = [len(content) * part // parts for part in range(parts + 1)]
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(1, parts + 1):
        package = f"tiny_part{part}"
        with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(f"{package}/__init__.py", "raise SystemExit('code of a wheel was run')")
            wheel.writestr(f"{package}/data/part{part:02}.bin", content[cuts[part - 1] : cuts[part]])
            info = f"{package}-1.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    return WheelModel(
        id="pypi:tiny",
        requirements=tuple(f"tiny-part{part}==1.0" for part in range(1, parts + 1)),
        wheel_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        gguf_bytes=len(content),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
        converted_bytes=4_000_000,
    )
