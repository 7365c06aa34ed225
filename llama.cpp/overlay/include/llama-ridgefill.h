#pragma once

// RidgeFill: predict what the upper layers write into the KV cache (and recurrent state) from the output of the
// lower layers, so that most prompt rows skip the upper layers
//
// usage:
//
//   llama_ridgefill * maps = llama_ridgefill_init(model, "maps.gguf", llama_ridgefill_default_params());
//   llama_set_ridgefill(ctx, maps, llama_ridgefill_default_context_params());
//
//   llama_ridgefill_range ranges[LLAMA_RIDGEFILL_MAX_RANGES];
//   int32_t n = llama_ridgefill_plan(plan_params, n_prompt, ranges, LLAMA_RIDGEFILL_MAX_RANGES);
//   llama_ridgefill_seq_mark(ctx, seq_id, ranges, n);
//
//   llama_decode(ctx, batch); // splits the ubatches at the borders of the marked ranges
//
// nothing here changes a context that has no maps set or a sequence that has no marked rows

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// version of this interface; a binding compares it with the one it was written for
#define LLAMA_RIDGEFILL_API_VERSION 2

#define LLAMA_RIDGEFILL_MAX_RANGES 1024
#define LLAMA_RIDGEFILL_MAX_HEADS  32  // that score in one graph

struct llama_ridgefill;

LLAMA_API uint32_t llama_ridgefill_api_version(void);

// one line that says why the last call on this thread failed, with a hint; "" if none did
LLAMA_API const char * llama_ridgefill_last_error(void);

// identity of a model as stored in maps files: 16 hex digits each
struct llama_ridgefill_fingerprint {
    char vocab[17];    // over the token texts
    char weights[17];  // over a fixed sample of bytes of the norm weights
};

// both are "" for a model without a vocabulary
LLAMA_API struct llama_ridgefill_fingerprint llama_ridgefill_model_fingerprint(const struct llama_model * model);

//
// maps
//

struct llama_ridgefill_params {
    bool skip_fingerprint;  // accept maps that were made for another model of the same shape
};

LLAMA_API struct llama_ridgefill_params llama_ridgefill_default_params(void);

// load and check a maps file; every tensor is placed in the device memory of the layer that it serves
// returns NULL on error, see llama_ridgefill_last_error
// the maps must be freed before the model, and after every context that uses them
LLAMA_API struct llama_ridgefill * llama_ridgefill_init(struct llama_model *          model,
                                                        const char *                  path,
                                                        struct llama_ridgefill_params params);

LLAMA_API void llama_ridgefill_free(struct llama_ridgefill * maps);

// metadata, as for LoRA adapters
LLAMA_API int32_t llama_ridgefill_meta_val_str(const struct llama_ridgefill * maps,
                                               const char *                   key,
                                               char *                         buf,
                                               size_t                         buf_size);
LLAMA_API int32_t llama_ridgefill_meta_count(const struct llama_ridgefill * maps);
LLAMA_API int32_t llama_ridgefill_meta_key_by_index(const struct llama_ridgefill * maps,
                                                    int32_t                        i,
                                                    char *                         buf,
                                                    size_t                         buf_size);
LLAMA_API int32_t llama_ridgefill_meta_val_str_by_index(const struct llama_ridgefill * maps,
                                                        int32_t                        i,
                                                        char *                         buf,
                                                        size_t                         buf_size);

LLAMA_API int32_t  llama_ridgefill_n_splits(const struct llama_ridgefill * maps);
LLAMA_API int32_t  llama_ridgefill_split(const struct llama_ridgefill * maps, int32_t i);
LLAMA_API size_t   llama_ridgefill_size(const struct llama_ridgefill * maps);  // bytes on all devices
LLAMA_API uint64_t llama_ridgefill_hash(const struct llama_ridgefill * maps);  // over the file's content

//
// context
//

struct llama_ridgefill_context_params {
    int32_t split;               // which of the file's splits to use, -1 = the recommended one

    bool           keep_states;  // keep the split state of every cached row, so that rows can be run again
    enum ggml_type type_states;  // F32, F16 or BF16; with F32 a healed cache equals an exact one
};

LLAMA_API struct llama_ridgefill_context_params llama_ridgefill_default_context_params(void);

// whether the memory of a context allows keep_states; if not (recurrent layers, sliding windows that drop cells),
// llama_ridgefill_last_error says why
LLAMA_API bool llama_ridgefill_can_keep_states(const struct llama_context * ctx);

// use maps in a context, NULL to stop using them
// refuses (non-zero, see llama_ridgefill_last_error) an architecture that the graph rewrite cannot serve
LLAMA_API int32_t llama_set_ridgefill(struct llama_context *                ctx,
                                      struct llama_ridgefill *              maps,
                                      struct llama_ridgefill_context_params params);

// the split in use, -1 if no maps are set
LLAMA_API int32_t llama_ridgefill_ctx_split(const struct llama_context * ctx);

//
// plan: which rows of a prompt are filled
//

// positions [p0, p1)
struct llama_ridgefill_range {
    llama_pos p0;
    llama_pos p1;
};

struct llama_ridgefill_plan_params {
    int32_t sink;                                // first rows that run exact
    int32_t tail;                                // last rows of the prompt that run exact
    int32_t min_prompt;                          // shorter prompts run exact

    const struct llama_ridgefill_range * exact;  // more rows that must run exact, in any order
    size_t                               n_exact;
};

// the maps file's recommended settings, built-in ones where the file has none
LLAMA_API struct llama_ridgefill_plan_params llama_ridgefill_default_plan_params(const struct llama_ridgefill * maps);

// write the ranges to fill, ascending and disjoint
// returns their number, 0 if all runs exact, -1 on bad parameters or if they do not fit
LLAMA_API int32_t llama_ridgefill_plan(struct llama_ridgefill_plan_params params,
                                       int32_t                            n_prompt,
                                       struct llama_ridgefill_range *     ranges,
                                       int32_t                            n_max);

// rows of a sequence that llama_decode fills from now on, n = 0: none
// replaces the earlier ranges; must be ascending and disjoint
LLAMA_API int32_t llama_ridgefill_seq_mark(struct llama_context *               ctx,
                                           llama_seq_id                         seq_id,
                                           const struct llama_ridgefill_range * ranges,
                                           int32_t                              n);

// the number of leading positions of a cached sequence, at most n_past, that a prompt whose rows in `ranges` may be
// filled can keep: cells that were filled where the new prompt asks for exact rows end the reusable prefix
// n = 0 asks for an exact prompt
LLAMA_API llama_pos llama_ridgefill_seq_reusable(const struct llama_context *         ctx,
                                                 llama_seq_id                         seq_id,
                                                 const struct llama_ridgefill_range * ranges,
                                                 int32_t                              n,
                                                 llama_pos                            n_past);

// number of filled cells of a sequence in [p0, p1), p1 < 0: to the end
LLAMA_API int32_t llama_ridgefill_seq_n_filled(const struct llama_context * ctx,
                                               llama_seq_id                 seq_id,
                                               llama_pos                    p0,
                                               llama_pos                    p1);

//
// selected rows: filled rows that run through all layers after all, before the tail does
//

enum llama_ridgefill_select {
    LLAMA_RIDGEFILL_SELECT_NONE      = 0,
    LLAMA_RIDGEFILL_SELECT_STRIDE    = 1,  // blocks of rows at equal distances, a control
    LLAMA_RIDGEFILL_SELECT_ATTENTION = 2,  // the rows that the retrieval heads of the last prompt rows attend to
};

// an attention head of a layer below the split
struct llama_ridgefill_head {
    int32_t layer;
    int32_t head;  // -1: each head of the layer, with scores of its own
};

struct llama_ridgefill_select_params {
    enum llama_ridgefill_select type;

    int32_t budget;    // rows
    int32_t n_before;  // a row passes its score on to the rows before it, half as much every n_before rows, 0: not
    int32_t n_after;   // and to those after it: the answer often stands behind the words that a question repeats
    int32_t n_query;   // last rows of the prompt whose queries score

    const struct llama_ridgefill_head * heads;  // NULL: those of the maps file
    size_t                              n_heads;
};

// the maps file's recommended settings for a split, -1 = the recommended one, built-in ones where the file has none
// type NONE if the file has no heads for the split; budget 0; the heads live as long as the maps
LLAMA_API struct llama_ridgefill_select_params llama_ridgefill_default_select_params(
    const struct llama_ridgefill * maps,
    int32_t                        split);

// the recommended budget, as a share of the filled rows
LLAMA_API float llama_ridgefill_default_budget(const struct llama_ridgefill * maps);

// whether the model has all of these heads, in layers below the split in use
// returns 0, or -1 with the reason in llama_ridgefill_last_error
LLAMA_API int32_t llama_ridgefill_check_heads(const struct llama_context *        ctx,
                                              const struct llama_ridgefill_head * heads,
                                              size_t                              n_heads);

// select among the rows that llama_ridgefill_seq_mark marked, for a prompt of n_prompt rows whose last `tail` ones run
// exact: once llama_decode has seen the last row of the prompt, it runs the selected rows and then the tail through the
// upper layers
// only rows of the batch that ends the prompt can have logits; needs keep_states; call it after each seq_mark
LLAMA_API int32_t llama_ridgefill_seq_select(struct llama_context *               ctx,
                                             llama_seq_id                         seq_id,
                                             int32_t                              n_prompt,
                                             int32_t                              tail,
                                             struct llama_ridgefill_select_params params);

// of the last finished selection: the selected positions, and for each head the score of each position of the prompt,
// pooled over its neighbours (n_before, n_after): rows are selected by the best score that any head gives them
// valid until the next decode
LLAMA_API int32_t           llama_ridgefill_n_selected(const struct llama_context * ctx);
LLAMA_API const llama_pos * llama_ridgefill_selected(const struct llama_context * ctx);
LLAMA_API int32_t           llama_ridgefill_n_score_heads(const struct llama_context * ctx);
LLAMA_API const float *     llama_ridgefill_head_scores(const struct llama_context * ctx, int32_t i);

// run cached rows through the layers from the split on, in the order given; their cells are replaced
// they attend to what the earlier cells of the sequence hold now
// needs keep_states; returns n, or -1 on error
LLAMA_API int32_t llama_ridgefill_seq_upper(struct llama_context * ctx,
                                            llama_seq_id           seq_id,
                                            const llama_pos *      pos,
                                            int32_t                n);

// replace the next rows of a sequence that are not those of an exact prefill, n_max at most, the first ones first
// seq_id < 0: of all sequences that can be healed, in equal shares
// it stops before rows that cannot run again: those without a split state, spliced ones, and those that attend to rows
// which a sliding window has dropped; an error if the first row of the one sequence is such a row
// returns their number, 0 if the sequence is exact, -1 on error
LLAMA_API int32_t llama_ridgefill_seq_heal(struct llama_context * ctx, llama_seq_id seq_id, int32_t n_max);

//
// counters
//

struct llama_ridgefill_counters {
    int64_t n_exact;     // rows
    int64_t n_filled;    // rows
    int64_t n_selected;  // rows
    int64_t n_healed;    // rows
    int64_t n_ubatch_exact;
    int64_t n_ubatch_filled;
    int64_t t_exact_us;  // wall time, complete only on backends that compute synchronously
    int64_t t_filled_us;
};

LLAMA_API struct llama_ridgefill_counters llama_ridgefill_get_counters(const struct llama_context * ctx);
LLAMA_API void                            llama_ridgefill_reset_counters(struct llama_context * ctx);

//
// calibration: values that maps are fitted on and predict
//
// a site is a named value in the graph of one layer:
//   blk.<l>.input          the input of layer l
//   blk.<l>.attn_k, ...    a projection that feeds a memory write of layer l, named like its weight
//

// record the sites of layers [layer_first, n_layer) in every llama_decode from now on; -1 stops
// a captured batch must fit one ubatch and hold one sequence
LLAMA_API int32_t llama_ridgefill_capture(struct llama_context * ctx, int32_t layer_first);

LLAMA_API int32_t      llama_ridgefill_n_sites(const struct llama_context * ctx);
LLAMA_API const char * llama_ridgefill_site_name(const struct llama_context * ctx, int32_t i);
LLAMA_API int32_t      llama_ridgefill_site_layer(const struct llama_context * ctx, int32_t i);
LLAMA_API int32_t      llama_ridgefill_site_width(const struct llama_context * ctx, int32_t i);

// F32 [n_tokens of the last decode][width], owned by the context and valid until the next decode; NULL if none
LLAMA_API const float * llama_ridgefill_site_data(struct llama_context * ctx, int32_t i);

#ifdef __cplusplus
}
#endif
