"""`llama_cpp.Llama` with one more keyword."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pyridgefill._library import import_llama_cpp
from pyridgefill.config import RidgeFillConfig, resolve_config
from pyridgefill.errors import RidgeFillError
from pyridgefill.spans import Span, check_ends, parse_span, span_rows

llama_cpp = import_llama_cpp()

from llama_cpp import Llama as _Llama  # noqa: E402
from llama_cpp._internals import LlamaBatch  # noqa: E402

from pyridgefill import fill  # noqa: E402


class _Batch(LlamaBatch):
    """A batch that asks for no logits of filled rows, which have none."""

    filled: Sequence[tuple[int, int]] = ()

    def set_batch(self, batch: Sequence[int], n_past: int, logits_all: bool) -> None:
        super().set_batch(batch=batch, n_past=n_past, logits_all=logits_all)
        last = n_past + len(batch) - 1
        if any(start <= last < end for start, end in self.filled):
            self.batch.logits[len(batch) - 1] = False


class Llama(_Llama):
    """A model whose long prompts are prefilled with RidgeFill.

    Everything is as in `llama_cpp.Llama`; calls reuse the cached prefix of an earlier one only where it holds what
    the new call asks for: an exact call never builds on filled cells, and no row of a tail lies in one.

    Parameters
    ----------
    model_path
        A model's GGUF.
    ridgefill
        False: stock behaviour. True: find the maps, see `pyridgefill.find_maps`. A path of maps, or a
        `RidgeFillConfig`.
    **kwargs
        For `llama_cpp.Llama`.

    Raises
    ------
    RidgeFillError
        If there are no maps, or they do not fit the model, the context or the other keywords.
    """

    def __init__(
        self,
        model_path: str,
        *,
        ridgefill: bool | str | os.PathLike[str] | RidgeFillConfig = False,
        **kwargs: Any,
    ) -> None:
        self._fill: fill.Fill | None = None
        self._batch: Any
        self._exact = False
        self._spans: Sequence[Span] | None = None
        # text and spans of the prompt that `generate` gets next
        self._request: tuple[str | None, Sequence[Span] | None] | None = None
        self._ridgefill = ridgefill
        # length and filled ranges of the last prompt, which selected among them
        self._selection: tuple[int, list[tuple[int, int]]] | None = None
        self.fill_stats: fill.FillStats | None = None
        config = resolve_config(ridgefill, model_path)
        if config is not None:
            _check_keywords(kwargs)
        super().__init__(model_path, **kwargs)
        if config is None:
            return
        try:
            self._fill = fill.Fill(self._model.model, self._ctx.ctx, config)
            # closed in reverse order: maps, batch, context, model
            self._batch.close()
            self._batch = self._stack.enter_context(
                closing(_Batch(n_tokens=self.n_batch, embd=0, n_seq_max=1, verbose=self.verbose))
            )
            self._stack.callback(self._fill.close)
        except BaseException:
            if self._fill is not None:
                self._fill.close()
            self.close()
            raise

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Within this context, prompts run through the full model; a stream must be consumed within it."""
        before, self._exact = self._exact, True
        try:
            yield
        finally:
            self._exact = before

    @contextmanager
    def spans(self, *spans: Span) -> Iterator[None]:
        """Within this context, these spans of prompts run exact instead of those of the configuration.

        Parameters
        ----------
        *spans
            As in `RidgeFillConfig.spans`, but within the prompt; none: only sink and tail run exact.
        """
        for span in spans:
            parse_span(span)
        before, self._spans = self._spans, spans
        try:
            yield
        finally:
            self._spans = before

    def _create_completion(self, prompt: str | list[int], *args: Any, **kwargs: Any) -> Iterator[Any]:
        # read now: the generator may run after `spans` has ended
        text = prompt if isinstance(prompt, str) and kwargs.get("suffix") is None else None
        request = text, self._spans
        completions = super()._create_completion(prompt, *args, **kwargs)

        def completed() -> Iterator[Any]:
            self._request = request
            try:
                yield from completions
            finally:
                self._request = None

        return completed()

    def generate(
        self, tokens: Sequence[int], *args: Any, reset: bool = True, **kwargs: Any
    ) -> Generator[int, Sequence[int] | None, None]:
        """See `llama_cpp.Llama.generate`; the prompt is filled unless `reset` is False or `exact` is in force."""
        generated = super().generate(list(tokens), *args, reset=reset, **kwargs)  # type: ignore[misc]
        if self._fill is None:
            return generated
        # read now: the generator may run after `exact` has ended
        fills = reset and not self._exact
        (text, spans), self._request = self._request or (None, self._spans), None
        exact = self._rows(spans, tokens, text) if fills else []
        return self._filled(self._fill, generated, list(tokens), exact, fills=fills, reset=reset)

    def _rows(self, named: Sequence[Span] | None, tokens: Sequence[int], text: str | None) -> list[tuple[int, int]]:
        assert self._fill is not None
        spans = self._fill.config.spans if named is None else named
        if not spans:
            return []
        if named is not None:
            check_ends(named, len(tokens), text)
        pieces = [self._model.detokenize([token], special=True) for token in tokens]
        return span_rows(spans, pieces, text)

    def _filled(
        self,
        maps: fill.Fill,
        generated: Generator[int, Sequence[int] | None, None],
        tokens: list[int],
        exact_rows: Sequence[tuple[int, int]],
        *,
        fills: bool,
        reset: bool,
    ) -> Generator[int, Any, None]:
        """Plan the prompt, and pass tokens on; what is computed until the first one belongs to the prompt."""
        ranges = maps.plan(len(tokens), exact_rows) if fills else []
        if reset:
            self._drop_unusable(tokens, ranges)
        # a prompt that is there as a whole keeps what it selected: its last row alone would ask for other rows
        request, last, self._selection = (len(tokens), ranges), self._selection, None
        repeated = reset and request == last and self._cached_prefix(tokens) >= len(tokens) - 1
        with closing(generated):
            try:
                self._batch.filled = maps.begin(0, len(tokens), ranges, selects=not repeated)
                before = fill.counters(self._ctx.ctx)
                try:
                    token = next(generated)
                finally:
                    # the plan is for this prompt only
                    self._batch.filled = maps.begin(0, 0, [])
                after = fill.counters(self._ctx.ctx)
                filled, exact = after.n_filled - before.n_filled, after.n_exact - before.n_exact
                selected = after.n_selected - before.n_selected
                self._selection = request
                self.fill_stats = fill.FillStats(len(tokens) - filled - exact, filled, exact, selected)
                while True:
                    token = generated.send((yield token))
            except StopIteration:
                return

    def load_state(self, state: Any) -> None:
        """See `llama_cpp.Llama.load_state`; which cells were filled is part of the state."""
        super().load_state(state)
        self._selection = None
        if self._fill is not None:
            self._batch.filled = self._fill.begin(0, 0, [])

    def heal(self, n_max: int | None = None) -> int:
        """Replace filled cells, and those computed from them, by what an exact prefill would have written.

        Parameters
        ----------
        n_max
            Rows at most; None: all. What is left can be healed by further calls.

        Returns
        -------
        int
            The number of rows. After 0 the whole cache serves exact calls.

        Raises
        ------
        RidgeFillError
            If the split states were not kept, see `RidgeFillConfig.keep_states`, or came with a saved state.
        """
        if self._fill is None:
            return 0
        healed = 0
        while n_max is None or healed < n_max:
            step = fill.heal(self._ctx.ctx, 0, self.n_batch if n_max is None else min(self.n_batch, n_max - healed))
            if step == 0:
                break
            healed += step
        if healed:
            self._requires_eval = True  # the logits of a prompt that is there as a whole are those from before
        return healed

    def _drop_unusable(self, tokens: list[int], ranges: Sequence[tuple[int, int]]) -> None:
        """Remove cached cells from the first one on that the prompt cannot keep."""
        prefix = self._cached_prefix(tokens)
        keep = fill.reusable(self._ctx.ctx, 0, ranges, prefix)
        if keep == prefix:
            return
        if keep > 0 and self._ctx.kv_cache_seq_rm(-1, keep, -1):
            self.n_tokens = keep
            self._requires_eval = True
        else:
            # nothing to keep, or recurrent state, which cannot be rolled back
            self.reset()
            self._ctx.kv_cache_clear()

    def _cached_prefix(self, tokens: list[int]) -> int:
        return int(self.longest_token_prefix(self._input_ids.tolist(), tokens))

    def close(self) -> None:
        """Free maps, context and model; safe to call twice."""
        if hasattr(self, "_stack"):  # not if the constructor failed early
            super().close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "ridgefill": self._ridgefill}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _check_keywords(kwargs: dict[str, Any]) -> None:
    for name, reason in (
        ("logits_all", "filled rows have no logits"),
        ("embedding", "filled rows have no embeddings"),
        ("draft_model", "drafting asks for the logits of every row"),
        ("lora_path", "the maps were fitted without adapters"),
    ):
        if kwargs.get(name):
            raise RidgeFillError(
                f"{name} and ridgefill cannot work together: {reason}", f"leave out {name} or ridgefill"
            )
