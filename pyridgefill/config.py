"""How `Llama(..., ridgefill=...)` fills: the configuration object, and where maps are found."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NoReturn

from pyridgefill._library import installed_folder
from pyridgefill.errors import MapsError, UsageError
from pyridgefill.maps.base import read_base_model
from pyridgefill.maps.read import read_maps
from pyridgefill.spans import Span, parse_span

_log = logging.getLogger(__name__)

# maps files beside a model are called <model without .gguf><suffix>
MAPS_SUFFIX = ".ridgefill.gguf"

# numbers are int32_t in the engine
_MOST = 2**31 - 1


@dataclass(frozen=True)
class RidgeFillConfig:
    """Settings of fill; None takes what the maps file recommends.

    Attributes
    ----------
    maps
        Path of a maps file; None looks for one, see `find_maps`.
    split
        Which of the file's splits to use.
    sink, tail
        Rows at the start and at the end of each prompt that run exact.
    min_prompt
        Shorter prompts run exact.
    spans
        More rows that run exact: `(start, end)` token positions, short for `{"tokens": (start, end)}`, or
        `{"chars": (start, end)}`, code points of a prompt that is given as a text; a row that is partly inside counts.
        What lies beyond a prompt is left out. A call can name others, which must be within its prompt.
    skip_fingerprint
        Accept maps of another model of the same shape.
    select
        None: what the maps file recommends, and no selection with a warning where the model's memory does not allow
        it. Filled rows that run through all layers after all, before the tail does: `attention` takes those that the
        retrieval heads of the prompt's last rows attend to, `stride` blocks at equal distances (a control).
    budget
        How many rows are selected: a share of the filled rows, up to 1; with 0 rows are scored, and none is taken.
    heads
        Retrieval heads as `(layer, head)`, in layers below the split; none: those of the maps file.
    pool
        A row's score counts for the rows around it too: half with every so many rows before and after it.
    queries
        The last `queries` rows of the prompt ask.
    keep_states
        Keep the split state of every row, which `Llama.heal` needs; selection keeps them anyway.
    """

    maps: str | os.PathLike[str] | None = None
    split: int | None = None
    sink: int | None = None
    tail: int | None = None
    min_prompt: int | None = None
    spans: tuple[Span, ...] = ()
    skip_fingerprint: bool = False
    select: Literal["none", "stride", "attention"] | None = None
    budget: float | None = None
    heads: tuple[tuple[int, int], ...] = ()
    pool: tuple[int, int] | None = None
    queries: int | None = None
    keep_states: bool = False

    def __post_init__(self) -> None:
        _check("RidgeFillConfig.", {name: value for name, value in vars(self).items() if value is not None})

    def requested(self, request: Mapping[str, Any], split: int) -> RidgeFillConfig:
        """The settings for one prompt whose caller gave an object of requests, see docs/server.md.

        Parameters
        ----------
        request
            `tail`, `sink`, `min_prompt`, `select`, `budget`, `spans`, and `split`, which must be the one in use.
        split
            The one in use.

        Raises
        ------
        UsageError
            Names the key that is unknown or whose value has another type or is out of range.
        """
        for key in request:
            if key not in _REQUEST_KEYS:
                raise UsageError(f"ridgefill: unknown key {key!r}, expected {', '.join(_REQUEST_KEYS)}")
        given = dict(request)
        if given.get("select") == "spans":
            if not given.get("spans", self.spans):
                raise UsageError("ridgefill: select spans has no effect without spans")
            given["select"] = "none"
        _check("ridgefill: ", given)
        if given.get("budget") == 0:
            raise UsageError("ridgefill: budget: expected a share above 0 and up to 1, found 0")
        if given.pop("split", split) != split:
            raise UsageError(f"ridgefill: split must be the one in use, {split}, found {request['split']}")
        return replace(self, **{**given, "spans": tuple(given.get("spans", self.spans))})


_REQUEST_KEYS = ("tail", "sink", "min_prompt", "split", "spans", "select", "budget")

_LEASTS = {"split": 0, "sink": 0, "tail": 1, "min_prompt": 0, "queries": 1}


def _check(owner: str, settings: Mapping[str, Any]) -> None:
    """Raise a UsageError if a setting has no value that the engine can take; `owner` starts the message."""

    def fail(name: str, expected: str) -> NoReturn:
        raise UsageError(f"{owner}{name}: expected {expected}, found {settings[name]!r}")

    for name, value in settings.items():
        is_whole, is_number = (isinstance(value, kind) and not isinstance(value, bool) for kind in (Integral, Real))
        if name in _LEASTS:
            if not is_whole:
                fail(name, "a whole number")
            # the engine would take the rest modulo 2**32
            if not _LEASTS[name] <= value <= _MOST:
                fail(name, f"{_LEASTS[name]} to {_MOST}")
        elif name == "select" and value not in ("none", "stride", "attention"):
            fail(name, "none, stride or attention")
        elif name == "budget" and not (is_number and 0 <= value <= 1):
            fail(name, "a share of the filled rows up to 1")
        elif name == "pool" and not (_are_ints(value, 2) and min(value) >= 0 and max(value) <= _MOST):
            fail(name, f"rows before and after a row from 0 to {_MOST}")
        elif name in ("heads", "spans") and not isinstance(value, (tuple, list)):
            fail(name, "a list")
    for item in settings.get("heads", ()):
        if not (_are_ints(item, 2) and 0 <= item[0] <= _MOST and -1 <= item[1] <= _MOST):
            fail("heads", "pairs of a layer and a head of it, like (9, 6)")
    for span in settings.get("spans", ()):
        try:
            parse_span(span)
        except UsageError as error:
            raise UsageError(f"{owner}spans: {error}") from None


def _are_ints(values: object, count: int) -> bool:
    return (
        isinstance(values, (tuple, list))
        and len(values) == count
        and all(isinstance(value, Integral) for value in values)
    )


def resolve_config(
    ridgefill: bool | str | os.PathLike[str] | RidgeFillConfig, model_path: str | os.PathLike[str]
) -> RidgeFillConfig | None:
    """The configuration that the keyword `ridgefill` stands for, with the maps' path filled in; None for False.

    Raises
    ------
    MapsError
        If no maps file is found.
    TypeError
        If the value has none of the types.
    """
    if ridgefill is False:
        return None
    if ridgefill is True:
        config = RidgeFillConfig()
    elif isinstance(ridgefill, RidgeFillConfig):
        config = ridgefill
    elif isinstance(ridgefill, (str, os.PathLike)):
        config = RidgeFillConfig(maps=ridgefill)
    else:
        raise TypeError(f"ridgefill: expected a bool, a path or a RidgeFillConfig, found {type(ridgefill).__name__}")
    if config.maps is None:
        config = replace(config, maps=find_maps(model_path))
    if not Path(str(config.maps)).is_file():
        raise MapsError(f"{config.maps}: no such maps file", "pyridgefill calibrate makes one")
    return config


def find_maps(model_path: str | os.PathLike[str]) -> Path:
    """The maps file of a model: beside the model by name, else in `gguf_maps` by fingerprint.

    `model.ridgefill.gguf` is beside `model.gguf` or `model.GGUF`; of a link, also beside the file that it points to.
    A file in `gguf_maps` that cannot be read is left out, with a warning.

    Raises
    ------
    MapsError
        If there is none.
    """
    model = Path(model_path)
    places = dict.fromkeys(maps_beside(path) for path in (model, model.resolve()))
    for beside in places:
        if beside.is_file():
            return beside
    base = read_base_model(model)
    folders = [folder for folder in _maps_folders() if folder.is_dir()]
    for folder in folders:
        for path in sorted(folder.glob(f"*{MAPS_SUFFIX}")):
            try:
                if read_maps(path).base == base:
                    return path
            except MapsError as error:
                _log.warning("left out while looking for maps: %s", error)
    looked = ", ".join(map(str, (*places, *folders)))
    raise MapsError(
        f"no maps for {model} (looked for {looked})",
        f"pyridgefill calibrate {model} -o {maps_beside(model)} makes them",
    )


def maps_beside(model: Path) -> Path:
    """Where the maps of a model are looked for first."""
    return model.with_name(re.sub(r"\.gguf$", "", model.name, flags=re.IGNORECASE) + MAPS_SUFFIX)


def _maps_folders() -> Iterator[Path]:
    yield installed_folder("gguf_maps")
    yield Path(__file__).resolve().parents[1] / "gguf_maps"
