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

//
// errors
//

static std::string & last_error() {
    static thread_local std::string msg;
    return msg;
}

void llama_ridgefill_set_error(const std::string & msg, bool log) {
    if (log && !msg.empty()) {
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

static void keep_left_cells(llama_memory_i & memory, bool keep) {
    if (auto * swa = llama_ridgefill_cells(&memory).swa) {
        swa->ridgefill.keeps_left = keep;
    }
}

namespace {

struct without_states {
    llama_ridgefill_cparams & cparams;
    ggml_tensor * const       states;

    explicit without_states(llama_ridgefill_cparams & cparams) : cparams(cparams), states(std::exchange(cparams.states, nullptr)) {}
    ~without_states() { cparams.states = states; }
};

} // namespace

int32_t llama_context::set_ridgefill(llama_ridgefill * maps, const llama_ridgefill_context_params & params) {
    // graphs that use other maps must not be taken for graphs that use these
    sched_need_reserve = true;

    if (!maps) {
        synchronize();
        cparams.ridgefill.maps  = nullptr;
        cparams.ridgefill.split = -1;
        cparams.ridgefill.states = nullptr;
        ridgefill.states.reset();
        ridgefill.selections.clear();
        if (memory) {
            memory->ridgefill.plan.clear();
            memory->ridgefill.states.clear();
            keep_left_cells(*memory, false);
        }
        return 0;
    }

    const int32_t split = params.split < 0 ? maps->recommended_split : params.split;

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
        // of maps that are set, the graph would keep the states
        const without_states guard(cparams.ridgefill);
        graph_reserve(std::min<uint32_t>(cparams.n_ubatch, 2*cparams.n_seq_max), cparams.n_seq_max, 1, mctx.get(), true);
        sched_need_reserve = true;
        llama_ridgefill_rewrite_fill(model, *gf_res_reserve, *maps, split);
    }

    const llama_ridgefill_cells kvs(memory.get());
    memory->ridgefill.shared_cells = !kvs.base || kvs.base->get_n_stream() == 1;

    std::unique_ptr<llama_ridgefill_states> states;
    if (params.keep_states) {
        if (const auto why = ridgefill_states_conflict(); !why.empty()) {
            throw std::runtime_error(why);
        }
        states = std::make_unique<llama_ridgefill_states>(model, *kvs.base, split, params.type_states);
    }

    cparams.ridgefill.maps   = maps;
    cparams.ridgefill.split  = split;
    cparams.ridgefill.states = states ? states->x : nullptr;
    cparams.ridgefill.rows   = &ridgefill.rows;

    // what the cells hold stays true, what was planned was planned for other maps
    keep_left_cells(*memory, states != nullptr);
    memory->ridgefill.states.clear();
    memory->ridgefill.copies.clear();
    memory->ridgefill.plan.clear();
    ridgefill.selections.clear();
    ridgefill.states = std::move(states);

    // a mode that the model's graph does not allow is refused now, not at the first prompt
    try {
        sched_reserve();
    } catch (const std::exception & err) {
        const std::string why = llama_ridgefill_get_error();
        set_ridgefill(nullptr, {});
        throw std::runtime_error(why.empty() ? err.what() : why);
    }
    return 0;
}

bool llama_context::has_samplers() const {
    return !sampling.samplers.empty();
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

std::string llama_context::ridgefill_states_conflict() const {
    return memory ? llama_ridgefill_cells(memory.get()).conflict(model) : format("architecture '%s' keeps no memory", llm_arch_name(model.arch));
}

int32_t llama_context::ridgefill_split() const {
    return cparams.ridgefill.maps ? cparams.ridgefill.split : -1;
}

llama_ridgefill_marks * llama_context::ridgefill_marks() const {
    return memory ? &memory->ridgefill : nullptr;
}

// the worst cases of all modes, so that a change of mode does not reallocate
// selections that ask for more heads or queries than the maps file do once, if their graph is larger than that of all
// layers; in a cache of several streams also those with more queries than a stream's share of a ubatch
bool llama_context::ridgefill_reserve(uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs, const llama_memory_context_i * mctx) {
    auto & cur = cparams.ridgefill;
    if (!cur.maps) {
        return true;
    }
    const auto reserve = [&](llama_ridgefill_mode mode, const char * name, uint32_t n_outputs) {
        cur.mode = mode;
        auto * gf = graph_reserve(n_tokens, n_seqs, n_outputs, mctx, model.hparams.no_alloc);
        cur.mode = LLAMA_RIDGEFILL_MODE_FULL;
        if (gf) {
            LLAMA_LOG_INFO("ridgefill_reserve: %s graph nodes = %d, split = %d\n", name, ggml_graph_n_nodes(gf), cur.split);
        }
        return gf != nullptr;
    };

    if (!reserve(LLAMA_RIDGEFILL_MODE_FILL, "FILL", 1)) {
        return false;
    }
    if (!cur.states) {
        return true;
    }

    llama_ridgefill_selection selection = {};
    selection.heads = cur.maps->splits.at(cur.split).heads;
    cur.selection   = &selection;
    const int32_t n_most = cparams.kv_unified ? n_tokens : n_tokens/n_seqs;
    cur.n_query     = selection.heads.empty() ? 0 : std::min(n_most, llama_ridgefill_default_select_params(cur.maps, cur.split).n_query);
    cur.n_end       = std::min(cur.n_query, LLAMA_RIDGEFILL_N_END);
    const bool lower = reserve(LLAMA_RIDGEFILL_MODE_LOWER, "LOWER", 1);
    cur.selection = nullptr;
    cur.n_query   = 0;
    cur.n_end     = 0;

    return lower && reserve(LLAMA_RIDGEFILL_MODE_UPPER, "UPPER", n_outputs);
}

// sequences with cells of their own were copied: their split states follow, as K and V do
void llama_context::ridgefill_update() {
    if (!memory) {
        return;
    }
    auto & copies = memory->ridgefill.copies;
    if (ridgefill.states && !copies.empty()) {
        synchronize();
        for (const auto & [src, dst] : copies) {
            ridgefill.states->copy(src, dst);
        }
    }
    copies.clear();
}

void llama_context::ridgefill_memory_breakdown(llama_memory_breakdown & res) const {
    if (!cparams.ridgefill.maps) {
        return;
    }
    if (ridgefill.states) {
        res[ggml_backend_buffer_get_type(ridgefill.states->buffer())].context += ggml_backend_buffer_get_size(ridgefill.states->buffer());
    }
    for (const auto & buf : cparams.ridgefill.maps->bufs) {
        res[ggml_backend_buffer_get_type(buf.get())].model += ggml_backend_buffer_get_size(buf.get());
    }
}
