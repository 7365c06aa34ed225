#pragma once

#include "llama-ridgefill-marks.h"
#include "llama-ridgefill.h"

#include <algorithm>
#include <map>
#include <vector>

struct llama_model;
class llama_kv_cache;
class llm_graph_result;

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
    std::vector<std::vector<float>>   scores;      // [number of heads][n_prompt]
    std::vector<std::vector<float>>   scores_end;  // the same for the queries of the last N_END rows

    std::vector<ggml_tensor *> tensors;            // scores by cell in the graph of the ubatch that is computed

    // how many of the last n_last rows of the prompt are among the n_tokens rows that end at position `last`
    int32_t n_of_last(int32_t n_last, llama_pos last, int32_t n_tokens) const {
        return std::max(0, std::min(n_tokens, last + 1 - (n_prompt - n_last)));
    }

    // an answer goes on from what the last rows of its prompt point at: what they find passes its score END_REACH times
    // as far on to the rows behind it
    static constexpr int32_t N_END     = 32;
    static constexpr int32_t END_REACH = 8;

    // when all queries have scored: let `scores` be what rows are selected by, pooled over their neighbours
    void pool();

    bool is_tail(llama_pos pos) const { return pos >= n_prompt - tail && pos < n_prompt; }

    // the rows of `ranges` to run, ascending; after pool()
    std::vector<llama_pos> choose(const llama_ridgefill_ranges & ranges) const;
};

// scores of the last n_query rows of a ubatch at some heads: for each entry a tensor [n_kv, 1, n_head], the largest
// probability that any of the queries gives to a cell; n_head is 1, or all heads of the layer
// n_end > 0: behind them along the last dimension the same for the last n_end rows
// as the model computes it: same q, k, mask, scale, soft-capping and sinks
std::vector<ggml_tensor *> llama_ridgefill_build_scores(const llama_model &                       model,
                                                        llm_graph_result &                        res,
                                                        const std::vector<llama_ridgefill_head> & heads,
                                                        int64_t                                   n_query,
                                                        int64_t                                   n_end);
