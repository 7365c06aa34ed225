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
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.prompts.neutral import SENTENCE, neutral_prompt

_DONOR = 1  # sequence


class Session(Engine):
    """A model with one sequence; maps can be set, changed and taken out.

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
        self._drop = self._neutral = False
        self._tokens: list[int] = []
        self._prefix: tuple[list[int], Any] = ([], None)
        self._donor: tuple[tuple[int, ...], Any] = ((), None)
        self.ranges: list[tuple[int, int]] = []
        self.selected: list[int] = []
        self.n_reused = 0
        super().__init__(model_path, n_ctx=n_ctx, **options)
        self._n_vocab = int(self._c.llama_vocab_n_tokens(self._vocab))
        self._memory = self._c.llama_get_memory(self._context)

    def set_maps(self, config: RidgeFillConfig | None, *, drop: bool = False, neutral: bool = False) -> None:
        """Use these maps from the next prompt on; None: exact.

        With `drop` the filled rows that are not selected are removed from the memory, and the tail runs without them,
        at the positions that it has in the prompt: a baseline that drops tokens instead of filling them. The row
        before the tail runs exact and stays, since llama.cpp wants positions to go on from the last one.

        With `neutral` the layers above the split hold of filled rows what an exact run of a neutral text in their
        place leaves there, and the maps only say which rows and layers these are. That takes a session with
        `n_sequences=2`, and no selection: rows of another text cannot run again.
        """
        if self._fill is not None:
            self._fill.close()
        self._fill = None if config is None else fill.Fill(self._model, self._context, config)
        if neutral and self._fill is not None:
            self._check_neutral()
        self._drop, self._neutral = drop, neutral
        self._tokens = []
        self._prefix = ([], None)

    def _check_neutral(self) -> None:
        assert self._fill is not None
        if self._fill.select != "none":
            raise ModelError("rows of a neutral text cannot run again", "use neutral filler without selection")
        if int(self._c.llama_n_seq_max(self._context)) < 2:
            raise ModelError("a neutral text needs a sequence of its own", "make the session with n_sequences=2")

    def exact_tail(self, n_prompt: int) -> int:
        """How many rows at the end of a prompt run exact with the maps that are set."""
        ranges = [] if self._fill is None else self._fill.plan(n_prompt)
        return n_prompt - max((end for _, end in ranges), default=0)

    def prefill(self, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False) -> npt.NDArray[np.float32]:
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
            self._c.llama_memory_clear(self._memory, True)
            kept = 0
        self.n_reused = kept
        if reuse and self._selects:
            kept = self._keep_prefix(tokens)
        self.ranges = [] if self._fill is None else self._fill.plan(len(tokens))
        if self._neutral and self.ranges:
            kept = self._put_neutral(tokens, reuse=reuse)
        if self._drop and self.ranges:
            first, end = self.ranges.pop()
            self.ranges += [(first, end - 1)] if end - first > 1 else []
        if self._fill is not None:
            self._fill.begin(0, len(tokens), [] if self._neutral else self.ranges)
        self._tokens = list(tokens)
        # one batch: with selected rows, only the batch that ends the prompt can have logits
        rows = self._decode(tokens[kept:], kept, len(tokens) - n_logits)
        self._position = len(tokens)
        self.selected = self._selected()
        if self._drop and self.ranges:
            rows = self._drop_rows(tokens, n_logits)
        return rows

    def _reusable(self, tokens: Sequence[int], n_logits: int) -> int:
        """How many first rows of the last prompt serve this one."""
        if len(tokens) != len(self._tokens) or self._selects or self._drop or self._neutral:
            return 0
        same = (a == b for a, b in zip(tokens, self._tokens, strict=True))
        common = next((index for index, equal in enumerate(same) if not equal), len(tokens))
        return min(common, len(tokens) - n_logits)

    @property
    def _selects(self) -> bool:
        return self._fill is not None and self._fill.select != "none" and not self._drop

    def _keep_prefix(self, tokens: Sequence[int]) -> int:
        """Put the rows before the tail into the empty memory, from the last prompt that had them if it did."""
        assert self._fill is not None
        ranges = self._fill.plan(len(tokens))
        if not ranges:
            return 0
        prefix = tokens[: ranges[-1][1]]
        if self._prefix[0] == list(prefix):
            self.restore(self._prefix[1])
            self.n_reused = len(prefix)
            return len(prefix)
        self._fill.begin(0, len(tokens), ranges)
        self._decode(prefix, 0, len(prefix))
        self._prefix = list(prefix), self.save()
        return len(prefix)

    def _put_neutral(self, tokens: Sequence[int], *, reuse: bool) -> int:
        """Put the rows before the tail into the empty memory, filled ones with a neutral text's part above the split.

        The layers up to the split hold the prompt, exact, and so do all layers in rows that are not filled.
        """
        assert self._fill is not None
        end = self.ranges[-1][1]
        prefix = list(tokens[:end])
        if reuse and self._prefix[0] == prefix:
            self.restore(self._prefix[1])
            self.n_reused = end
            return end
        self._fill.begin(0, end, [])
        donor = neutral_prompt(prefix, self.ranges, self.tokenize(SENTENCE, parse_special=False))
        if self._donor[0] != donor:
            self._decode(donor, 0, end)
            self._donor = donor, self.save()
            self._c.llama_memory_clear(self._memory, True)
        self._decode(prefix, 0, end)
        self.restore(self._donor[1], _DONOR)
        layers = self._fill.split + 1, int(self._c.llama_model_n_layer(self._model)) - 1
        kept = {
            name for layer in range(layers[0], layers[1] + 1) for name in fill.layer_components(self._context, layer)
        }
        for rows in self.ranges:
            if kept - {"state"}:
                fill.splice(self._context, _DONOR, 0, layers, sorted(kept - {"state"}), rows)
        if "state" in kept:
            # one for all rows
            fill.splice(self._context, _DONOR, 0, layers, ["state"])
        if reuse:
            self._prefix = prefix, self.save()
        return end

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

    def _drop_rows(self, tokens: Sequence[int], n_logits: int) -> npt.NDArray[np.float32]:
        """Take the filled rows out of the memory, and run what follows them again."""
        assert self._fill is not None
        self._fill.begin(0, len(tokens), [])
        kept = {*self.selected, *(row for start, end in self.exact_ranges() for row in range(start, end))}
        start = self.ranges[-1][1] + 1
        gone = [row for row in range(start) if row not in kept]
        for first, last in [*_runs(gone), (start, -1)]:
            done = self._c.llama_memory_seq_rm(self._memory, 0, first, last)
            self._native.check(done, "the memory of this model cannot drop rows")
        return self._decode(tokens[start:], start, len(tokens) - n_logits)

    def exact_ranges(self) -> list[tuple[int, int]]:
        """Ranges of the last prompt's rows that were not filled."""
        borders = [0, *(border for span in self.ranges for border in span), len(self._tokens)]
        pairs = zip(borders[::2], borders[1::2], strict=True)
        return [(start, end) for start, end in pairs if start < end]

    def reset_counters(self) -> None:
        """Count rows and times anew."""
        self._native.llama_ridgefill_reset_counters(self._context)

    def filled_seconds(self) -> float | None:
        """Time in which rows were filled since the counters were reset; None where a device may have worked on."""
        if self._c.llama_supports_gpu_offload():
            return None
        return float(fill.counters(self._context).t_filled_us) / 1e6

    def extend(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Run tokens behind the last prompt, exact; the logits of each, `[n, n_vocab]`."""
        rows = self._decode(tokens, self._position, self._position)
        self._position += len(tokens)
        return rows

    def head_scores(self, n_prompt: int, end: bool = False) -> npt.NDArray[np.float32]:
        """What the heads of the last prompt's selection gave to each of its rows, `[n_heads, n_prompt]`.

        `end`: what the last `LLAMA_RIDGEFILL_N_END` rows alone gave.
        """
        count = self._native.llama_ridgefill_n_score_heads(self._context)
        rows = (self._native.llama_ridgefill_head_scores(self._context, i, end) for i in range(count))
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


def _pointer(state: npt.NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of consecutive rows."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1] = runs[-1][0], row + 1
        else:
            runs.append((row, row + 1))
    return runs
