// retrieval heads and recommended selection of a maps file

#include "llama-impl.h"
#include "llama-model.h"
#include "llama-ridgefill-gguf.h"
#include "llama-ridgefill-maps.h"

#include <stdexcept>

static void read_heads(const llama_ridgefill_gguf & gguf, llama_ridgefill & maps) {
    if (!gguf.has("ridgefill.heads.splits")) {
        return;
    }

    const auto splits = gguf.get_arr_i32("ridgefill.heads.splits");
    const auto layers = gguf.get_arr_i32("ridgefill.heads.layers");
    const auto heads  = gguf.get_arr_i32("ridgefill.heads.heads");
    if (layers.size() != splits.size() || heads.size() != splits.size()) {
        throw std::runtime_error(
            format("ridgefill.heads.layers, ridgefill.heads.heads: expected %zu entries as in ridgefill.heads.splits, "
                   "found %zu and %zu",
                   splits.size(), layers.size(), heads.size()));
    }

    for (size_t i = 0; i < splits.size(); ++i) {
        const auto it = maps.splits.find(splits[i]);
        if (it == maps.splits.end() || layers[i] < 0 || layers[i] >= splits[i] || heads[i] < 0 ||
            heads[i] >= (int32_t) maps.model.hparams.n_head(layers[i])) {
            throw std::runtime_error(
                format("ridgefill.heads: expected heads that exist in layers below a split of the file, found %d.%d "
                       "for split %d",
                       layers[i], heads[i], splits[i]));
        }
        it->second.heads.push_back({ layers[i], heads[i] });
        if (it->second.heads.size() > LLAMA_RIDGEFILL_MAX_HEADS) {
            throw std::runtime_error(
                format("ridgefill.heads: expected at most %d heads for a split, found more for split %d",
                       LLAMA_RIDGEFILL_MAX_HEADS, splits[i]));
        }
    }
}

// after the heads
static void read_selection(const llama_ridgefill_gguf & gguf, llama_ridgefill & maps) {
    if (gguf.has("ridgefill.recommended.pool_before") != gguf.has("ridgefill.recommended.pool_after")) {
        throw std::runtime_error(
            "keys 'ridgefill.recommended.pool_before' and 'ridgefill.recommended.pool_after': expected both or none, "
            "found one");
    }
    maps.recommended_before  = gguf.get_u32("ridgefill.recommended.pool_before", maps.recommended_before, 0, INT32_MAX);
    maps.recommended_after   = gguf.get_u32("ridgefill.recommended.pool_after", maps.recommended_after, 0, INT32_MAX);
    maps.recommended_queries = gguf.get_u32("ridgefill.recommended.queries", maps.recommended_queries, 1, INT32_MAX);

    if (gguf.has("ridgefill.recommended.budget")) {
        maps.recommended_budget = gguf.get_f32("ridgefill.recommended.budget", 0.0f, 1.0f);
        if (maps.recommended_budget == 0.0f) {
            throw std::runtime_error("key 'ridgefill.recommended.budget': expected a share above 0, found 0");
        }
    }

    const auto select =
        gguf.has("ridgefill.recommended.select") ? gguf.get_str("ridgefill.recommended.select") : "none";
    if (select == "attention") {
        maps.recommended_select = LLAMA_RIDGEFILL_SELECT_ATTENTION;
    } else if (select != "none") {
        throw std::runtime_error(
            format("key 'ridgefill.recommended.select': expected 'none' or 'attention', found '%s'", select.c_str()));
    }
    if (select == "attention" && !gguf.has("ridgefill.recommended.split")) {
        throw std::runtime_error(
            "key 'ridgefill.recommended.select': expected 'ridgefill.recommended.split' beside 'attention', found "
            "none");
    }
    if (select == "attention" && maps.splits[maps.recommended_split].heads.empty()) {
        throw std::runtime_error(format(
            "key 'ridgefill.recommended.select': expected retrieval heads for split %d in ridgefill.heads, found none",
            maps.recommended_split));
    }
}

void llama_ridgefill::load_heads(const llama_ridgefill_gguf & gguf) {
    read_heads(gguf, *this);
    read_selection(gguf, *this);
}

llama_ridgefill_select_params llama_ridgefill_default_select_params(const llama_ridgefill * maps, int32_t split) {
    const auto it = maps->splits.find(split < 0 ? maps->recommended_split : split);

    const bool has_heads = it != maps->splits.end() && !it->second.heads.empty();
    return {
        /*.type     =*/has_heads ? maps->recommended_select : LLAMA_RIDGEFILL_SELECT_NONE,
        /*.budget   =*/0,
        /*.n_before =*/maps->recommended_before,
        /*.n_after  =*/maps->recommended_after,
        /*.n_query  =*/maps->recommended_queries,
        /*.heads    =*/has_heads ? it->second.heads.data() : nullptr,
        /*.n_heads  =*/has_heads ? it->second.heads.size() : 0,
    };
}

float llama_ridgefill_default_budget(const llama_ridgefill * maps) {
    return maps->recommended_budget;
}
