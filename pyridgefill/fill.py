"""Maps set in a context: plan, marks and counters behind one small object."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyridgefill import _native
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import UsageError
from pyridgefill.spans import span_rows


@dataclass(frozen=True)
class FillStats:
    """Rows of the last prompt: kept from before, filled, run through the full model; selected ones are filled first."""

    reused: int
    filled: int
    exact: int
    selected: int = 0


class Fill:
    """Maps loaded for a model and set in a context.

    Parameters
    ----------
    model, context
        Native pointers; both must outlive this object, see `close`.
    config
        With `maps` set.

    Raises
    ------
    NativeError
        With the library's reason, if the maps do not fit the model or the context.
    """

    def __init__(self, model: Any, context: Any, config: RidgeFillConfig) -> None:
        self._context = context
        self.config = config
        params = _native.llama_ridgefill_default_params()
        params.skip_fingerprint = config.skip_fingerprint
        self._maps = _native.llama_ridgefill_init(model, os.fsencode(str(config.maps)), params)
        _native.check(bool(self._maps), "RidgeFill")
        try:
            context_params = _native.llama_ridgefill_default_context_params()
            if config.split is not None:
                context_params.split = config.split
            self._defaults = _native.llama_ridgefill_default_select_params(self._maps or 0, context_params.split)
            self._budget = _native.llama_ridgefill_default_budget(self._maps or 0)
            self.select = self._find_select()
            self._keeps_states = context_params.keep_states = config.keep_states or self.select != "none"
            _native.check(_native.llama_set_ridgefill(context, self._maps, context_params) == 0, "RidgeFill")
        except BaseException:
            self.close()
            raise

    def _find_select(self) -> str:
        """How rows are selected; what the maps recommend is left out where the context cannot do it."""
        if self.config.select is not None:
            return self.config.select
        select = next(name for name, value in _SELECT.items() if value == self._defaults.type)
        if select != "none" and not _native.llama_ridgefill_can_keep_states(self._context):
            reason = _native.llama_ridgefill_last_error().decode("utf-8", errors="replace")
            warnings.warn(f"RidgeFill selects no rows, though the maps recommend it: {reason}", stacklevel=4)
            return "none"
        return select

    @property
    def split(self) -> int:
        """The split in use."""
        return _native.llama_ridgefill_ctx_split(self._context)

    def ask(self, request: Mapping[str, Any]) -> RidgeFillConfig:
        """The settings for one prompt whose caller gave an object, see `RidgeFillConfig.requested`.

        Raises
        ------
        UsageError
            Also if rows cannot be selected as asked with these maps in this context.
        """
        config = self.config.requested(request, self.split)
        select = config.select or self.select
        if select != "none" and not self._keeps_states:
            raise UsageError(
                f"ridgefill: select {select} needs split states, which this object does not keep",
                "make it with RidgeFillConfig(keep_states=True), or with a selection",
            )
        if select == "attention" and not (config.heads or self._defaults.n_heads):
            raise UsageError("ridgefill: select attention needs retrieval heads", "pyridgefill heads finds them")
        if "budget" in request and select == "none":
            raise UsageError("ridgefill: budget has no effect without select")
        return config

    def _plan_params(self, config: RidgeFillConfig) -> _native.llama_ridgefill_plan_params:
        params = _native.llama_ridgefill_default_plan_params(self._maps or 0)
        for name in ("sink", "tail", "min_prompt"):
            value = getattr(config, name)
            if value is not None:
                setattr(params, name, value)
        return params

    def plan(
        self,
        n_prompt: int,
        exact: Sequence[tuple[int, int]] | None = None,
        config: RidgeFillConfig | None = None,
    ) -> list[tuple[int, int]]:
        """Ranges of rows to fill in a prompt of `n_prompt` tokens.

        Parameters
        ----------
        n_prompt
            Tokens of the prompt.
        exact
            Rows that must run exact, in any order; None: the configuration's spans, which must be of tokens.
        config
            The prompt's settings, see `ask`; None: those of all prompts.
        """
        config = config or self.config
        if exact is None:
            exact = span_rows(config.spans, [b""] * n_prompt, None)
        params = self._plan_params(config)
        params.exact, params.n_exact = to_native(exact), len(exact)
        ranges = (_native.llama_ridgefill_range * _native.LLAMA_RIDGEFILL_MAX_RANGES)()
        count = _native.llama_ridgefill_plan(params, n_prompt, ranges, len(ranges))
        _native.check(count >= 0, "RidgeFill plan")
        return [(ranges[i].p0, ranges[i].p1) for i in range(count)]

    def begin(
        self,
        sequence: int,
        n_prompt: int,
        ranges: Sequence[tuple[int, int]],
        *,
        selects: bool = True,
        config: RidgeFillConfig | None = None,
    ) -> list[tuple[int, int]]:
        """Fill `ranges` of the prompt that follows, and select among them if `selects`.

        Returns
        -------
        list
            Ranges of rows that have no logits: the filled ones, and with selection the tail but for its last row.
        """
        mark(self._context, sequence, ranges)
        config = config or self.config
        tail, select = self._plan_params(config).tail, config.select or self.select
        selects = selects and select != "none" and bool(ranges)
        n_filled = sum(end - start for start, end in ranges)
        params = _native.llama_ridgefill_select_params(
            _SELECT[select if selects else "none"],
            round((self._budget if config.budget is None else config.budget) * n_filled),
            *(config.pool or (self._defaults.n_before, self._defaults.n_after)),
            config.queries or self._defaults.n_query,
            (_native.llama_ridgefill_head * max(1, len(config.heads)))(
                *[_native.llama_ridgefill_head(*head) for head in config.heads]
            ),
            len(config.heads),
        )
        done = _native.llama_ridgefill_seq_select(self._context, sequence, max(1, n_prompt), tail, params)
        _native.check(done == 0, "RidgeFill select")
        return [*ranges, (n_prompt - tail, n_prompt - 1)] if selects else list(ranges)

    def close(self) -> None:
        """Take the maps out of the context and free them; call it before context and model are freed."""
        if self._maps:
            _native.llama_set_ridgefill(self._context, None, _native.llama_ridgefill_default_context_params())
            _native.llama_ridgefill_free(self._maps)
        self._maps = None


_SELECT = {
    "none": _native.LLAMA_RIDGEFILL_SELECT_NONE,
    "stride": _native.LLAMA_RIDGEFILL_SELECT_STRIDE,
    "attention": _native.LLAMA_RIDGEFILL_SELECT_ATTENTION,
}


def to_native(ranges: Sequence[tuple[int, int]]) -> ctypes.Array[_native.llama_ridgefill_range]:
    """A C array of ranges."""
    structs = [_native.llama_ridgefill_range(*span) for span in ranges]
    return (_native.llama_ridgefill_range * max(1, len(structs)))(*structs)


def mark(context: Any, sequence: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Let the next decodes fill these rows of a sequence and run the others exact."""
    done = _native.llama_ridgefill_seq_mark(context, sequence, to_native(ranges), len(ranges))
    _native.check(done == 0, "RidgeFill mark")


def reusable(context: Any, sequence: int, ranges: Sequence[tuple[int, int]], n_past: int) -> int:
    """How many of the first `n_past` cached positions a prompt with these filled ranges can keep."""
    count = _native.llama_ridgefill_seq_reusable(context, sequence, to_native(ranges), len(ranges), n_past)
    _native.check(count >= 0, "RidgeFill reuse")
    return count


def n_filled(context: Any, sequence: int, start: int = 0, end: int = -1) -> int:
    """Filled cells of a sequence in `[start, end)`, to its end if `end` is negative."""
    return _native.llama_ridgefill_seq_n_filled(context, sequence, start, end)


def counters(context: Any) -> _native.llama_ridgefill_counters:
    """Rows and times since the context was made."""
    return _native.llama_ridgefill_get_counters(context)


def heal(context: Any, sequence: int, n_max: int) -> int:
    """Replace the next rows that are not those of an exact prefill, `n_max` at most; return how many."""
    count = _native.llama_ridgefill_seq_heal(context, sequence, n_max)
    _native.check(count >= 0, "RidgeFill heal")
    return count


COMPONENTS = {
    "K": _native.LLAMA_RIDGEFILL_COMPONENT_K,
    "V": _native.LLAMA_RIDGEFILL_COMPONENT_V,
    "state": _native.LLAMA_RIDGEFILL_COMPONENT_STATE,
}


def layer_components(context: Any, layer: int) -> tuple[str, ...]:
    """Which of `COMPONENTS` a layer keeps in the memory; none if it reads those of an earlier layer."""
    flags = _native.llama_ridgefill_layer_components(context, layer)
    _native.check(flags >= 0, "RidgeFill splice")
    return tuple(name for name, flag in COMPONENTS.items() if flags & flag)


def splice(
    context: Any,
    source: int,
    target: int,
    layers: tuple[int, int],
    components: Sequence[str],
    rows: tuple[int, int] = (-1, -1),
) -> None:
    """Replace parts of what a sequence holds by what another one holds.

    Parameters
    ----------
    context
        Native pointer.
    source, target
        Sequences.
    layers
        First and last layer.
    components
        Some of `COMPONENTS`; each must occur in these layers.
    rows
        Positions `[start, end)`; negative: from the start, to the end.
    """
    flags = sum(COMPONENTS[name] for name in set(components))
    done = _native.llama_ridgefill_seq_splice(context, source, target, *rows, *layers, flags)
    _native.check(done == 0, "RidgeFill splice")
