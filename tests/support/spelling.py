"""A tiny model whose tokens spell their text: bytes, a few longer ones, some that end inside of a character."""

from __future__ import annotations

from pathlib import Path

import gguf

from support.gguf_builder import N_VOCAB
from support.raw_gguf import RawGGUF, RawKey

CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
# the parts of "日" are bytes 0xe6, 0x97 and 0xa5
MERGES = [
    *("t h", "th e", "e r", "e m", "o r", "w or", "wor d", "a n", "i n", "s y", "s t", "sy st", "syst em", "u s"),
    *("us er", "Ġ word", "Ġ the", "Ġ system", "Ġ q", "\u00e6 \u0139", "Ġ i", "Ġi n", "o n", "q u"),
]


def _alphabet() -> dict[int, str]:
    """The characters for bytes in byte-level BPE, those of valid UTF-8 text only."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    text = [0x09, 0x0A, 0x0D, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5)]
    return {byte: names[byte] for byte in text}


def write(model: Path, path: Path) -> Path:
    """Copy a model of the test tokenizer with byte-level BPE; it starts a text with `<s>`."""
    words = [*_alphabet().values(), *(merge.replace(" ", "") for merge in MERGES)]
    words += [f"<unused{i}>" for i in range(N_VOCAB - len(CONTROL) - len(words))]
    kinds = [gguf.TokenType.CONTROL] * len(CONTROL) + [gguf.TokenType.NORMAL] * len(words)
    raw, kind = RawGGUF.read(model), gguf.GGUFValueType
    raw.keys = [key for key in raw.keys if not key.name.startswith("tokenizer.")]
    raw.keys += [
        RawKey("tokenizer.ggml.model", kind.STRING, "gpt2"),
        RawKey("tokenizer.ggml.pre", kind.STRING, "gpt-2"),
        RawKey("tokenizer.ggml.tokens", kind.STRING, CONTROL + words),
        RawKey("tokenizer.ggml.token_type", kind.INT32, [int(found) for found in kinds]),
        RawKey("tokenizer.ggml.merges", kind.STRING, MERGES),
        RawKey("tokenizer.ggml.bos_token_id", kind.UINT32, 0),
        RawKey("tokenizer.ggml.eos_token_id", kind.UINT32, 1),
        RawKey("tokenizer.ggml.add_bos_token", kind.BOOL, True),
    ]
    return raw.write(path)


def without_vocabulary(model: Path, path: Path) -> Path:
    """Copy a model as one that has no tokenizer at all."""
    raw = RawGGUF.read(model)
    raw.keys = [key for key in raw.keys if not key.name.startswith("tokenizer.")]
    raw.keys.append(RawKey("tokenizer.ggml.model", gguf.GGUFValueType.STRING, "no_vocab"))
    return raw.write(path)
