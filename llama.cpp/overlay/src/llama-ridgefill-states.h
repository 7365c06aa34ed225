#pragma once

#include "ggml-cpp.h"
#include "llama-graph.h"
#include "llama-kv-cache.h"

#include <cstdint>
#include <string>
#include <vector>

struct llama_memory_i;
struct llama_model;

// the attention caches whose cells the rows of a prompt occupy
struct llama_ridgefill_cells {
    llama_kv_cache * base = nullptr;  // nullptr: rows cannot be run again, the memory is recurrent or of another kind
    llama_kv_cache * swa  = nullptr;

    explicit llama_ridgefill_cells(llama_memory_i * memory);

    // why the rows of a prompt cannot be run again, "" if they can
    std::string conflict(const llama_model & model) const;

    // the cell of a cache, in [0, kv_size*n_stream), that holds a position, -1 if there is none
    static int32_t find(const llama_kv_cache & kv, llama_seq_id seq_id, llama_pos pos);

    // the token of a cell, upper layers of some architectures read it
    static llama_token token(const llama_kv_cache & kv, int32_t cell);
    static void        set_token(llama_kv_cache & kv, int32_t cell, llama_token token);
};

// split states of the rows in the cache, by cell
struct llama_ridgefill_states {
    ggml_tensor * x = nullptr;  // [n_embd, kv_size*n_stream]

    // throws std::runtime_error
    llama_ridgefill_states(const llama_model & model, const llama_kv_cache & kv, int32_t split, ggml_type type);

    static bool is_type(int type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

    // copy the split states of all cells of a sequence to another one that has cells of its own
    void copy(llama_seq_id seq_id_src, llama_seq_id seq_id_dst);

    ggml_backend_buffer_t buffer() const { return buf.get(); }

  private:
    std::vector<ggml_tensor *> streams;  // [n_embd, kv_size] each

    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buf;
};

// the cells whose split states an UPPER ubatch reads
class llm_graph_input_ridgefill_rows : public llm_graph_input_i {
  public:
    llm_graph_input_ridgefill_rows(ggml_tensor * idxs, const std::vector<int32_t> * rows) : idxs(idxs), rows(rows) {}

    void set_input(const llama_ubatch * ubatch) override;
    bool can_reuse(const llm_graph_params & params) override;

  private:
    ggml_tensor * idxs;                 // I32 [n_tokens]

    const std::vector<int32_t> * rows;  // of the context
};
