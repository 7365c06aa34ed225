"""ctypes prototypes of llama-ridgefill.h, resolved on first use so that the stock library can be loaded as well."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from llama_cpp import llama_cpp


class RidgeFillError(RuntimeError):
    """What llama_ridgefill_last_error says."""


class Params(ctypes.Structure):
    _fields_ = [("skip_fingerprint", c_bool)]


class ContextParams(ctypes.Structure):
    _fields_ = [("split", c_int32), ("keep_states", c_bool), ("type_states", c_int32)]


class Head(ctypes.Structure):
    _fields_ = [("layer", c_int32), ("head", c_int32)]


class SelectParams(ctypes.Structure):
    _fields_ = [
        ("type", c_int32),
        ("budget", c_int32),
        ("n_pool", c_int32),
        ("n_query", c_int32),
        ("heads", POINTER(Head)),
        ("n_heads", c_size_t),
    ]


SELECT = {"none": 0, "stride": 1, "attention": 2}


class Range(ctypes.Structure):
    _fields_ = [("p0", c_int32), ("p1", c_int32)]


class PlanParams(ctypes.Structure):
    _fields_ = [
        ("sink", c_int32),
        ("tail", c_int32),
        ("min_prompt", c_int32),
        ("exact", POINTER(Range)),
        ("n_exact", c_size_t),
    ]


class Counters(ctypes.Structure):
    _fields_ = [
        ("n_exact", c_int64),
        ("n_filled", c_int64),
        ("n_selected", c_int64),
        ("n_healed", c_int64),
        ("n_ubatch_exact", c_int64),
        ("n_ubatch_filled", c_int64),
        ("t_exact_us", c_int64),
        ("t_filled_us", c_int64),
    ]


class Fingerprint(ctypes.Structure):
    _fields_ = [("vocab", ctypes.c_char * 17), ("weights", ctypes.c_char * 17)]


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "llama_ridgefill_api_version": (c_uint32, []),
    "llama_ridgefill_last_error": (c_char_p, []),
    "llama_ridgefill_model_fingerprint": (Fingerprint, [c_void_p]),
    "llama_ridgefill_default_params": (Params, []),
    "llama_ridgefill_init": (c_void_p, [c_void_p, c_char_p, Params]),
    "llama_ridgefill_free": (None, [c_void_p]),
    "llama_ridgefill_meta_val_str": (c_int32, [c_void_p, c_char_p, c_char_p, c_size_t]),
    "llama_ridgefill_meta_count": (c_int32, [c_void_p]),
    "llama_ridgefill_meta_key_by_index": (c_int32, [c_void_p, c_int32, c_char_p, c_size_t]),
    "llama_ridgefill_meta_val_str_by_index": (c_int32, [c_void_p, c_int32, c_char_p, c_size_t]),
    "llama_ridgefill_n_splits": (c_int32, [c_void_p]),
    "llama_ridgefill_split": (c_int32, [c_void_p, c_int32]),
    "llama_ridgefill_size": (c_size_t, [c_void_p]),
    "llama_ridgefill_hash": (c_uint64, [c_void_p]),
    "llama_ridgefill_default_context_params": (ContextParams, []),
    "llama_set_ridgefill": (c_int32, [c_void_p, c_void_p, ContextParams]),
    "llama_ridgefill_ctx_split": (c_int32, [c_void_p]),
    "llama_ridgefill_default_plan_params": (PlanParams, [c_void_p]),
    "llama_ridgefill_plan": (c_int32, [PlanParams, c_int32, POINTER(Range), c_int32]),
    "llama_ridgefill_seq_mark": (c_int32, [c_void_p, c_int32, POINTER(Range), c_int32]),
    "llama_ridgefill_seq_reusable": (c_int32, [c_void_p, c_int32, POINTER(Range), c_int32, c_int32]),
    "llama_ridgefill_seq_n_filled": (c_int32, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_ridgefill_seq_select": (c_int32, [c_void_p, c_int32, c_int32, c_int32, SelectParams]),
    "llama_ridgefill_n_selected": (c_int32, [c_void_p]),
    "llama_ridgefill_selected": (POINTER(c_int32), [c_void_p]),
    "llama_ridgefill_n_score_heads": (c_int32, [c_void_p]),
    "llama_ridgefill_head_scores": (POINTER(c_float), [c_void_p, c_int32]),
    "llama_ridgefill_seq_upper": (c_int32, [c_void_p, c_int32, POINTER(c_int32), c_int32]),
    "llama_ridgefill_seq_heal": (c_int32, [c_void_p, c_int32, c_int32]),
    "llama_ridgefill_get_counters": (Counters, [c_void_p]),
    "llama_ridgefill_reset_counters": (None, [c_void_p]),
    "llama_ridgefill_capture": (c_int32, [c_void_p, c_int32]),
    "llama_ridgefill_n_sites": (c_int32, [c_void_p]),
    "llama_ridgefill_site_name": (c_char_p, [c_void_p, c_int32]),
    "llama_ridgefill_site_layer": (c_int32, [c_void_p, c_int32]),
    "llama_ridgefill_site_width": (c_int32, [c_void_p, c_int32]),
    "llama_ridgefill_site_data": (POINTER(c_float), [c_void_p, c_int32]),
}


def __getattr__(name: str) -> Any:
    if name not in _PROTOTYPES:
        raise AttributeError(name)
    function = getattr(llama_cpp._lib, name)
    function.restype, function.argtypes = _PROTOTYPES[name]
    globals()[name] = function
    return function


def last_error() -> str:
    return str(__getattr__("llama_ridgefill_last_error")().decode())


def ranges(pairs: Sequence[tuple[int, int]]) -> Any:
    return (Range * max(1, len(pairs)))(*[Range(*pair) for pair in pairs])
