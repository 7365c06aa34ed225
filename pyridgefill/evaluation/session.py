"""One context of the engine: prompts are prefilled exact or with maps, and the logits of exact rows are read."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyridgefill import fill
from pyridgefill.config import RidgeFillConfig
from pyridgefill.engine import CaptureEngine


class Session(CaptureEngine):
    """A model with one sequence; maps can be set, changed and taken out.

    Parameters
    ----------
    model_path
        A model's GGUF.
    n_ctx
        Tokens of a prompt and its continuation at most.
    **options
        For `CaptureEngine`.
    """

    def __init__(self, model_path: str | os.PathLike[str], *, n_ctx: int, **options: Any) -> None:
        self._fill: fill.Fill | None = None
        super().__init__(model_path, n_ctx=n_ctx, **options)
        self._n_vocab = int(self._c.llama_vocab_n_tokens(self._vocab))
        self._memory = self._c.llama_get_memory(self._context)

    def set_maps(self, config: RidgeFillConfig | None) -> None:
        """Use these maps from the next prompt on; None: exact."""
        if self._fill is not None:
            self._fill.close()
        self._fill = None if config is None else fill.Fill(self._model, self._context, config)

    def exact_tail(self, n_prompt: int) -> int:
        """How many rows at the end of a prompt run exact with the maps that are set."""
        ranges = [] if self._fill is None else self._fill.plan(n_prompt)
        return n_prompt - max((end for _, end in ranges), default=0)

    def prefill(self, tokens: Sequence[int], n_logits: int = 1) -> npt.NDArray[np.float32]:
        """Run a prompt from an empty memory.

        Parameters
        ----------
        tokens
            The prompt.
        n_logits
            The last rows whose logits are wanted; they must not be filled.

        Returns
        -------
        ndarray
            `[n_logits, n_vocab]`.
        """
        self._c.llama_memory_clear(self._memory, True)
        self.ranges = [] if self._fill is None else self._fill.plan(len(tokens))
        if self._fill is not None:
            self._fill.begin(0, len(tokens), self.ranges)
        # one batch: with selected rows, only the batch that ends the prompt can have logits
        rows = self._decode(tokens, 0, len(tokens) - n_logits)
        self._position = len(tokens)
        return rows

    def head_scores(self, n_prompt: int) -> npt.NDArray[np.float32]:
        """What the heads of the last prompt's selection gave to each of its rows, `[n_heads, n_prompt]`."""
        count = self._native.llama_ridgefill_n_score_heads(self._context)
        rows = (self._native.llama_ridgefill_head_scores(self._context, i) for i in range(count))
        return np.stack([np.ctypeslib.as_array(row, shape=(n_prompt,)).copy() for row in rows])

    def generate(self, logits: npt.NDArray[np.float32], n_tokens: int) -> list[int]:
        """Continue the last prompt greedily.

        Parameters
        ----------
        logits
            `[n_vocab]`, of the prompt's last row.
        n_tokens
            How many tokens, fewer at an end-of-generation token.
        """
        tokens: list[int] = []
        while len(tokens) < n_tokens:
            token = int(np.argmax(logits))
            if self._c.llama_vocab_is_eog(self._vocab, token):
                break
            tokens.append(token)
            logits = self._decode([token], self._position, self._position)[0]
            self._position += 1
        return tokens

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        pieces = []
        for token in tokens:
            piece = ctypes.create_string_buffer(256)
            size = self._c.llama_token_to_piece(self._vocab, token, piece, len(piece), 0, False)
            pieces.append(piece.raw[: max(0, size)])
        return b"".join(pieces).decode("utf-8", errors="replace")

    def _decode(self, tokens: Sequence[int], start: int, first: int) -> npt.NDArray[np.float32]:
        """Decode tokens at positions from `start` on, and copy the logits of positions from `first` on."""
        self._fill_batch(tokens, start)
        wanted = range(max(0, first - start), len(tokens))
        for i in wanted:
            self._batch.logits[i] = 1
        result = self._c.llama_decode(self._context, self._batch)
        self._native.check(result == 0, f"llama_decode failed with {result} at position {start}")
        rows = np.empty((len(wanted), self._n_vocab), np.float32)
        for row, i in zip(rows, wanted, strict=True):
            row[:] = np.ctypeslib.as_array(self._c.llama_get_logits_ith(self._context, i), shape=(self._n_vocab,))
        return rows

    def close(self) -> None:
        """Free maps, context and model; safe to call twice."""
        if self._fill is not None:
            self._fill.close()
            self._fill = None
        super().close()
