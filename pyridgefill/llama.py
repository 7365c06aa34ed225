"""`llama_cpp.Llama` with one more keyword."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from pyridgefill._library import import_llama_cpp
from pyridgefill.config import RidgeFillConfig, resolve_config
from pyridgefill.errors import RidgeFillError, UsageError
from pyridgefill.spans import check_ends, span_rows

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


@dataclass(frozen=True)
class _Request:
    """What a call asks for.

    Attributes
    ----------
    settings
        How its prompt is filled; None: it runs exact.
    has_spans
        The call names spans of its own, which must be within the prompt.
    text
        The prompt, if it is a text; characters are counted in it.
    """

    settings: RidgeFillConfig | None
    has_spans: bool = False
    text: str | None = None


class Llama(_Llama):
    """A model whose long prompts are prefilled with RidgeFill.

    Everything is as in `llama_cpp.Llama`; calls reuse the cached prefix of an earlier one only where it holds what
    the new call asks for: an exact call never builds on filled cells, and no row of a tail lies in one. That holds
    for cells of a loaded state or a cache as well, and without maps.

    `create_completion`, `create_chat_completion`, `__call__` and `generate` take one more keyword, `ridgefill`, as
    the server's requests do (docs/server.md): None fills if there are maps, False runs the prompt exact, True fills,
    and a mapping fills with other settings: `tail`, `sink`, `min_prompt`, `select`, `budget`, `spans`, `split`.
    Anything else is a `UsageError`.

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
    TypeError
        If a keyword is unknown.
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
        # of the call that runs, for what it calls in turn
        self._request: _Request | None = None
        self._ridgefill = ridgefill
        # what the last prompt selected among: its length, filled ranges and settings
        self._selection: tuple[int, list[tuple[int, int]], RidgeFillConfig | None] | None = None
        self.fill_stats: fill.FillStats | None = None
        _check_names(kwargs)
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

    def create_completion(
        self, prompt: str | list[int], *args: Any, ridgefill: bool | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """See `llama_cpp.Llama.create_completion`; for `ridgefill` see the class."""
        suffix = args[0] if args else kwargs.get("suffix")
        text = prompt if isinstance(prompt, str) and suffix is None else None
        request = replace(self._asked(ridgefill), text=text)
        return self._run(request, super().create_completion, prompt, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `create_completion`."""
        return self.create_completion(*args, **kwargs)

    def create_chat_completion(
        self, *args: Any, ridgefill: bool | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """See `llama_cpp.Llama.create_chat_completion`; for `ridgefill` see the class. Spans are of tokens."""
        return self._run(self._asked(ridgefill), super().create_chat_completion, *args, **kwargs)

    def generate(
        self,
        tokens: Sequence[int],
        *args: Any,
        reset: bool = True,
        ridgefill: bool | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Generator[int, Sequence[int] | None, None]:
        """See `llama_cpp.Llama.generate`; for `ridgefill` see the class. Without `reset` nothing is filled."""
        request = self._asked(ridgefill)
        generated = super().generate(list(tokens), *args, reset=reset, **kwargs)  # type: ignore[misc]
        settings = request.settings if reset else None
        exact = [] if settings is None else self._span_rows(settings, request, tokens)
        return self._prefilled(generated, list(tokens), settings, exact, reset=reset)

    def _asked(self, ridgefill: bool | Mapping[str, Any] | None) -> _Request:
        """What a call with this keyword asks for; None: what the call asks for within which it is made."""
        if ridgefill is None and self._request is not None:
            return self._request
        if not (ridgefill is None or isinstance(ridgefill, (bool, Mapping))):
            raise UsageError(f"ridgefill: expected True, False or a mapping of settings, found {ridgefill!r}")
        if ridgefill is False or (ridgefill is None and self._fill is None):
            return _Request(None)
        if self._fill is None:
            raise UsageError("ridgefill: this object has no maps", "Llama(..., ridgefill=True) finds them")
        if isinstance(ridgefill, Mapping):
            return _Request(self._fill.ask(ridgefill), has_spans="spans" in ridgefill)
        return _Request(self._fill.config)

    def _run(self, request: _Request, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call whose prompt is filled as requested, also if it is a stream that computes later."""

        def step(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            before, self._request = self._request, request
            try:
                return function(*args, **kwargs)
            finally:
                self._request = before

        def steps(stream: Iterator[Any]) -> Iterator[Any]:
            end = object()
            try:
                while (item := step(next, stream, end)) is not end:
                    yield item
            finally:
                if isinstance(stream, Generator):
                    stream.close()

        answer = step(call, *args, **kwargs)
        return steps(answer) if isinstance(answer, Iterator) else answer

    def _span_rows(self, settings: RidgeFillConfig, request: _Request, tokens: Sequence[int]) -> list[tuple[int, int]]:
        if not settings.spans:
            return []
        if request.has_spans:
            check_ends(settings.spans, len(tokens), request.text)
        pieces = [self._model.detokenize([token], special=True) for token in tokens]
        return span_rows(settings.spans, pieces, request.text)

    def _prefilled(
        self,
        generated: Generator[int, Sequence[int] | None, None],
        tokens: list[int],
        settings: RidgeFillConfig | None,
        exact_rows: Sequence[tuple[int, int]],
        *,
        reset: bool,
    ) -> Generator[int, Any, None]:
        """Plan the prompt, and pass tokens on; what is computed until the first one belongs to the prompt."""
        maps = self._fill
        ranges = [] if maps is None or settings is None else maps.plan(len(tokens), exact_rows, settings)
        if reset:
            # asked without maps as well: a loaded state may hold filled cells
            self._drop_unusable(tokens, ranges)
        if maps is None:
            yield from generated
            return
        # a prompt that is there as a whole keeps what it selected: its last row alone would ask for other rows
        selection, last, self._selection = (len(tokens), ranges, settings), self._selection, None
        repeated = reset and selection == last and self._cached_prefix(tokens) >= len(tokens) - 1
        with closing(generated):
            try:
                self._batch.filled = maps.begin(0, len(tokens), ranges, selects=not repeated, config=settings)
                before = fill.counters(self._ctx.ctx)
                try:
                    token = next(generated)
                finally:
                    # the plan is for this prompt only
                    self._batch.filled = maps.begin(0, 0, [])
                after = fill.counters(self._ctx.ctx)
                filled, exact = after.n_filled - before.n_filled, after.n_exact - before.n_exact
                selected = after.n_selected - before.n_selected
                self._selection = selection
                self.fill_stats = fill.FillStats(len(tokens) - filled - exact, filled, exact, selected)
                while True:
                    token = generated.send((yield token))
            except StopIteration:
                return

    def save_state(self) -> Any:
        """See `llama_cpp.Llama.save_state`; of a filled prompt that class gets only the exact rows at the start."""
        state: Any = super().save_state()
        # it does not ask which cells are exact; `load_state` takes all
        state.n_tokens_filled = state.n_tokens
        state.n_tokens = fill.reusable(self._ctx.ctx, 0, [], self.n_tokens)
        state.scores = state.scores[: state.n_tokens]
        return state

    def load_state(self, state: Any) -> None:
        """See `llama_cpp.Llama.load_state`; which cells were filled is part of the state."""
        super().load_state(state)
        self.n_tokens = getattr(state, "n_tokens_filled", state.n_tokens)
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


# what others call it
_OTHER_NAMES = {"maps": "ridgefill", "maps_path": "ridgefill", "config": "ridgefill"}


def _check_names(kwargs: dict[str, Any]) -> None:
    """`llama_cpp.Llama` drops keywords that it does not know; a misspelt one would leave a plain model."""
    known = {*inspect.signature(_Llama.__init__).parameters, "ridgefill"} - {"self", "model_path", "kwargs"}
    for name in kwargs:
        if name not in known:
            near = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else difflib.get_close_matches(name, known, 1, 0.5)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"Llama: unknown keyword {name!r}{hint}")


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
