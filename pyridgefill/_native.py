"""Bindings of llama-ridgefill.h and llama-ridgefill-lab.h: the C declaration as comment, then the function.

Importing this module loads the native library; modules that only compute import it inside their functions.
"""

# the functions below are declarations
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from pyridgefill._library import import_llama_cpp, library_folder
from pyridgefill.errors import NativeError

llama_cpp = import_llama_cpp()

_F = TypeVar("_F", bound=Callable[..., Any])


def _function(name: str, argtypes: list[Any], restype: Any) -> Callable[[_F], _F]:
    try:
        function = getattr(llama_cpp._lib, name)
    except AttributeError as error:
        raise NativeError(
            f"the library in {library_folder()} has no {name}: it is a llama.cpp without RidgeFill",
            "install the package with pip, or set RIDGEFILL_LIB_PATH to a build of the patched llama.cpp",
        ) from error
    function.argtypes = argtypes
    function.restype = restype

    def decorator(declaration: _F) -> _F:
        function.__doc__ = declaration.__doc__
        return function  # type: ignore[no-any-return]

    return decorator


# // version of this interface; a binding compares it with the one it was written for
# #define LLAMA_RIDGEFILL_API_VERSION 2
LLAMA_RIDGEFILL_API_VERSION = 2

# #define LLAMA_RIDGEFILL_MAX_RANGES 1024
LLAMA_RIDGEFILL_MAX_RANGES = 1024

# #define LLAMA_RIDGEFILL_MAX_HEADS  32 // that score in one graph
LLAMA_RIDGEFILL_MAX_HEADS = 32

# struct llama_ridgefill;
llama_ridgefill_p = ctypes.c_void_p


# LLAMA_API uint32_t llama_ridgefill_api_version(void);
@_function("llama_ridgefill_api_version", [], ctypes.c_uint32)
def llama_ridgefill_api_version() -> int: ...


if llama_ridgefill_api_version() != LLAMA_RIDGEFILL_API_VERSION:
    raise NativeError(
        f"the library in {library_folder()} has RidgeFill API version {llama_ridgefill_api_version()}, "
        f"expected {LLAMA_RIDGEFILL_API_VERSION}",
        "build the library and install the package from the same source",
    )


# // one line that says why the last call on this thread failed, with a hint; "" if none did
# LLAMA_API const char * llama_ridgefill_last_error(void);
@_function("llama_ridgefill_last_error", [], ctypes.c_char_p)
def llama_ridgefill_last_error() -> bytes: ...


# // identity of a model as stored in maps files: 16 hex digits each
# struct llama_ridgefill_fingerprint {
#     char vocab[17];   // over the token texts
#     char weights[17]; // over a fixed sample of bytes of the norm weights
# };
class llama_ridgefill_fingerprint(ctypes.Structure):  # noqa: N801
    _fields_ = (("vocab", ctypes.c_char * 17), ("weights", ctypes.c_char * 17))


# // both are "" for a model without a vocabulary
# LLAMA_API struct llama_ridgefill_fingerprint llama_ridgefill_model_fingerprint(const struct llama_model * model);
@_function("llama_ridgefill_model_fingerprint", [llama_cpp.llama_model_p_ctypes], llama_ridgefill_fingerprint)
def llama_ridgefill_model_fingerprint(model: int, /) -> llama_ridgefill_fingerprint: ...


# struct llama_ridgefill_params {
#     bool skip_fingerprint; // accept maps that were made for another model of the same shape
# };
class llama_ridgefill_params(ctypes.Structure):  # noqa: N801
    _fields_ = (("skip_fingerprint", ctypes.c_bool),)


# LLAMA_API struct llama_ridgefill_params llama_ridgefill_default_params(void);
@_function("llama_ridgefill_default_params", [], llama_ridgefill_params)
def llama_ridgefill_default_params() -> llama_ridgefill_params: ...


# // load and check a maps file; every tensor is placed in the device memory of the layer that it serves
# // returns NULL on error, see llama_ridgefill_last_error
# // the maps must be freed before the model, and after every context that uses them
# LLAMA_API struct llama_ridgefill * llama_ridgefill_init(
#         struct llama_model          * model,
#         const char                  * path,
#         struct llama_ridgefill_params params);
@_function(
    "llama_ridgefill_init",
    [llama_cpp.llama_model_p_ctypes, ctypes.c_char_p, llama_ridgefill_params],
    llama_ridgefill_p,
)
def llama_ridgefill_init(model: int, path: bytes, params: llama_ridgefill_params, /) -> int | None: ...


# LLAMA_API void llama_ridgefill_free(struct llama_ridgefill * maps);
@_function("llama_ridgefill_free", [llama_ridgefill_p], None)
def llama_ridgefill_free(maps: int, /) -> None: ...


# // metadata, as for LoRA adapters
# LLAMA_API int32_t llama_ridgefill_meta_val_str(
#         const struct llama_ridgefill * maps, const char * key, char * buf, size_t buf_size);
@_function(
    "llama_ridgefill_meta_val_str",
    [llama_ridgefill_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
    ctypes.c_int32,
)
def llama_ridgefill_meta_val_str(maps: int, key: bytes, buf: Any, buf_size: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_meta_count(const struct llama_ridgefill * maps);
@_function("llama_ridgefill_meta_count", [llama_ridgefill_p], ctypes.c_int32)
def llama_ridgefill_meta_count(maps: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_meta_key_by_index(
#         const struct llama_ridgefill * maps, int32_t i, char * buf, size_t buf_size);
@_function(
    "llama_ridgefill_meta_key_by_index",
    [llama_ridgefill_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t],
    ctypes.c_int32,
)
def llama_ridgefill_meta_key_by_index(maps: int, i: int, buf: Any, buf_size: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_meta_val_str_by_index(
#         const struct llama_ridgefill * maps, int32_t i, char * buf, size_t buf_size);
@_function(
    "llama_ridgefill_meta_val_str_by_index",
    [llama_ridgefill_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t],
    ctypes.c_int32,
)
def llama_ridgefill_meta_val_str_by_index(maps: int, i: int, buf: Any, buf_size: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_n_splits(const struct llama_ridgefill * maps);
@_function("llama_ridgefill_n_splits", [llama_ridgefill_p], ctypes.c_int32)
def llama_ridgefill_n_splits(maps: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_split(const struct llama_ridgefill * maps, int32_t i);
@_function("llama_ridgefill_split", [llama_ridgefill_p, ctypes.c_int32], ctypes.c_int32)
def llama_ridgefill_split(maps: int, i: int, /) -> int: ...


# LLAMA_API size_t llama_ridgefill_size(const struct llama_ridgefill * maps); // bytes on all devices
@_function("llama_ridgefill_size", [llama_ridgefill_p], ctypes.c_size_t)
def llama_ridgefill_size(maps: int, /) -> int: ...


# LLAMA_API uint64_t llama_ridgefill_hash(const struct llama_ridgefill * maps); // over the file's content
@_function("llama_ridgefill_hash", [llama_ridgefill_p], ctypes.c_uint64)
def llama_ridgefill_hash(maps: int, /) -> int: ...


# struct llama_ridgefill_context_params {
#     int32_t split; // which of the file's splits to use, -1 = the recommended one
#
#     bool           keep_states; // keep the split state of every cached row, so that rows can be run again
#     enum ggml_type type_states; // F32, F16 or BF16; with F32 a healed cache equals an exact one
# };
class llama_ridgefill_context_params(ctypes.Structure):  # noqa: N801
    _fields_ = (("split", ctypes.c_int32), ("keep_states", ctypes.c_bool), ("type_states", ctypes.c_int))


# LLAMA_API struct llama_ridgefill_context_params llama_ridgefill_default_context_params(void);
@_function("llama_ridgefill_default_context_params", [], llama_ridgefill_context_params)
def llama_ridgefill_default_context_params() -> llama_ridgefill_context_params: ...


# // whether the memory of a context allows keep_states; if not (recurrent layers, sliding windows that drop cells),
# // llama_ridgefill_last_error says why
# LLAMA_API bool llama_ridgefill_can_keep_states(const struct llama_context * ctx);
@_function("llama_ridgefill_can_keep_states", [llama_cpp.llama_context_p_ctypes], ctypes.c_bool)
def llama_ridgefill_can_keep_states(ctx: int, /) -> bool: ...


# // use maps in a context, NULL to stop using them
# // refuses (non-zero, see llama_ridgefill_last_error) an architecture that the graph rewrite cannot serve
# LLAMA_API int32_t llama_set_ridgefill(
#         struct llama_context                * ctx,
#         struct llama_ridgefill              * maps,
#         struct llama_ridgefill_context_params params);
@_function(
    "llama_set_ridgefill",
    [llama_cpp.llama_context_p_ctypes, llama_ridgefill_p, llama_ridgefill_context_params],
    ctypes.c_int32,
)
def llama_set_ridgefill(ctx: int, maps: int | None, params: llama_ridgefill_context_params, /) -> int: ...


# // the split in use, -1 if no maps are set
# LLAMA_API int32_t llama_ridgefill_ctx_split(const struct llama_context * ctx);
@_function("llama_ridgefill_ctx_split", [llama_cpp.llama_context_p_ctypes], ctypes.c_int32)
def llama_ridgefill_ctx_split(ctx: int, /) -> int: ...


# // positions [p0, p1)
# struct llama_ridgefill_range {
#     llama_pos p0;
#     llama_pos p1;
# };
class llama_ridgefill_range(ctypes.Structure):  # noqa: N801
    _fields_ = (("p0", ctypes.c_int32), ("p1", ctypes.c_int32))


# struct llama_ridgefill_plan_params {
#     int32_t sink;       // first rows that run exact
#     int32_t tail;       // last rows of the prompt that run exact
#     int32_t min_prompt; // shorter prompts run exact
#
#     const struct llama_ridgefill_range * exact; // more rows that must run exact, in any order
#     size_t                             n_exact;
# };
class llama_ridgefill_plan_params(ctypes.Structure):  # noqa: N801
    _fields_ = (
        ("sink", ctypes.c_int32),
        ("tail", ctypes.c_int32),
        ("min_prompt", ctypes.c_int32),
        ("exact", ctypes.POINTER(llama_ridgefill_range)),
        ("n_exact", ctypes.c_size_t),
    )


# // the maps file's recommended settings, built-in ones where the file has none
# LLAMA_API struct llama_ridgefill_plan_params llama_ridgefill_default_plan_params(const struct llama_ridgefill * maps);
@_function("llama_ridgefill_default_plan_params", [llama_ridgefill_p], llama_ridgefill_plan_params)
def llama_ridgefill_default_plan_params(maps: int, /) -> llama_ridgefill_plan_params: ...


# // write the ranges to fill, ascending and disjoint
# // returns their number, 0 if all runs exact, -1 on bad parameters or if they do not fit
# LLAMA_API int32_t llama_ridgefill_plan(
#         struct llama_ridgefill_plan_params params,
#         int32_t                            n_prompt,
#         struct llama_ridgefill_range     * ranges,
#         int32_t                            n_max);
@_function(
    "llama_ridgefill_plan",
    [llama_ridgefill_plan_params, ctypes.c_int32, ctypes.POINTER(llama_ridgefill_range), ctypes.c_int32],
    ctypes.c_int32,
)
def llama_ridgefill_plan(params: llama_ridgefill_plan_params, n_prompt: int, ranges: Any, n_max: int, /) -> int: ...


# // rows of a sequence that llama_decode fills from now on, n = 0: none
# // replaces the earlier ranges; must be ascending and disjoint
# LLAMA_API int32_t llama_ridgefill_seq_mark(
#         struct llama_context               * ctx,
#         llama_seq_id                         seq_id,
#         const struct llama_ridgefill_range * ranges,
#         int32_t                              n);
@_function(
    "llama_ridgefill_seq_mark",
    [llama_cpp.llama_context_p_ctypes, ctypes.c_int32, ctypes.POINTER(llama_ridgefill_range), ctypes.c_int32],
    ctypes.c_int32,
)
def llama_ridgefill_seq_mark(ctx: int, seq_id: int, ranges: Any, n: int, /) -> int: ...


# // the number of leading positions of a cached sequence, at most n_past, that a prompt whose rows in `ranges` may be
# // filled can keep: cells that were filled where the new prompt asks for exact rows end the reusable prefix
# // n = 0 asks for an exact prompt
# LLAMA_API llama_pos llama_ridgefill_seq_reusable(
#         const struct llama_context         * ctx,
#         llama_seq_id                         seq_id,
#         const struct llama_ridgefill_range * ranges,
#         int32_t                              n,
#         llama_pos                            n_past);
@_function(
    "llama_ridgefill_seq_reusable",
    [
        llama_cpp.llama_context_p_ctypes,
        ctypes.c_int32,
        ctypes.POINTER(llama_ridgefill_range),
        ctypes.c_int32,
        ctypes.c_int32,
    ],
    ctypes.c_int32,
)
def llama_ridgefill_seq_reusable(ctx: int, seq_id: int, ranges: Any, n: int, n_past: int, /) -> int: ...


# // number of filled cells of a sequence in [p0, p1), p1 < 0: to the end
# LLAMA_API int32_t llama_ridgefill_seq_n_filled(
#         const struct llama_context * ctx, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
@_function(
    "llama_ridgefill_seq_n_filled",
    [llama_cpp.llama_context_p_ctypes, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32],
    ctypes.c_int32,
)
def llama_ridgefill_seq_n_filled(ctx: int, seq_id: int, p0: int, p1: int, /) -> int: ...


# enum llama_ridgefill_select {
LLAMA_RIDGEFILL_SELECT_NONE = 0
LLAMA_RIDGEFILL_SELECT_STRIDE = 1
LLAMA_RIDGEFILL_SELECT_ATTENTION = 2
# };


# // an attention head of a layer below the split
# struct llama_ridgefill_head {
#     int32_t layer;
#     int32_t head; // -1: each head of the layer, with scores of its own
# };
class llama_ridgefill_head(ctypes.Structure):  # noqa: N801
    _fields_ = (("layer", ctypes.c_int32), ("head", ctypes.c_int32))


# struct llama_ridgefill_select_params {
#     enum llama_ridgefill_select type;
#
#     int32_t budget;    // rows
#     int32_t n_before;  // a row passes its score on to the rows before it, half as much every n_before rows, 0: not
#     int32_t n_after;   // and to those after it: the answer often stands behind the words that a question repeats
#     int32_t n_query;   // last rows of the prompt whose queries score
#
#     const struct llama_ridgefill_head * heads; // NULL: those of the maps file
#     size_t                            n_heads;
# };
class llama_ridgefill_select_params(ctypes.Structure):  # noqa: N801
    _fields_ = (
        ("type", ctypes.c_int),
        ("budget", ctypes.c_int32),
        ("n_before", ctypes.c_int32),
        ("n_after", ctypes.c_int32),
        ("n_query", ctypes.c_int32),
        ("heads", ctypes.POINTER(llama_ridgefill_head)),
        ("n_heads", ctypes.c_size_t),
    )


# // the maps file's recommended settings for a split, -1 = the recommended one, built-in ones where the file has none
# // type NONE if the file has no heads for the split; budget 0; the heads live as long as the maps
# LLAMA_API struct llama_ridgefill_select_params llama_ridgefill_default_select_params(
#         const struct llama_ridgefill * maps, int32_t split);
@_function("llama_ridgefill_default_select_params", [llama_ridgefill_p, ctypes.c_int32], llama_ridgefill_select_params)
def llama_ridgefill_default_select_params(maps: int, split: int, /) -> llama_ridgefill_select_params: ...


# // the recommended budget, as a share of the filled rows
# LLAMA_API float llama_ridgefill_default_budget(const struct llama_ridgefill * maps);
@_function("llama_ridgefill_default_budget", [llama_ridgefill_p], ctypes.c_float)
def llama_ridgefill_default_budget(maps: int, /) -> float: ...


# // select among the rows that llama_ridgefill_seq_mark marked, for a prompt of n_prompt rows whose last `tail`
# // ones run exact: once llama_decode has seen the last row of the prompt, it runs the selected rows and then
# // the tail through the upper layers
# // only rows of the batch that ends the prompt can have logits; needs keep_states; call it after each seq_mark
# LLAMA_API int32_t llama_ridgefill_seq_select(
#         struct llama_context                * ctx,
#         llama_seq_id                          seq_id,
#         int32_t                               n_prompt,
#         int32_t                               tail,
#         struct llama_ridgefill_select_params  params);
@_function(
    "llama_ridgefill_seq_select",
    [
        llama_cpp.llama_context_p_ctypes,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int32,
        llama_ridgefill_select_params,
    ],
    ctypes.c_int32,
)
def llama_ridgefill_seq_select(
    ctx: Any, seq_id: int, n_prompt: int, tail: int, params: llama_ridgefill_select_params, /
) -> int: ...


# // of the last finished selection: the selected positions, and for each head the score of each position of the prompt,
# // pooled over its neighbours (n_before, n_after): rows are selected by the best score that any head gives them
# // valid until the next decode
# LLAMA_API int32_t llama_ridgefill_n_selected(const struct llama_context * ctx);
@_function("llama_ridgefill_n_selected", [llama_cpp.llama_context_p_ctypes], ctypes.c_int32)
def llama_ridgefill_n_selected(ctx: Any, /) -> int: ...


# LLAMA_API const llama_pos * llama_ridgefill_selected(const struct llama_context * ctx);
@_function("llama_ridgefill_selected", [llama_cpp.llama_context_p_ctypes], ctypes.POINTER(ctypes.c_int32))
def llama_ridgefill_selected(ctx: Any, /) -> Any: ...


# LLAMA_API int32_t llama_ridgefill_n_score_heads(const struct llama_context * ctx);
@_function("llama_ridgefill_n_score_heads", [llama_cpp.llama_context_p_ctypes], ctypes.c_int32)
def llama_ridgefill_n_score_heads(ctx: Any, /) -> int: ...


# LLAMA_API const float * llama_ridgefill_head_scores(const struct llama_context * ctx, int32_t i);
@_function(
    "llama_ridgefill_head_scores",
    [llama_cpp.llama_context_p_ctypes, ctypes.c_int32],
    ctypes.POINTER(ctypes.c_float),
)
def llama_ridgefill_head_scores(ctx: Any, i: int, /) -> Any: ...


# // whether the model has all of these heads, in layers below the split in use
# // returns 0, or -1 with the reason in llama_ridgefill_last_error
# LLAMA_API int32_t llama_ridgefill_check_heads(
#         const struct llama_context * ctx, const struct llama_ridgefill_head * heads, size_t n_heads);
@_function(
    "llama_ridgefill_check_heads",
    [llama_cpp.llama_context_p_ctypes, ctypes.POINTER(llama_ridgefill_head), ctypes.c_size_t],
    ctypes.c_int32,
)
def llama_ridgefill_check_heads(ctx: Any, heads: Any, n_heads: int, /) -> int: ...


# // run cached rows through the layers from the split on, in the order given; their cells are replaced
# // they attend to what the earlier cells of the sequence hold now
# // needs keep_states; returns n, or -1 on error
# LLAMA_API int32_t llama_ridgefill_seq_upper(
#         struct llama_context * ctx, llama_seq_id seq_id, const llama_pos * pos, int32_t n);
@_function(
    "llama_ridgefill_seq_upper",
    [llama_cpp.llama_context_p_ctypes, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32],
    ctypes.c_int32,
)
def llama_ridgefill_seq_upper(ctx: Any, seq_id: int, pos: Any, n: int, /) -> int: ...


# // replace the next rows of a sequence that are not those of an exact prefill, n_max at most, the first ones first
# // seq_id < 0: of all sequences that can be healed, in equal shares
# // it stops before rows that cannot run again: those without a split state, spliced ones, and those that attend to
# // rows which a sliding window has dropped; an error if the first row of the one sequence is such a row
# // returns their number, 0 if the sequence is exact, -1 on error
# LLAMA_API int32_t llama_ridgefill_seq_heal(struct llama_context * ctx, llama_seq_id seq_id, int32_t n_max);
@_function(
    "llama_ridgefill_seq_heal", [llama_cpp.llama_context_p_ctypes, ctypes.c_int32, ctypes.c_int32], ctypes.c_int32
)
def llama_ridgefill_seq_heal(ctx: Any, seq_id: int, n_max: int, /) -> int: ...


# // llama-ridgefill-lab.h

# enum llama_ridgefill_component {
LLAMA_RIDGEFILL_COMPONENT_K = 1
LLAMA_RIDGEFILL_COMPONENT_V = 2
LLAMA_RIDGEFILL_COMPONENT_STATE = 4
# };


# // what a layer keeps in the memory, a sum of components; 0: it reads what an earlier layer keeps, or nothing
# // returns -1 on error
# LLAMA_API int32_t llama_ridgefill_layer_components(const struct llama_context * ctx, int32_t layer);
@_function("llama_ridgefill_layer_components", [llama_cpp.llama_context_p_ctypes, ctypes.c_int32], ctypes.c_int32)
def llama_ridgefill_layer_components(ctx: Any, layer: int, /) -> int: ...


# // replace what seq_id_dst holds for the positions [p0, p1) in the layers [layer_first, layer_last] by what seq_id_src
# // holds, for a sum of components that each occur in these layers; p0 < 0: from the start, p1 < 0: to the end
# // a recurrent state is one for all rows: it is replaced as a whole, and p1 must be the end of both sequences
# // rows that a sliding window has left for good need not be there
# // spliced rows count as filled; since no prompt would have left them so, none reuses them, and they cannot run again
# // returns 0, or -1 on error, with nothing changed
# LLAMA_API int32_t llama_ridgefill_seq_splice(
#         struct llama_context * ctx,
#         llama_seq_id           seq_id_src,
#         llama_seq_id           seq_id_dst,
#         llama_pos              p0,
#         llama_pos              p1,
#         int32_t                layer_first,
#         int32_t                layer_last,
#         int32_t                components);
@_function("llama_ridgefill_seq_splice", [llama_cpp.llama_context_p_ctypes, *[ctypes.c_int32] * 7], ctypes.c_int32)
def llama_ridgefill_seq_splice(
    ctx: Any, seq_id_src: int, seq_id_dst: int, p0: int, p1: int, layer_first: int, layer_last: int, components: int, /
) -> int: ...


# // llama-ridgefill.h


# struct llama_ridgefill_counters {
#     int64_t n_exact;        // rows
#     int64_t n_filled;       // rows
#     int64_t n_selected;     // rows
#     int64_t n_healed;       // rows
#     int64_t n_ubatch_exact;
#     int64_t n_ubatch_filled;
#     int64_t t_exact_us;     // wall time, complete only on backends that compute synchronously
#     int64_t t_filled_us;
# };
class llama_ridgefill_counters(ctypes.Structure):  # noqa: N801
    _fields_ = (
        ("n_exact", ctypes.c_int64),
        ("n_filled", ctypes.c_int64),
        ("n_selected", ctypes.c_int64),
        ("n_healed", ctypes.c_int64),
        ("n_ubatch_exact", ctypes.c_int64),
        ("n_ubatch_filled", ctypes.c_int64),
        ("t_exact_us", ctypes.c_int64),
        ("t_filled_us", ctypes.c_int64),
    )


# LLAMA_API struct llama_ridgefill_counters llama_ridgefill_get_counters(const struct llama_context * ctx);
@_function("llama_ridgefill_get_counters", [llama_cpp.llama_context_p_ctypes], llama_ridgefill_counters)
def llama_ridgefill_get_counters(ctx: int, /) -> llama_ridgefill_counters: ...


# LLAMA_API void llama_ridgefill_reset_counters(struct llama_context * ctx);
@_function("llama_ridgefill_reset_counters", [llama_cpp.llama_context_p_ctypes], None)
def llama_ridgefill_reset_counters(ctx: int, /) -> None: ...


# // record the sites of layers [layer_first, n_layer) in every llama_decode from now on; -1 stops
# // a captured batch must fit one ubatch and hold one sequence
# LLAMA_API int32_t llama_ridgefill_capture(struct llama_context * ctx, int32_t layer_first);
@_function("llama_ridgefill_capture", [llama_cpp.llama_context_p_ctypes, ctypes.c_int32], ctypes.c_int32)
def llama_ridgefill_capture(ctx: Any, layer_first: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_n_sites(const struct llama_context * ctx);
@_function("llama_ridgefill_n_sites", [llama_cpp.llama_context_p_ctypes], ctypes.c_int32)
def llama_ridgefill_n_sites(ctx: Any, /) -> int: ...


# LLAMA_API const char * llama_ridgefill_site_name(const struct llama_context * ctx, int32_t i);
@_function("llama_ridgefill_site_name", [llama_cpp.llama_context_p_ctypes, ctypes.c_int32], ctypes.c_char_p)
def llama_ridgefill_site_name(ctx: int, i: int, /) -> bytes: ...


# LLAMA_API int32_t llama_ridgefill_site_layer(const struct llama_context * ctx, int32_t i);
@_function("llama_ridgefill_site_layer", [llama_cpp.llama_context_p_ctypes, ctypes.c_int32], ctypes.c_int32)
def llama_ridgefill_site_layer(ctx: int, i: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_site_width(const struct llama_context * ctx, int32_t i);
@_function("llama_ridgefill_site_width", [llama_cpp.llama_context_p_ctypes, ctypes.c_int32], ctypes.c_int32)
def llama_ridgefill_site_width(ctx: int, i: int, /) -> int: ...


# // F32 [n_tokens of the last decode][width], owned by the context and valid until the next decode; NULL if none
# LLAMA_API const float * llama_ridgefill_site_data(struct llama_context * ctx, int32_t i);
@_function(
    "llama_ridgefill_site_data",
    [llama_cpp.llama_context_p_ctypes, ctypes.c_int32],
    ctypes.POINTER(ctypes.c_float),
)
def llama_ridgefill_site_data(ctx: int, i: int, /) -> Any: ...


def check(succeeded: bool, what: str) -> None:
    """Raise the library's reason if a call failed."""
    if not succeeded:
        reason = llama_ridgefill_last_error().decode("utf-8", errors="replace")
        raise NativeError(f"{what}: {reason}" if reason else what)
