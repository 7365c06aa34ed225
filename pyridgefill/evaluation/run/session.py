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
from pyridgefill.engine import Engine

Logits = npt.NDArray[np.float32]


class Session(Engine):
    """A model with one sequence to run prompts in; maps can be set, changed and taken out.

    Parameters
    ----------
    model_path
        A model's GGUF.
    n_ctx
        Tokens of a prompt and its continuation at most.
    **options
        For `Engine`.

    Attributes
    ----------
    ranges, selected, n_reused
        Of the last prompt: ranges of rows that were filled, rows that were selected among them, rows that were kept.
    """

    def __init__(self, model_path: str | os.PathLike[str], *, n_ctx: int, **options: Any) -> None:
        self._fill: fill.Fill | None = None
        self._config: RidgeFillConfig | None = None
        self._tokens: list[int] = []
        self._prefix: tuple[list[int], Any] = ([], None)
        self._position = 0
        self.ranges: list[tuple[int, int]] = []
        self.selected: list[int] = []
        self.n_reused = 0
        super().__init__(model_path, n_ctx=n_ctx, **options)
        self._n_vocab = int(self._c.llama_vocab_n_tokens(self._vocab))
        self._memory = self._c.llama_get_memory(self._context)

    def set_maps(self, config: RidgeFillConfig | None) -> None:
        """Use these maps from the next prompt on; None: exact. What the memory holds is not used again."""
        self._tokens = []
        self._prefix = ([], None)
        if config == self._config:
            return
        if self._fill is not None:
            self._fill.close()
        self._fill = self._config = None
        self._fill = None if config is None else fill.Fill(self._model, self._context, config)
        self._config = config

    @property
    def split(self) -> int:
        """The split of the maps that are set."""
        assert self._fill is not None
        return self._fill.split

    @property
    def selects(self) -> bool:
        """Whether rows are selected."""
        return self._fill is not None and self._fill.select != "none"

    @property
    def n_sequences(self) -> int:
        """How many sequences the memory has."""
        return int(self._c.llama_n_seq_max(self._context))

    def plan(self, n_prompt: int) -> list[tuple[int, int]]:
        """Ranges of rows that are filled in a prompt of `n_prompt` tokens with the maps that are set."""
        return [] if self._fill is None else self._fill.plan(n_prompt)

    def exact_tail(self, n_prompt: int) -> int:
        """How many rows at the end of a prompt run exact with the maps that are set."""
        return n_prompt - max((end for _, end in self.plan(n_prompt)), default=0)

    def prefill(self, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False) -> Logits:
        """Run a prompt.

        Parameters
        ----------
        tokens
            The prompt.
        n_logits
            The last rows whose logits are wanted; they must not be filled.
        reuse
            Keep the rows that the last prompt had too, where the result differs by no more than rounding. A selection
            replaces rows: with one, all rows before the tail are kept as they were before it, or none.

        Returns
        -------
        ndarray
            `[n_logits, n_vocab]`.
        """
        kept = self._reusable(tokens, n_logits) if reuse else 0
        if not kept or not self._c.llama_memory_seq_rm(self._memory, 0, kept, -1):
            self.clear()
            kept = 0
        self.n_reused = kept
        if reuse and self.selects:
            kept = self._keep_prefix(tokens)
        return self.run_prompt(tokens, self.plan(len(tokens)), n_logits, start=kept)

    def _reusable(self, tokens: Sequence[int], n_logits: int) -> int:
        """How many first rows of the last prompt serve this one."""
        if len(tokens) != len(self._tokens) or self.selects:
            return 0
        same = (a == b for a, b in zip(tokens, self._tokens, strict=True))
        common = next((index for index, equal in enumerate(same) if not equal), len(tokens))
        return min(common, len(tokens) - n_logits)

    def _keep_prefix(self, tokens: Sequence[int]) -> int:
        """Put the rows before the tail into the empty memory, from the last prompt that had them if it did."""
        ranges = self.plan(len(tokens))
        if not ranges:
            return 0
        prefix = tokens[: ranges[-1][1]]
        if self._prefix[0] == list(prefix):
            self.restore(self._prefix[1])
            self.n_reused = len(prefix)
            return len(prefix)
        self.mark(len(tokens), ranges)
        self.decode(prefix, 0, len(prefix))
        self._prefix = list(prefix), self.save()
        return len(prefix)

    # what ways to run a prompt are made of

    def clear(self) -> None:
        """Empty the memory."""
        self._c.llama_memory_clear(self._memory, True)

    def mark(self, n_prompt: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Let the next decodes of a prompt fill these rows, and select among them as the maps' settings say."""
        if self._fill is not None:
            self._fill.begin(0, n_prompt, ranges)

    def run_prompt(
        self, tokens: Sequence[int], ranges: Sequence[tuple[int, int]], n_logits: int = 1, *, start: int = 0
    ) -> Logits:
        """Run the rows of a prompt from `start` on, those in `ranges` filled; the memory holds the ones before."""
        self.ranges = list(ranges)
        self.mark(len(tokens), ranges)
        self._tokens = list(tokens)
        # one batch: with selected rows, only the batch that ends the prompt can have logits
        rows = self.decode(tokens[start:], start, len(tokens) - n_logits)
        self.selected = self._selected()
        return rows

    def decode(self, tokens: Sequence[int], start: int, first: int) -> Logits:
        """Decode tokens at positions from `start` on, and copy the logits of positions from `first` on."""
        self._fill_batch(tokens, start)
        wanted = range(max(0, first - start), len(tokens))
        for i in wanted:
            self._batch.logits[i] = 1
        result = self._c.llama_decode(self._context, self._batch)
        self._native.check(result == 0, f"llama_decode failed with {result} at position {start}")
        self._position = start + len(tokens)
        rows = np.empty((len(wanted), self._n_vocab), np.float32)
        for row, i in zip(rows, wanted, strict=True):
            row[:] = np.ctypeslib.as_array(self._c.llama_get_logits_ith(self._context, i), shape=(self._n_vocab,))
        return rows

    def remove(self, first: int, last: int) -> None:
        """Take the rows `[first, last)` out of the memory, all from `first` on if `last` is negative."""
        done = self._c.llama_memory_seq_rm(self._memory, 0, first, last)
        self._native.check(done, "the memory of this model cannot drop rows")

    def components(self) -> list[tuple[str, ...]]:
        """What each layer keeps in the memory: some of `pyridgefill.fill.COMPONENTS`."""
        count = int(self._c.llama_model_n_layer(self._model))
        return [fill.layer_components(self._context, layer) for layer in range(count)]

    def splice(
        self, source: int, layers: tuple[int, int], components: Sequence[str], rows: tuple[int, int] = (-1, -1)
    ) -> None:
        """Replace parts of what the prompt's sequence holds by those of another one; see `pyridgefill.fill.splice`."""
        fill.splice(self._context, source, 0, layers, components, rows)

    def save(self) -> npt.NDArray[np.uint8]:
        """What the memory holds of the first sequence, as llama.cpp saves it."""
        size = self._c.llama_state_seq_get_size(self._context, 0)
        state = np.empty(size, np.uint8)
        done = self._c.llama_state_seq_get_data(self._context, _pointer(state), size, 0)
        self._native.check(done == size, "saving a sequence")
        return state

    def restore(self, state: npt.NDArray[np.uint8], sequence: int = 0) -> None:
        """Let a sequence hold what was saved, bit for bit, and nothing else."""
        done = self._c.llama_state_seq_set_data(self._context, _pointer(state), len(state), sequence)
        self._native.check(done == len(state), "restoring a sequence")

    def _selected(self) -> list[int]:
        if self._fill is None or self._fill.select == "none" or not self.ranges:
            return []
        count = self._native.llama_ridgefill_n_selected(self._context)
        return [int(row) for row in self._native.llama_ridgefill_selected(self._context)[:count]]

    def reset_counters(self) -> None:
        """Count rows and times anew."""
        self._native.llama_ridgefill_reset_counters(self._context)

    def filled_seconds(self) -> float | None:
        """Time in which rows were filled since the counters were reset; None where a device may have worked on."""
        if self._c.llama_supports_gpu_offload():
            return None
        return float(fill.counters(self._context).t_filled_us) / 1e6

    def extend(self, tokens: Sequence[int]) -> Logits:
        """Run tokens behind the last prompt, exact; the logits of each, `[n, n_vocab]`."""
        return self.decode(tokens, self._position, self._position)

    def head_scores(self, n_prompt: int) -> npt.NDArray[np.float32]:
        """What the heads of the last prompt's selection gave to each of its rows, pooled, `[n_heads, n_prompt]`."""
        count = self._native.llama_ridgefill_n_score_heads(self._context)
        rows = (self._native.llama_ridgefill_head_scores(self._context, i) for i in range(count))
        return np.stack([np.ctypeslib.as_array(row, shape=(n_prompt,)).copy() for row in rows])

    def generate(self, logits: Logits, n_tokens: int) -> list[int]:
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
            logits = self.extend([token])[0]
        return tokens

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        pieces = []
        for token in tokens:
            piece = ctypes.create_string_buffer(256)
            size = self._c.llama_token_to_piece(self._vocab, token, piece, len(piece), 0, False)
            pieces.append(piece.raw[: max(0, size)])
        return b"".join(pieces).decode("utf-8", errors="replace")

    def close(self) -> None:
        """Free maps, context and model; safe to call twice."""
        if self._fill is not None:
            self._fill.close()
            self._fill = None
        super().close()


def _pointer(state: npt.NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
