#pragma once

#include "ggml-cpp.h"
#include "llama-ridgefill.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

struct llama_model;
class llama_ridgefill_gguf;

// one map: predicts the value of a site from the split state
struct llama_ridgefill_map {
    ggml_tensor * w    = nullptr;  // [n_embd, width], full rank
    ggml_tensor * a    = nullptr;  // [n_embd, rank]
    ggml_tensor * b    = nullptr;  // [rank, width]
    ggml_tensor * bias = nullptr;  // [width], optional

    int64_t width() const;
};

enum llama_ridgefill_target {
    LLAMA_RIDGEFILL_TARGET_INPUT,
    LLAMA_RIDGEFILL_TARGET_PROJ,
};

// the maps of one split
struct llama_ridgefill_split_maps {
    llama_ridgefill_target target = LLAMA_RIDGEFILL_TARGET_PROJ;
    int32_t                rank   = 0;                 // 0 = full rank

    std::map<std::string, llama_ridgefill_map> sites;  // "blk.<l>.<site>" -> map

    std::vector<llama_ridgefill_head> heads;           // retrieval heads, the best first
};

// a loaded maps file, see docs/map-format.md
struct llama_ridgefill {
    explicit llama_ridgefill(const llama_model & model) : model(model) {}

    const llama_model & model;

    bool  feature_norm     = false;  // divide the split state by its RMS
    float feature_norm_eps = 0.0f;

    std::map<int32_t, llama_ridgefill_split_maps> splits;  // split -> maps

    int32_t recommended_split      = -1;
    int32_t recommended_sink       = 4;
    int32_t recommended_tail       = 256;
    int32_t recommended_min_prompt = 1024;

    llama_ridgefill_select recommended_select  = LLAMA_RIDGEFILL_SELECT_NONE;
    float                  recommended_budget  = 0.05f;  // share of the filled rows
    int32_t                recommended_before  = 5;
    int32_t                recommended_after   = 5;
    int32_t                recommended_queries = 512;

    uint64_t hash = 0;  // over the content of the file

    std::vector<std::pair<std::string, std::string>> gguf_kv;

    std::vector<ggml_context_ptr>        ctxs;
    std::vector<ggml_backend_buffer_ptr> bufs;

    size_t size() const;

    // identity of cells that were filled at a split: content of the maps and the split
    uint64_t cell_id(int32_t split) const { return hash ^ (0x9e3779b97f4a7c15ull * (uint64_t) (split + 1)); }

    // throws std::runtime_error with a one-line message
    void load(const char * path, const llama_ridgefill_params & params);

  private:
    void load_heads(const llama_ridgefill_gguf & gguf);
};

// 64-bit FNV-1a
struct llama_ridgefill_fnv {
    uint64_t value = 0xcbf29ce484222325ull;

    void add(const void * data, size_t size);
    void add(const std::string & str);  // with a zero byte behind it
};

llama_ridgefill_fingerprint llama_ridgefill_fingerprint_of(const llama_model & model);
