#include "llama-ridgefill-context.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-io.h"
#include "llama-model.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-marks.h"

#include <algorithm>
#include <stdexcept>

//
// errors
//

static std::string & last_error() {
    static thread_local std::string msg;
    return msg;
}

void llama_ridgefill_set_error(const std::string & msg) {
    if (!msg.empty()) {
        LLAMA_LOG_ERROR("RidgeFill: %s\n", msg.c_str());
    }
    last_error() = msg;
}

const char * llama_ridgefill_get_error() {
    return last_error().c_str();
}

std::string llama_ridgefill_conflict(const llama_cparams & cparams, bool has_adapters) {
    const auto & layer_inp = cparams.embeddings_layer_inp;

    if (cparams.embeddings) {
        return "the context extracts embeddings, which filled rows do not have";
    }
    if (cparams.embeddings_nextn || std::find(layer_inp.begin(), layer_inp.end(), true) != layer_inp.end()) {
        return "a drafting head reads hidden states of every row, which filled rows do not have";
    }
    if (cparams.n_rs_seq > 0) {
        return "the context keeps snapshots for the rollback of recurrent state";
    }
    if (!cparams.causal_attn) {
        return "the attention is not causal";
    }
    if (has_adapters) {
        return "LoRA adapters or a control vector are active, which the maps were not fitted with";
    }
    return "";
}

//
// decode
//

bool llama_ridgefill_context::on_batch(llama_batch_allocr & balloc, const llama_context & ctx) {
    const auto & batch   = balloc.get_batch();
    const auto & marks   = *ctx.ridgefill_marks();
    const auto & cparams = ctx.get_cparams();

    auto & mode = balloc.ridgefill_mode;
    mode.clear();

    if (capture && (uint32_t) batch.n_tokens > cparams.n_ubatch) {
        llama_ridgefill_set_error(format("a captured batch must fit one ubatch: expected at most %u tokens, found %d", cparams.n_ubatch, batch.n_tokens));
        return false;
    }
    if (!cparams.ridgefill.maps || marks.plan.empty()) {
        return true;
    }

    bool any = false;
    std::vector<int8_t> cur(batch.n_tokens, LLAMA_RIDGEFILL_MODE_FULL);

    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        bool fill = true;
        for (int32_t s = 0; s < batch.n_seq_id[i] && fill; ++s) {
            fill = marks.is_planned(batch.seq_id[i][s], batch.pos[i]);
        }
        if (!fill) {
            continue;
        }
        if (batch.logits[i]) {
            llama_ridgefill_set_error(format("position %d of sequence %d is marked as filled but asks for output (hint: only exact rows have logits)",
                        batch.pos[i], batch.seq_id[i][0]));
            return false;
        }
        if (batch.embd && !batch.token) {
            continue; // images and the like run exact
        }
        cur[i] = LLAMA_RIDGEFILL_MODE_FILL;
        any = true;
    }

    if (!any) {
        return true;
    }
    if (const auto why = llama_ridgefill_conflict(cparams, ctx.has_adapters()); !why.empty()) {
        llama_ridgefill_set_error("rows cannot be filled: " + why);
        return false;
    }
    mode = std::move(cur);
    return true;
}

void llama_ridgefill_context::on_ubatch(const llama_batch_allocr & balloc, const llama_ubatch & ubatch, llama_cparams & cparams) {
    t_start_us = ggml_time_us();

    const auto & mode = balloc.ridgefill_mode;
    cparams.ridgefill.mode = mode.empty() ?
        LLAMA_RIDGEFILL_MODE_FULL : (llama_ridgefill_mode) mode.at(ubatch.data->batch_idxs.at(0));
}

void llama_ridgefill_context::on_done(const llm_graph_result * res, const llama_ubatch & ubatch, llama_ridgefill_marks & marks, llama_cparams & cparams) {
    const bool fill = cparams.ridgefill.mode == LLAMA_RIDGEFILL_MODE_FILL;

    cparams.ridgefill.mode = LLAMA_RIDGEFILL_MODE_FULL;

    if (!res) {
        return;
    }

    if (fill || !marks.filled.empty()) {
        const uint64_t id = fill ? cparams.ridgefill.maps->cell_id(cparams.ridgefill.split) : 0;
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            for (int32_t s = 0; s < ubatch.n_seq_id[i]; ++s) {
                const llama_seq_id seq_id = ubatch.seq_id[i][s];
                if (fill) {
                    marks.filled[seq_id].add(ubatch.pos[i], ubatch.pos[i] + 1, id);
                } else if (const auto it = marks.filled.find(seq_id); it != marks.filled.end()) {
                    it->second.erase(ubatch.pos[i], ubatch.pos[i] + 1);
                }
            }
        }
    }

    if (capture) {
        capture->on_done(*res);
    }

    const int64_t t_us = ggml_time_us() - t_start_us;

    (fill ? counters.n_filled        : counters.n_exact)        += ubatch.n_tokens;
    (fill ? counters.n_ubatch_filled : counters.n_ubatch_exact) += 1;
    (fill ? counters.t_filled_us     : counters.t_exact_us)     += t_us;
}

//
// llama_context
//

int32_t llama_context::set_ridgefill(llama_ridgefill * maps, int32_t split) {
    // graphs that use other maps must not be taken for graphs that use these
    sched_need_reserve = true;

    if (!maps) {
        synchronize();
        cparams.ridgefill.maps  = nullptr;
        cparams.ridgefill.split = -1;
        if (memory) {
            memory->ridgefill.plan.clear();
        }
        return 0;
    }

    split = split < 0 ? maps->recommended_split : split;

    if (&maps->model != &model) {
        throw std::runtime_error("the maps were loaded for another model object");
    }
    if (!memory) {
        throw std::runtime_error(format("architecture '%s' cannot be filled: the context keeps no memory", llm_arch_name(model.arch)));
    }
    if (maps->splits.count(split) == 0) {
        std::string splits;
        for (const auto & it : maps->splits) {
            splits += (splits.empty() ? "" : ", ") + std::to_string(it.first);
        }
        throw std::runtime_error(format("split %d is not in the maps file (hint: it has %s)", split, splits.c_str()));
    }
    if (const auto why = llama_ridgefill_conflict(cparams, has_adapters()); !why.empty()) {
        throw std::runtime_error(why);
    }

    // rewrite a graph once, so that a model that cannot be served is refused now
    synchronize();
    sched_reserve();
    {
        const auto mctx = memory->init_full();
        if (!mctx) {
            throw std::runtime_error("failed to initialize the memory module");
        }
        graph_reserve(std::min<uint32_t>(cparams.n_ubatch, 2*cparams.n_seq_max), cparams.n_seq_max, 1, mctx.get(), true);
        sched_need_reserve = true;
        llama_ridgefill_rewrite_fill(model, *gf_res_reserve, *maps, split);
    }

    cparams.ridgefill.maps  = maps;
    cparams.ridgefill.split = split;

    return 0;
}

bool llama_context::has_adapters() const {
    const auto any_cvec = [&]() {
        for (uint32_t il = 0; cvec && il < model.hparams.n_layer(); ++il) {
            if (cvec->tensor_for(il)) {
                return true;
            }
        }
        return false;
    };
    return (loras && !loras->empty()) || any_cvec();
}

void llama_context::ridgefill_capture(int32_t layer_first) {
    auto & capture = ridgefill.capture;

    cparams.ridgefill.capture = nullptr;
    capture.reset();

    if (layer_first < 0) {
        return;
    }
    if (layer_first >= (int32_t) model.hparams.n_layer()) {
        throw std::runtime_error(format("expected a first layer in [0, %d), found %d", (int) model.hparams.n_layer(), layer_first));
    }
    if (!memory) {
        throw std::runtime_error(format("architecture '%s' cannot be captured: the context keeps no memory", llm_arch_name(model.arch)));
    }

    capture = std::make_unique<llama_ridgefill_capture_state>(layer_first);

    // find the sites
    synchronize();
    sched_reserve();
    const auto mctx = memory->init_full();
    if (!mctx) {
        throw std::runtime_error("failed to initialize the memory module");
    }
    cparams.ridgefill.capture = capture.get();
    graph_reserve(std::min<uint32_t>(cparams.n_ubatch, 2*cparams.n_seq_max), cparams.n_seq_max, 1, mctx.get(), true);
    sched_need_reserve = true;

    if (!capture->error.empty()) {
        const std::string error = capture->error;
        cparams.ridgefill.capture = nullptr;
        capture.reset();
        throw std::runtime_error(error);
    }
}

int32_t llama_context::ridgefill_split() const {
    return cparams.ridgefill.maps ? cparams.ridgefill.split : -1;
}

llama_ridgefill_marks * llama_context::ridgefill_marks() const {
    return memory ? &memory->ridgefill : nullptr;
}

// the worst case of a filled ubatch, so that a change of mode does not reallocate
bool llama_context::ridgefill_reserve(uint32_t n_tokens, uint32_t n_seqs, const llama_memory_context_i * mctx) {
    if (!cparams.ridgefill.maps) {
        return true;
    }
    cparams.ridgefill.mode = LLAMA_RIDGEFILL_MODE_FILL;
    auto * gf = graph_reserve(n_tokens, n_seqs, 1, mctx, model.hparams.no_alloc);
    cparams.ridgefill.mode = LLAMA_RIDGEFILL_MODE_FULL;
    if (gf) {
        LLAMA_LOG_INFO("%s: RidgeFill graph nodes = %d, split = %d\n", __func__, ggml_graph_n_nodes(gf), cparams.ridgefill.split);
    }
    return gf != nullptr;
}

void llama_context::ridgefill_memory_breakdown(llama_memory_breakdown & res) const {
    if (!cparams.ridgefill.maps) {
        return;
    }
    for (const auto & buf : cparams.ridgefill.maps->bufs) {
        res[ggml_backend_buffer_get_type(buf.get())].model += ggml_backend_buffer_get_size(buf.get());
    }
}

void llama_context::ridgefill_state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    try {
        memory->ridgefill.state_read(io, seq_id, flags);
    } catch (const std::exception &) {
        // cells of unknown origin must not be used
        io.discard();
        if (seq_id < 0) {
            memory->clear(true);
        } else {
            memory->seq_rm(seq_id, -1, -1);
        }
        throw;
    }
}
