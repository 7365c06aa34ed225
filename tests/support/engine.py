"""llama.cpp through its C API, as the tests need it: whole prompts in, logits and cache contents out."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from support import capi
from support.loaded import Maps, Model, last_words
from support.options import ContextOptions

__all__ = ["Context", "DecodeError", "Maps", "Model"]

GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}

# K, V and recurrent state
ALL_COMPONENTS = 7

Logits = NDArray[np.float32]


class DecodeError(RuntimeError):
    """llama_decode did not return 0."""


class Context:
    """A context of a model.

    Parameters
    ----------
    model
        Must outlive the context.
    options
        See :class:`ContextOptions`.
    """

    def __init__(self, model: Model, options: ContextOptions = ContextOptions()) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = options.n_ctx
        params.n_batch = options.n_batch
        params.n_ubatch = options.n_ubatch
        params.n_seq_max = options.n_seq_max
        params.type_k = GGML_TYPES[options.type_k]
        params.type_v = GGML_TYPES[options.type_v]
        params.flash_attn_type = 1 if options.flash_attn else 0
        params.kv_unified = options.kv_unified
        params.swa_full = options.swa_full
        params.n_threads = params.n_threads_batch = options.n_threads
        handle = llama_cpp.llama_init_from_model(model.handle, params)
        if not handle:
            raise RuntimeError(f"no context for {model.path} with {options}: {last_words()}")
        self.handle = handle
        self.model = model
        self.options = options
        self.memory = llama_cpp.llama_get_memory(handle)

    def close(self) -> None:
        if self.handle:
            llama_cpp.llama_free(self.handle)
            self.handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # decoding

    def decode_rows(self, rows: Sequence[tuple[int, int, int | tuple[int, ...]]], want: Sequence[bool]) -> Logits:
        """Decode one batch of ``(token, position, sequence or sequences)`` rows, return the wanted rows of logits."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, self.options.n_seq_max)
        try:
            batch.n_tokens = len(rows)
            for i, (token, pos, seq) in enumerate(rows):
                batch.token[i] = token
                batch.pos[i] = pos
                seqs = (seq,) if isinstance(seq, int) else seq
                batch.n_seq_id[i] = len(seqs)
                for k, one in enumerate(seqs):
                    batch.seq_id[i][k] = one
                batch.logits[i] = want[i]
            status = llama_cpp.llama_decode(self.handle, batch)
        finally:
            llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise DecodeError(f"llama_decode returned {status}: {last_words()}")
        wanted = [i for i, w in enumerate(want) if w]
        out = np.empty((len(wanted), self.model.n_vocab), np.float32)
        for k, i in enumerate(wanted):
            out[k] = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.handle, i), (self.model.n_vocab,))
        return out

    def decode_embeddings(self, rows: NDArray[np.float32], start: int, seq: int = 0) -> None:
        """Decode rows that come as embeddings, as images do, ``[n_rows][n_embd]``."""
        batch = llama_cpp.llama_batch_init(len(rows), rows.shape[1], 1)
        try:
            batch.n_tokens = len(rows)
            ctypes.memmove(batch.embd, np.ascontiguousarray(rows, np.float32).ctypes.data, rows.nbytes)
            for i in range(len(rows)):
                batch.pos[i] = start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = False
            status = llama_cpp.llama_decode(self.handle, batch)
        finally:
            llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise DecodeError(f"llama_decode returned {status}: {last_words()}")

    def decode(
        self,
        prompts: Mapping[int, Sequence[int]],
        n_logits: int | Mapping[int, int] = 1,
        start: Mapping[int, int] | None = None,
    ) -> dict[int, Logits]:
        """Decode the prompts of several sequences in batches that mix them.

        Parameters
        ----------
        prompts
            Tokens per sequence.
        n_logits
            How many of the last rows of each prompt return logits, for all sequences or by sequence.
        start
            First position per sequence, 0 if left out.

        Returns
        -------
        dict
            Logits per sequence, ``[min(n_logits, n)][n_vocab]``.

        Raises
        ------
        DecodeError
            If llama_decode refuses a batch; the message has the library's last words.
        """
        start = start or {}
        n_wanted = dict.fromkeys(prompts, n_logits) if isinstance(n_logits, int) else n_logits
        logits: dict[int, list[Logits]] = {seq: [] for seq in prompts}
        for rows in _interleave(prompts, self.options.n_batch):
            wanted = [i >= len(prompts[seq]) - n_wanted[seq] for seq, i in rows]
            batch = [(prompts[seq][i], start.get(seq, 0) + i, seq) for seq, i in rows]
            got = iter(self.decode_rows(batch, wanted))
            for (seq, _), want in zip(rows, wanted):
                if want:
                    logits[seq].append(next(got))
        return {
            seq: np.stack(rows) if rows else np.empty((0, self.model.n_vocab), np.float32)
            for seq, rows in logits.items()
        }

    # memory

    def state(self, seq: int) -> bytes:
        """The sequence's part of the memory, as llama.cpp saves it."""
        size = llama_cpp.llama_state_seq_get_size(self.handle, seq)
        buffer = (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_seq_get_data(self.handle, buffer, size, seq) != size:
            raise RuntimeError("llama_state_seq_get_data wrote less than it announced")
        return bytes(buffer)

    def set_state(self, seq: int, data: bytes) -> None:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        if llama_cpp.llama_state_seq_set_data(self.handle, buffer, len(data), seq) == 0:
            raise RuntimeError(f"llama_state_seq_set_data refused the state: {last_words()}")

    def save(self, path: Path, seq: int | None = None) -> None:
        """Save a sequence, or all of the context, to a file."""
        name = str(path).encode()
        if seq is None:
            saved = llama_cpp.llama_state_save_file(self.handle, name, None, 0)
        else:
            saved = llama_cpp.llama_state_seq_save_file(self.handle, name, seq, None, 0)
        if not saved:
            raise RuntimeError(f"cannot save {path}: {last_words()}")

    def load(self, path: Path, seq: int | None = None) -> None:
        """Load a sequence, or all of the context, from a file."""
        tokens, count = (llama_cpp.llama_token * 1)(), ctypes.c_size_t(0)
        name = str(path).encode()
        if seq is None:
            loaded = llama_cpp.llama_state_load_file(self.handle, name, tokens, 1, ctypes.byref(count))
        else:
            loaded = llama_cpp.llama_state_seq_load_file(self.handle, name, seq, tokens, 1, ctypes.byref(count))
        if not loaded:
            raise RuntimeError(f"cannot load {path}: {last_words()}")

    def whole_state(self) -> bytes:
        """The state of all sequences."""
        size = llama_cpp.llama_state_get_size(self.handle)
        buffer = (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_get_data(self.handle, buffer, size) != size:
            raise RuntimeError("llama_state_get_data wrote less than it announced")
        return bytes(buffer)

    def set_whole_state(self, data: bytes) -> None:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        if llama_cpp.llama_state_set_data(self.handle, buffer, len(data)) == 0:
            raise RuntimeError(f"llama_state_set_data refused the state: {last_words()}")

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self.memory, True)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        return bool(llama_cpp.llama_memory_seq_rm(self.memory, seq, p0, p1))

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        llama_cpp.llama_memory_seq_cp(self.memory, src, dst, p0, p1)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        llama_cpp.llama_memory_seq_add(self.memory, seq, p0, p1, delta)

    def seq_keep(self, seq: int) -> None:
        llama_cpp.llama_memory_seq_keep(self.memory, seq)

    def seq_pos_max(self, seq: int) -> int:
        return int(llama_cpp.llama_memory_seq_pos_max(self.memory, seq))

    # RidgeFill

    def set_maps(self, maps: Maps | None, split: int = -1, states: str | None = None) -> None:
        """Use maps; ``states`` is the type of the split states to keep, None to keep none."""
        params = capi.native().llama_ridgefill_context_params(split, states is not None, GGML_TYPES[states or "f32"])
        status = capi.native().llama_set_ridgefill(self.handle, maps.handle if maps else None, params)
        if status != 0:
            raise capi.RefusedError(capi.last_error())

    def can_keep_states(self) -> tuple[bool, str]:
        """Whether rows can run again, and why not."""
        can = bool(capi.native().llama_ridgefill_can_keep_states(self.handle))
        return can, capi.last_error()

    @property
    def split(self) -> int:
        return int(capi.native().llama_ridgefill_ctx_split(self.handle))

    def mark(self, seq: int, *ranges: tuple[int, int]) -> None:
        """Rows of a sequence that are filled from now on, as ranges ``[p0, p1)``."""
        if capi.native().llama_ridgefill_seq_mark(self.handle, seq, capi.ranges(ranges), len(ranges)) != 0:
            raise capi.RefusedError(capi.last_error())

    def n_filled(self, seq: int, p0: int = 0, p1: int = -1) -> int:
        return int(capi.native().llama_ridgefill_seq_n_filled(self.handle, seq, p0, p1))

    def reusable(self, seq: int, n_past: int, *ranges: tuple[int, int]) -> int:
        return int(
            capi.native().llama_ridgefill_seq_reusable(self.handle, seq, capi.ranges(ranges), len(ranges), n_past)
        )

    def capture(self, prompt: Sequence[int], layer: int) -> dict[str, NDArray[np.float32]]:
        """Decode a prompt, return the values of all sites from a layer on, ``[n_tokens][width]`` by name."""
        if capi.native().llama_ridgefill_capture(self.handle, layer) != 0:
            raise capi.RefusedError(capi.last_error())
        self.decode({0: prompt})
        values = {}
        for i in range(capi.native().llama_ridgefill_n_sites(self.handle)):
            name = capi.native().llama_ridgefill_site_name(self.handle, i).decode()
            shape = (len(prompt), capi.native().llama_ridgefill_site_width(self.handle, i))
            data = capi.native().llama_ridgefill_site_data(self.handle, i)
            if not data:
                raise capi.RefusedError(f"no data for site {name}")
            values[name] = np.ctypeslib.as_array(data, shape).copy()
        capi.native().llama_ridgefill_capture(self.handle, -1)
        return values

    def select(
        self,
        seq: int,
        kind: str,
        n_prompt: int,
        tail: int,
        budget: int,
        pool: tuple[int, int] = (0, 0),
        n_query: int = 16,
        heads: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Choose rows among the marked ones when the prompt has been read; call after ``mark``."""
        head_type = capi.native().llama_ridgefill_head
        array = (head_type * max(1, len(heads)))(*[head_type(*head) for head in heads])
        kind_number = getattr(capi.native(), f"LLAMA_RIDGEFILL_SELECT_{kind.upper()}")
        params = capi.native().llama_ridgefill_select_params(kind_number, budget, *pool, n_query, array, len(heads))
        if capi.native().llama_ridgefill_seq_select(self.handle, seq, n_prompt, tail, params) != 0:
            raise capi.RefusedError(capi.last_error())

    def selected(self) -> list[int]:
        """Positions that the last finished selection ran."""
        return list(
            capi.native().llama_ridgefill_selected(self.handle)[: capi.native().llama_ridgefill_n_selected(self.handle)]
        )

    def scores(self, n_prompt: int) -> Logits:
        """Pooled scores of the last finished selection, ``[n_heads][n_prompt]``."""
        count = capi.native().llama_ridgefill_n_score_heads(self.handle)
        rows = [capi.native().llama_ridgefill_head_scores(self.handle, i) for i in range(count)]
        return np.stack([np.ctypeslib.as_array(row, (n_prompt,)).copy() for row in rows])

    def upper(self, seq: int, rows: Sequence[int]) -> None:
        """Run cached rows through the layers from the split on."""
        array = (ctypes.c_int32 * max(1, len(rows)))(*rows)
        if capi.native().llama_ridgefill_seq_upper(self.handle, seq, array, len(rows)) < 0:
            raise capi.RefusedError(capi.last_error())

    def heal(self, seq: int, n_max: int) -> int:
        """Replace the next approximate rows by exact ones."""
        count = int(capi.native().llama_ridgefill_seq_heal(self.handle, seq, n_max))
        if count < 0:
            raise capi.RefusedError(capi.last_error())
        return count

    def splice(
        self,
        src: int,
        dst: int,
        layers: tuple[int, int],
        components: int = ALL_COMPONENTS,
        rows: tuple[int, int] = (-1, -1),
    ) -> None:
        """Replace what a sequence holds by what another one holds."""
        if capi.native().llama_ridgefill_seq_splice(self.handle, src, dst, *rows, *layers, components) != 0:
            raise capi.RefusedError(capi.last_error())

    def components(self, layer: int) -> int:
        """What a layer keeps in the memory."""
        found = int(capi.native().llama_ridgefill_layer_components(self.handle, layer))
        if found < 0:
            raise capi.RefusedError(capi.last_error())
        return found

    def counters(self) -> Any:
        return capi.native().llama_ridgefill_get_counters(self.handle)

    def reset_counters(self) -> None:
        capi.native().llama_ridgefill_reset_counters(self.handle)


def _interleave(prompts: Mapping[int, Sequence[int]], n_batch: int) -> Iterator[list[tuple[int, int]]]:
    """Batches of (sequence, index) that take about equal shares of the prompts that are left."""
    done = {seq: 0 for seq in prompts}
    while left := [seq for seq in prompts if done[seq] < len(prompts[seq])]:
        share = max(1, n_batch // len(left))
        batch: list[tuple[int, int]] = []
        for seq in left:
            n = min(share, len(prompts[seq]) - done[seq])
            batch += [(seq, i) for i in range(done[seq], done[seq] + n)]
            done[seq] += n
        yield batch
