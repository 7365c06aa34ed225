#include "llama-ridgefill-context.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-marks.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

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

static void keep_left_cells(llama_memory_i & memory, bool keep) {
    if (auto * swa = llama_ridgefill_cells(&memory).swa) {
        swa->ridgefill.keeps_left = keep;
    }
}

int32_t llama_ridgefill_context::set(llama_ridgefill * maps, const llama_ridgefill_context_params & params) {
    // graphs that use other maps must not be taken for graphs that use these
    ctx.sched_need_reserve = true;

    if (!maps) {
        ctx.synchronize();
        ctx.cparams.ridgefill.maps   = nullptr;
        ctx.cparams.ridgefill.split  = -1;
        ctx.cparams.ridgefill.states = nullptr;
        states.reset();
        selections.clear();
        if (ctx.memory) {
            ctx.memory->ridgefill.plan.clear();
            ctx.memory->ridgefill.states.clear();
            keep_left_cells(*ctx.memory, false);
        }
        return 0;
    }

    const int32_t split = params.split < 0 ? maps->recommended_split : params.split;

    if (&maps->model != &ctx.model) {
        throw std::runtime_error("the maps were loaded for another model object");
    }
    if (!ctx.memory) {
        throw std::runtime_error(
            format("architecture '%s' cannot be filled: the context keeps no memory", llm_arch_name(ctx.model.arch)));
    }
    if (maps->splits.count(split) == 0) {
        std::string splits;
        for (const auto & it : maps->splits) {
            splits += (splits.empty() ? "" : ", ") + std::to_string(it.first);
        }
        throw std::runtime_error(format("split %d is not in the maps file (hint: it has %s)", split, splits.c_str()));
    }
    if (const auto why = llama_ridgefill_conflict(ctx.cparams, has_adapters()); !why.empty()) {
        throw std::runtime_error(why);
    }

    // rewrite a graph once, so that a model that cannot be served is refused now
    ctx.synchronize();
    ctx.sched_reserve();
    {
        const auto mctx = ctx.memory->init_full();
        if (!mctx) {
            throw std::runtime_error("failed to initialize the memory module");
        }
        // of maps that are set, the graph would keep the states
        const llama_ridgefill_scope scope(ctx.cparams.ridgefill);
        ctx.cparams.ridgefill.states = nullptr;
        ctx.graph_reserve(std::min<uint32_t>(ctx.cparams.n_ubatch, 2 * ctx.cparams.n_seq_max), ctx.cparams.n_seq_max, 1,
                          mctx.get(), true);
        ctx.sched_need_reserve = true;
        llama_ridgefill_rewrite_fill(ctx.model, *ctx.gf_res_reserve, *maps, split);
    }

    const llama_ridgefill_cells kvs(ctx.memory.get());
    ctx.memory->ridgefill.shared_cells = !kvs.base || kvs.base->get_n_stream() == 1;

    std::unique_ptr<llama_ridgefill_states> states_new;
    if (params.keep_states) {
        if (const auto why = states_conflict(); !why.empty()) {
            throw std::runtime_error(why);
        }
        states_new = std::make_unique<llama_ridgefill_states>(ctx.model, *kvs.base, split, params.type_states);
    }

    ctx.cparams.ridgefill.maps   = maps;
    ctx.cparams.ridgefill.split  = split;
    ctx.cparams.ridgefill.states = states_new ? states_new->x : nullptr;
    ctx.cparams.ridgefill.rows   = &upper_cells;

    // what the cells hold stays true, what was planned was planned for other maps
    keep_left_cells(*ctx.memory, states_new != nullptr);
    ctx.memory->ridgefill.states.clear();
    ctx.memory->ridgefill.copies.clear();
    ctx.memory->ridgefill.plan.clear();
    selections.clear();
    states = std::move(states_new);

    // a mode that the model's graph does not allow is refused now, not at the first prompt
    try {
        ctx.sched_reserve();
    } catch (const std::exception & err) {
        const std::string why = llama_ridgefill_get_error();
        set(nullptr, {});
        throw std::runtime_error(why.empty() ? err.what() : why);
    }
    return 0;
}

bool llama_ridgefill_context::has_samplers() const {
    return !ctx.sampling.samplers.empty();
}

bool llama_ridgefill_context::has_adapters() const {
    const auto any_cvec = [&]() {
        for (uint32_t il = 0; ctx.cvec && il < ctx.model.hparams.n_layer(); ++il) {
            if (ctx.cvec->tensor_for(il)) {
                return true;
            }
        }
        return false;
    };
    return (ctx.loras && !ctx.loras->empty()) || any_cvec();
}

std::string llama_ridgefill_context::states_conflict() const {
    return ctx.memory ? llama_ridgefill_cells(ctx.memory.get()).conflict(ctx.model) :
                        format("architecture '%s' keeps no memory", llm_arch_name(ctx.model.arch));
}

int32_t llama_ridgefill_context::split() const {
    return ctx.cparams.ridgefill.maps ? ctx.cparams.ridgefill.split : -1;
}

llama_ridgefill_marks * llama_ridgefill_context::marks() const {
    return ctx.memory ? &ctx.memory->ridgefill : nullptr;
}

// the worst cases of all modes, so that a change of mode does not reallocate
// selections that ask for more heads or queries than the maps file do once, if their graph is larger than that of all
// layers; in a cache of several streams also those with more queries than a stream's share of a ubatch
void llama_ridgefill_context::reserve(uint32_t                       n_tokens,
                                      uint32_t                       n_seqs,
                                      uint32_t                       n_outputs,
                                      const llama_memory_context_i * mctx) {
    auto & cur = ctx.cparams.ridgefill;
    if (!cur.maps) {
        return;
    }
    const llama_ridgefill_scope scope(cur);

    const auto reserve_mode = [&](llama_ridgefill_mode mode, const char * name, uint32_t n_out) {
        cur.mode  = mode;
        auto * gf = ctx.graph_reserve(n_tokens, n_seqs, n_out, mctx, ctx.model.hparams.no_alloc);
        if (gf) {
            LLAMA_LOG_INFO("ridgefill_reserve: %s graph nodes = %d, split = %d\n", name, ggml_graph_n_nodes(gf),
                           cur.split);
        }
        return gf != nullptr;
    };

    bool ok = reserve_mode(LLAMA_RIDGEFILL_MODE_FILL, "FILL", 1);
    if (ok && cur.states) {
        llama_ridgefill_selection selection = {};
        selection.heads                     = cur.maps->splits.at(cur.split).heads;
        cur.selection                       = &selection;
        const int32_t n_most                = ctx.cparams.kv_unified ? n_tokens : n_tokens / n_seqs;
        cur.n_query   = selection.heads.empty() ?
                            0 :
                            std::min(n_most, llama_ridgefill_default_select_params(cur.maps, cur.split).n_query);
        cur.n_end     = std::min(cur.n_query, llama_ridgefill_selection::N_END);
        ok            = reserve_mode(LLAMA_RIDGEFILL_MODE_LOWER, "LOWER", 1);
        cur.selection = nullptr;
        cur.n_query   = 0;

        ok = ok && reserve_mode(LLAMA_RIDGEFILL_MODE_UPPER, "UPPER", n_outputs);
    }
    if (!ok) {
        throw std::runtime_error("failed to allocate compute buffers for RidgeFill");
    }
}

// sequences with cells of their own were copied: their split states follow, as K and V do
void llama_ridgefill_context::update() {
    if (!ctx.memory) {
        return;
    }
    auto & copies = ctx.memory->ridgefill.copies;
    if (states && !copies.empty()) {
        ctx.synchronize();
        for (const auto & [src, dst] : copies) {
            states->copy(src, dst);
        }
    }
    copies.clear();
}

void llama_ridgefill_context::memory_breakdown(llama_memory_breakdown & res) const {
    if (!ctx.cparams.ridgefill.maps) {
        return;
    }
    if (states) {
        res[ggml_backend_buffer_get_type(states->buffer())].context += ggml_backend_buffer_get_size(states->buffer());
    }
    for (const auto & buf : ctx.cparams.ridgefill.maps->bufs) {
        res[ggml_backend_buffer_get_type(buf.get())].model += ggml_backend_buffer_get_size(buf.get());
    }
}
