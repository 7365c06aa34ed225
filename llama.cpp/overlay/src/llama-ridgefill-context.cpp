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

bool llama_ridgefill_context::on_batch(llama_batch_allocr & balloc, llama_context & ctx) {
    ctx.ridgefill_update();

    const auto & batch   = balloc.get_batch();
    const auto & marks   = *ctx.ridgefill_marks();
    const auto & cparams = ctx.get_cparams();

    auto & mode = balloc.ridgefill_mode;
    mode.clear();

    if (capture && (uint32_t) batch.n_tokens > cparams.n_ubatch) {
        llama_ridgefill_set_error(format("a captured batch must fit one ubatch: expected at most %u tokens, found %d", cparams.n_ubatch, batch.n_tokens));
        return false;
    }
    n_outputs = 0;
    finishing.clear();
    if (!cparams.ridgefill.maps || (marks.plan.empty() && selections.empty())) {
        return true;
    }

    bool any = false;
    std::vector<int16_t> cur(batch.n_tokens, LLAMA_RIDGEFILL_MODE_FULL);

    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        const llama_seq_id seq_id = batch.seq_id[i][0];
        if (const auto it = selections.find(seq_id); it != selections.end() && batch.pos[i] >= it->second.n_prompt - it->second.tail) {
            if (batch.n_seq_id[i] != 1 || !it->second.is_tail(batch.pos[i])) {
                llama_ridgefill_set_error(format("position %d of sequence %d needs rows of a tail that waits for the selected rows (hint: end the batch with the prompt, in one sequence)",
                            batch.pos[i], seq_id));
                return false;
            }
            // ubatches of tails hold rows of one sequence
            cur[i] = LLAMA_RIDGEFILL_MODE_LOWER + seq_id;
            any    = true;
            if (batch.pos[i] == it->second.n_prompt - 1) {
                finishing[seq_id] = {};
            }
            continue;
        }

        bool fill = true;
        for (int32_t s = 0; s < batch.n_seq_id[i] && fill; ++s) {
            fill = marks.is_planned(batch.seq_id[i][s], batch.pos[i]);
        }
        if (!fill) {
            continue;
        }
        if (batch.embd && !batch.token) {
            continue; // images and the like run exact
        }
        if (batch.logits[i]) {
            llama_ridgefill_set_error(format("position %d of sequence %d is marked as filled but asks for output (hint: only exact rows have logits)",
                        batch.pos[i], batch.seq_id[i][0]));
            return false;
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
    if (capture) {
        llama_ridgefill_set_error("rows cannot be filled while sites are captured (hint: llama_ridgefill_capture(ctx, -1))");
        return false;
    }
    if (!selections.empty() && ctx.has_samplers()) {
        llama_ridgefill_set_error("rows cannot be selected: a sampler runs on the device, and the tail gets its logits after the other rows");
        return false;
    }
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        if (cur[i] >= LLAMA_RIDGEFILL_MODE_LOWER && batch.logits[i] && finishing.count(batch.seq_id[i][0]) == 0) {
            llama_ridgefill_set_error(format("position %d of sequence %d asks for output before the end of its prompt (hint: the tail waits for the selected rows)",
                        batch.pos[i], batch.seq_id[i][0]));
            return false;
        }
    }
    mode = std::move(cur);
    return true;
}

void llama_ridgefill_context::on_ubatch(const llama_batch_allocr & balloc, const llama_ubatch & ubatch, llama_cparams & cparams) {
    t_start_us = ggml_time_us();

    const auto & mode = balloc.ridgefill_mode;
    const int cur = mode.empty() ? 0 : mode.at(ubatch.data->batch_idxs.at(0));

    cparams.ridgefill.mode = (llama_ridgefill_mode) std::min<int>(cur, LLAMA_RIDGEFILL_MODE_LOWER);

    if (cparams.ridgefill.mode == LLAMA_RIDGEFILL_MODE_LOWER) {
        auto & selection = selections.at(ubatch.seq_id[0][0]);
        if (selection.type == LLAMA_RIDGEFILL_SELECT_ATTENTION) {
            const llama_pos last = ubatch.pos[ubatch.n_tokens - 1];
            cparams.ridgefill.selection = &selection;
            cparams.ridgefill.n_query   = std::max(0, std::min<int32_t>(ubatch.n_tokens, last + 1 - (selection.n_prompt - selection.n_query)));
        }
    }
}

// the largest score of each position, from scores by cell
static void add_scores(llama_ridgefill_selection & selection, llama_seq_id seq_id, llama_memory_i & memory, const llama_hparams & hparams) {
    const llama_ridgefill_cells kvs(&memory);

    std::vector<float> data;
    size_t i_scores = 0;
    for (size_t i = 0; i < selection.heads.size(); ++i) {
        const auto * t = selection.tensors.at(i);
        data.resize(ggml_nelements(t));
        ggml_backend_tensor_get(t, data.data(), 0, ggml_nbytes(t));

        const auto & kv = kvs.swa && hparams.is_swa(selection.heads[i].layer) ? *kvs.swa : *kvs.base;
        const auto & cells = kv.get_cells(seq_id).seq_pos_get(seq_id);
        for (int64_t head = 0; head < t->ne[2]; ++head) {
            auto & scores = selection.scores.at(i_scores++);
            for (const auto & [pos, cell] : cells) {
                if (pos < selection.n_prompt && cell < t->ne[0]) {
                    scores[pos] = std::max(scores[pos], data[head*t->ne[0] + cell]);
                }
            }
        }
    }
}

void llama_ridgefill_context::on_done(const llm_graph_result * res, const llama_ubatch & ubatch, llama_memory_i & memory, llama_cparams & cparams) {
    const bool fill  = cparams.ridgefill.mode == LLAMA_RIDGEFILL_MODE_FILL;
    const bool lower = cparams.ridgefill.mode == LLAMA_RIDGEFILL_MODE_LOWER;

    auto & marks = memory.ridgefill;

    if (res && lower) {
        const llama_seq_id seq_id = ubatch.seq_id[0][0];
        auto & selection = selections.at(seq_id);
        if (cparams.ridgefill.n_query > 0) {
            add_scores(selection, seq_id, memory, cparams.ridgefill.maps->model.hparams);
        }
    }
    cparams.ridgefill.selection = nullptr;
    cparams.ridgefill.n_query   = 0;

    cparams.ridgefill.mode = LLAMA_RIDGEFILL_MODE_FULL;

    if (!res) {
        return;
    }

    if (cparams.ridgefill.states) {
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            for (int32_t s = 0; s < ubatch.n_seq_id[i]; ++s) {
                marks.states[ubatch.seq_id[i][s]].add(ubatch.pos[i], ubatch.pos[i] + 1, 0);
            }
        }
    }

    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        if (!ubatch.output[i]) {
            continue;
        }
        if (lower) {
            finishing.at(ubatch.seq_id[i][0]).push_back({ ubatch.pos[i], n_outputs });
        }
        n_outputs++;
    }

    if (fill || lower || !marks.filled.empty()) {
        const uint64_t id = lower ? llama_ridgefill_marks::ID_PENDING : fill ? cparams.ridgefill.maps->cell_id(cparams.ridgefill.split) : 0;
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            for (int32_t s = 0; s < ubatch.n_seq_id[i]; ++s) {
                const llama_seq_id seq_id = ubatch.seq_id[i][s];
                if (fill || lower) {
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
        graph_reserve(std::min<uint32_t>(cparams.n_ubatch, 2*cparams.n_seq_max), cparams.n_seq_max, 1, mctx.get(), true);
        sched_need_reserve = true;
        llama_ridgefill_rewrite_fill(model, *gf_res_reserve, *maps, split);
    }

    const llama_ridgefill_cells kvs(memory.get());
    memory->ridgefill.shared_cells = !kvs.base || kvs.base->get_n_stream() == 1;

    std::unique_ptr<llama_ridgefill_states> states;
    if (params.keep_states) {
        if (!kvs.base || model.hparams.n_pos_per_embd() != 1) {
            throw std::runtime_error(format("architecture '%s' cannot run filled rows again: its memory is not an attention cache with one position per row (hint: leave out keep_states)",
                        llm_arch_name(model.arch)));
        }
        states = std::make_unique<llama_ridgefill_states>(model, *kvs.base, split, params.type_states);
    }

    cparams.ridgefill.maps   = maps;
    cparams.ridgefill.split  = split;
    cparams.ridgefill.states = states ? states->x : nullptr;
    cparams.ridgefill.rows   = &ridgefill.rows;

    // what the cells hold stays true, what was planned was planned for other maps
    memory->ridgefill.states.clear();
    memory->ridgefill.copies.clear();
    memory->ridgefill.plan.clear();
    ridgefill.selections.clear();
    ridgefill.states = std::move(states);

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
