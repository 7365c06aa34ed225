"""A model and one context of the engine: what calibration records from and what evaluation runs prompts on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pyridgefill import defaults
from pyridgefill.errors import ModelError, NativeError
from pyridgefill.maps.base import BaseModel
from pyridgefill.maps.model import Site


class Engine:
    """One context with one sequence; use as context manager, or call `close`.

    Parameters
    ----------
    model_path
        A model's GGUF.
    n_ctx
        Tokens per chunk at most.
    n_ubatch
        Tokens per decode.
    n_threads
        0: the CPUs that this process may use.
    n_gpu_layers
        Layers on the GPU.
    n_sequences
        How many, of `n_ctx` tokens each; batches are of the first one.

    Attributes
    ----------
    sites
        What is recorded, see `capture`.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    NativeError
        If the native library is missing, foreign or not patched.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int,
        n_ubatch: int = defaults.UBATCH,
        n_threads: int = 0,
        n_gpu_layers: int = 0,
        n_sequences: int = 1,
    ) -> None:
        from pyridgefill import _native

        self._native, self._c = _native, _native.llama_cpp
        self._model: Any = None
        self._context: Any = None
        self._batch: Any = None
        self.n_ubatch = min(n_ubatch, n_ctx)
        self.sites: list[Site] = []
        path = Path(model_path)
        if not path.is_file():
            raise ModelError(f"{path}: no such file", "give the path of a GGUF model")
        _quiet()
        self._c.llama_backend_init()
        try:
            self._load(path, n_ctx, n_threads, n_gpu_layers, n_sequences)
        except BaseException:
            self.close()
            raise

    def capture(self, layer_first: int) -> None:
        """Let `run` record the sites of layers from this one on.

        Raises
        ------
        NativeError
            With the library's reason, if the architecture cannot be captured.
        """
        done = self._native.llama_ridgefill_capture(self._context, layer_first)
        self._native.check(done == 0, f"cannot capture layers from {layer_first}")
        count = self._native.llama_ridgefill_n_sites(self._context)
        self.sites = [self._site(index) for index in range(count)]

    def _load(self, path: Path, n_ctx: int, n_threads: int, n_gpu_layers: int, n_sequences: int) -> None:
        params = self._c.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        self._model = self._c.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise ModelError(f"{path}: llama.cpp cannot load this model", "run llama-server on it to see why")
        self._vocab = self._c.llama_model_get_vocab(self._model)
        context = self._c.llama_context_default_params()
        context.n_ctx = n_ctx * n_sequences
        context.n_batch, context.n_ubatch = n_ctx, self.n_ubatch
        context.n_seq_max = n_sequences
        context.n_threads = context.n_threads_batch = n_threads or len(os.sched_getaffinity(0))
        self._context = self._c.llama_init_from_model(self._model, context)
        if not self._context:
            raise ModelError(f"{path}: no context of {n_ctx} tokens", "ask for fewer tokens")
        self._batch = self._c.llama_batch_init(n_ctx, 0, 1)

    def _site(self, index: int) -> Site:
        name = self._native.llama_ridgefill_site_name(self._context, index).decode()
        layer = self._native.llama_ridgefill_site_layer(self._context, index)
        width = self._native.llama_ridgefill_site_width(self._context, index)
        return Site(layer, name.removeprefix(f"blk.{layer}."), width)

    def check_base(self, base: BaseModel) -> None:
        """Compare the fingerprint that was read from the file with the loaded model's."""
        loaded = self._native.llama_ridgefill_model_fingerprint(self._model)
        found = (loaded.vocab.decode(), loaded.weights.decode())
        if found != (base.vocab_hash, base.weights_hash):
            raise NativeError(
                f"fingerprint of the loaded model is {found}, of its file {(base.vocab_hash, base.weights_hash)}",
                "the package and the library are of different releases",
            )

    def selection_conflict(self) -> str:
        """Why rows of this model cannot run again, which selection needs; empty if they can."""
        if self._native.llama_ridgefill_can_keep_states(self._context):
            return ""
        return self._native.llama_ridgefill_last_error().decode("utf-8", errors="replace")

    @property
    def bos(self) -> int | None:
        """The token that starts each prompt, None for models that have none."""
        return int(self._c.llama_vocab_bos(self._vocab)) if self._c.llama_vocab_get_add_bos(self._vocab) else None

    @property
    def eos(self) -> int:
        """The token that ends a text, -1 for models that have none."""
        return int(self._c.llama_vocab_eos(self._vocab))

    @property
    def model(self) -> Any:
        """The native model."""
        return self._model

    def text_of(self, token: int) -> str:
        """The text of a token in the vocabulary, empty if the model has no such token."""
        return "" if token < 0 else str(self._c.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace"))

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """Tokens of a text, without BOS or EOS."""
        data = text.encode("utf-8", errors="replace")
        size = len(data) + 16
        tokens = (ctypes.c_int32 * size)()
        count = self._c.llama_tokenize(self._vocab, data, len(data), tokens, size, False, parse_special)
        if count < 0:
            raise ModelError(f"cannot tokenize a text of {len(data)} bytes: {-count} tokens")
        return list(tokens[:count])

    def run(self, tokens: Sequence[int]) -> Iterator[tuple[int, dict[Site, npt.NDArray[np.float32]]]]:
        """Decode one chunk from an empty memory, one ubatch after another, and read what `capture` recorded.

        Yields
        ------
        position, values
            Of the first row, and for each site a `[rows, width]` view that is valid until the next step.
        """
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        for start in range(0, len(tokens), self.n_ubatch):
            part = tokens[start : start + self.n_ubatch]
            self._fill_batch(part, start)
            result = self._c.llama_decode(self._context, self._batch)
            self._native.check(result == 0, f"llama_decode failed with {result} at position {start}")
            self._c.llama_synchronize(self._context)
            yield start, {site: self._view(i, site, len(part)) for i, site in enumerate(self.sites)}

    def _fill_batch(self, tokens: Sequence[int], start: int) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 0

    def _view(self, index: int, site: Site, rows: int) -> npt.NDArray[np.float32]:
        data = self._native.llama_ridgefill_site_data(self._context, index)
        self._native.check(bool(data), f"no values for blk.{site.layer}.{site.name}")
        return np.ctypeslib.as_array(data, shape=(rows, site.width))

    def close(self) -> None:
        """Free context and model; safe to call twice."""
        if self._batch is not None:
            self._c.llama_batch_free(self._batch)
        if self._context:
            self._c.llama_free(self._context)
        if self._model:
            self._c.llama_model_free(self._model)
        self._model = self._context = self._batch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _quiet() -> None:
    """Let llama.cpp print errors only."""
    from llama_cpp._logger import set_verbose

    set_verbose(False)
