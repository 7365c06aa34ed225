"""Maps set in a context: plan, marks and counters behind one small object."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyridgefill import _native
from pyridgefill.config import RidgeFillConfig
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
            self.select = self._find_select()
            context_params.keep_states = config.keep_states or self.select != "none"
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

    @property
    def budget(self) -> float:
        """How many rows are selected, as in the configuration or as the maps recommend."""
        if self.config.budget is not None:
            return self.config.budget
        return _native.llama_ridgefill_default_budget(self._maps or 0)

    @property
    def pool(self) -> tuple[int, int]:
        """Rows before and after a row that its score counts for, too."""
        return self.config.pool or (self._defaults.n_before, self._defaults.n_after)

    @property
    def queries(self) -> int:
        """Last rows of a prompt that ask."""
        return self.config.queries or int(self._defaults.n_query)

    def _plan_params(self) -> _native.llama_ridgefill_plan_params:
        params = _native.llama_ridgefill_default_plan_params(self._maps or 0)
        for name in ("sink", "tail", "min_prompt"):
            value = getattr(self.config, name)
            if value is not None:
                setattr(params, name, value)
        return params

    def plan(self, n_prompt: int, exact: Sequence[tuple[int, int]] | None = None) -> list[tuple[int, int]]:
        """Ranges of rows to fill in a prompt of `n_prompt` tokens.

        Parameters
        ----------
        n_prompt
            Tokens of the prompt.
        exact
            Rows that must run exact, in any order; None: the configuration's spans, which must be of tokens.
        """
        if exact is None:
            exact = span_rows(self.config.spans, [b""] * n_prompt, None)
        params = self._plan_params()
        params.exact, params.n_exact = to_native(exact), len(exact)
        ranges = (_native.llama_ridgefill_range * _native.LLAMA_RIDGEFILL_MAX_RANGES)()
        count = _native.llama_ridgefill_plan(params, n_prompt, ranges, len(ranges))
        _native.check(count >= 0, "RidgeFill plan")
        return [(ranges[i].p0, ranges[i].p1) for i in range(count)]

    def begin(
        self, sequence: int, n_prompt: int, ranges: Sequence[tuple[int, int]], *, selects: bool = True
    ) -> list[tuple[int, int]]:
        """Fill `ranges` of the prompt that follows, and select among them if `selects`.

        Returns
        -------
        list
            Ranges of rows that have no logits: the filled ones, and with selection the tail but for its last row.
        """
        mark(self._context, sequence, ranges)
        config, tail = self.config, self._plan_params().tail
        selects = selects and self.select != "none" and bool(ranges)
        n_filled = sum(end - start for start, end in ranges)
        budget = self.budget
        params = _native.llama_ridgefill_select_params(
            _SELECT[self.select] if selects else _SELECT["none"],
            round(budget * n_filled) if budget <= 1 else round(budget),
            *self.pool,
            self.queries,
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
