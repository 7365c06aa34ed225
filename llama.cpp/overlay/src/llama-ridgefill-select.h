#pragma once

#include "llama-ridgefill.h"
#include "llama-ridgefill-marks.h"

#include <map>
#include <vector>

struct llama_model;
class  llama_kv_cache;
class  llm_graph_result;

// a prompt whose tail waits for the selected rows
struct llama_ridgefill_selection {
    llama_ridgefill_select type;

    int32_t n_prompt;
    int32_t tail;
    int32_t budget;
    int32_t n_before;
    int32_t n_after;
    int32_t n_query;

    std::vector<llama_ridgefill_head> heads;
    std::vector<std::vector<float>>   scores; // [number of heads][n_prompt]

    std::vector<ggml_tensor *> tensors; // scores by cell in the graph of the ubatch that is computed

    bool is_tail(llama_pos pos) const { return pos >= n_prompt - tail && pos < n_prompt; }

    // the rows of `ranges` to run, ascending
    std::vector<llama_pos> choose(const llama_ridgefill_ranges & ranges) const;
};

// scores of the last rows of a ubatch at some heads: for each entry a tensor [n_kv, 1, n_head], the largest probability
// that any of the queries gives to a cell; n_head is 1, or all heads of the layer
// as the model computes it: same q, k, mask, scale, soft-capping and sinks
std::vector<ggml_tensor *> llama_ridgefill_build_scores(
        const llama_model & model, llm_graph_result & res, const std::vector<llama_ridgefill_head> & heads, int64_t n_query);
