#include "llama-ridgefill-states.h"

#include "llama-impl.h"
#include "llama-kv-cache-iswa.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>

llama_ridgefill_cells::llama_ridgefill_cells(llama_memory_i * memory) {
    if (auto * kv = dynamic_cast<llama_kv_cache *>(memory)) {
        base = kv;
    } else if (auto * kv_iswa = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        base = kv_iswa->get_base();
        swa  = kv_iswa->get_swa();
    }
}

std::string llama_ridgefill_cells::conflict(const llama_model & model) const {
    if (!base || model.hparams.n_pos_per_embd() != 1) {
        return format(
            "architecture '%s' cannot run filled rows again: its memory is not an attention cache with one position "
            "per row",
            llm_arch_name(model.arch));
    }
    if (swa && swa->get_size() < base->get_size()) {
        return format(
            "rows of architecture '%s' cannot run again once its sliding windows have dropped them (hint: keep their "
            "cells with swa_full or --swa-full)",
            llm_arch_name(model.arch));
    }
    return "";
}

int32_t llama_ridgefill_cells::find(const llama_kv_cache & kv, llama_seq_id seq_id, llama_pos pos) {
    const auto & cells = kv.get_cells(seq_id).seq_pos_get(seq_id);

    const auto it = cells.lower_bound({ pos, 0 });
    if (it == cells.end() || it->first != pos) {
        return -1;
    }
    return it->second + (kv.get_n_stream() > 1 ? seq_id * kv.get_size() : 0);
}

// any sequence of the stream that a cell belongs to
static llama_seq_id seq_of_cell(const llama_kv_cache & kv, int32_t cell) {
    return kv.get_n_stream() > 1 ? cell / kv.get_size() : 0;
}

llama_token llama_ridgefill_cells::token(const llama_kv_cache & kv, int32_t cell) {
    return kv.get_cells(seq_of_cell(kv, cell)).ext_get(cell % kv.get_size()).tok;
}

void llama_ridgefill_cells::set_token(llama_kv_cache & kv, int32_t cell, llama_token token) {
    auto & cells = kv.get_cells(seq_of_cell(kv, cell));
    auto   ext   = cells.ext_get(cell % kv.get_size());
    ext.tok      = token;
    cells.ext_set(cell % kv.get_size(), ext);
}

llama_ridgefill_states::llama_ridgefill_states(const llama_model &    model,
                                               const llama_kv_cache & kv,
                                               int32_t                split,
                                               ggml_type              type) {
    if (!is_type(type)) {
        throw std::runtime_error(
            format("split states: expected type f32, f16 or bf16, found %s", ggml_type_name(type)));
    }

    ctx.reset(ggml_init({ (1 + kv.get_n_stream()) * ggml_tensor_overhead(), nullptr, true }));
    x = ggml_new_tensor_2d(ctx.get(), type, model.hparams.n_embd, (int64_t) kv.get_size() * kv.get_n_stream());
    ggml_set_name(x, "ridgefill_states");
    for (uint32_t s = 0; s < kv.get_n_stream(); ++s) {
        streams.push_back(ggml_view_2d(ctx.get(), x, x->ne[0], kv.get_size(), x->nb[1], s * kv.get_size() * x->nb[1]));
    }

    buf.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), model.select_buft(split)));
    if (!buf) {
        throw std::runtime_error(
            format("failed to allocate %.2f MiB for split states", ggml_nbytes(x) / 1024.0 / 1024.0));
    }
    ggml_backend_buffer_clear(buf.get(), 0);

    LLAMA_LOG_INFO("%s: %10s RidgeFill split states size = %8.2f MiB (%s)\n", __func__,
                   ggml_backend_buffer_name(buf.get()), ggml_backend_buffer_get_size(buf.get()) / 1024.0 / 1024.0,
                   ggml_type_name(type));
}

void llama_ridgefill_states::copy(llama_seq_id seq_id_src, llama_seq_id seq_id_dst) {
    ggml_backend_tensor_copy(streams.at(seq_id_src), streams.at(seq_id_dst));
}

void llm_graph_input_ridgefill_rows::set_input(const llama_ubatch * ubatch) {
    GGML_ASSERT(rows->size() == ubatch->n_tokens);
    ggml_backend_tensor_set(idxs, rows->data(), 0, rows->size() * sizeof(int32_t));
}

bool llm_graph_input_ridgefill_rows::can_reuse(const llm_graph_params & params) {
    // whether rows without a token can run is checked when the graph is built
    const auto * tokens = params.ubatch.token;
    return idxs->ne[0] == params.ubatch.n_tokens &&
           std::find(tokens, tokens + params.ubatch.n_tokens, LLAMA_TOKEN_NULL) == tokens + params.ubatch.n_tokens;
}
