// what llama_context::decode calls around each batch and each of its ubatches

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-ridgefill-context.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-marks.h"

#include <algorithm>

// rows of a tail that waits for a selection have no K and V above the split yet: whatever comes behind them would be
// computed from cells that nobody has written; only the rest of the same tail may follow
// returns why a row cannot run, "" if it can
static std::string find_pending(const llama_batch &                                       batch,
                                const llama_ridgefill_marks &                             marks,
                                const std::map<llama_seq_id, llama_ridgefill_selection> & selections) {
    if (!marks.has_pending()) {
        return "";
    }
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        for (int32_t s = 0; s < batch.n_seq_id[i]; ++s) {
            const llama_seq_id seq_id  = batch.seq_id[i][s];
            const auto         it      = selections.find(seq_id);
            const bool         is_tail = it != selections.end() && it->second.is_tail(batch.pos[i]);

            const llama_pos from = marks.pending_from(seq_id);
            if (from < (is_tail ? it->second.n_prompt - it->second.tail : batch.pos[i])) {
                return format(
                    "position %d of sequence %d comes behind rows from %d on that wait for selected rows which were "
                    "given up (hint: remove the waiting rows, llama_memory_seq_rm(mem, %d, %d, -1))",
                    batch.pos[i], seq_id, from, seq_id, from);
            }
        }
    }
    return "";
}

// the index of a group, which is added if the batch has none like it
int16_t llama_ridgefill_context::group_of(llama_ridgefill_mode mode, llama_seq_id seq_id) {
    const row_group group = { mode, seq_id };

    const auto it = std::find(groups.begin(), groups.end(), group);
    if (it != groups.end()) {
        return it - groups.begin();
    }
    groups.push_back(group);
    return groups.size() - 1;
}

bool llama_ridgefill_context::on_batch(llama_batch_allocr & balloc) {
    update();

    const auto & batch   = balloc.get_batch();
    const auto & marks   = ctx.memory->ridgefill;
    const auto & cparams = ctx.cparams;

    balloc.ridgefill_group.clear();
    groups = {
        { LLAMA_RIDGEFILL_MODE_FULL, -1 }
    };

    if (const auto why = find_pending(batch, marks, selections); !why.empty()) {
        llama_ridgefill_set_error(why);
        return false;
    }
    if (capture && (uint32_t) batch.n_tokens > cparams.n_ubatch) {
        llama_ridgefill_set_error(format("a captured batch must fit one ubatch: expected at most %u tokens, found %d",
                                         cparams.n_ubatch, batch.n_tokens));
        return false;
    }
    n_outputs = 0;
    finishing.clear();
    if (!cparams.ridgefill.maps || (marks.plan.empty() && selections.empty())) {
        return true;
    }

    std::vector<int16_t> cur(batch.n_tokens, 0);

    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        // the sequence whose tail the row belongs to
        auto it = selections.end();
        for (int32_t s = 0; s < batch.n_seq_id[i] && it == selections.end(); ++s) {
            it = selections.find(batch.seq_id[i][s]);
            if (it != selections.end() && batch.pos[i] < it->second.n_prompt - it->second.tail) {
                it = selections.end();
            }
        }
        if (it != selections.end()) {
            const auto & [seq_id, selection] = *it;
            if (batch.n_seq_id[i] != 1 || !selection.is_tail(batch.pos[i])) {
                llama_ridgefill_set_error(
                    format("position %d of sequence %d needs rows of a tail that waits for the selected rows (hint: "
                           "end the batch with the prompt, in one sequence)",
                           batch.pos[i], seq_id));
                return false;
            }
            cur[i] = group_of(LLAMA_RIDGEFILL_MODE_LOWER, seq_id);
            if (batch.pos[i] == selection.n_prompt - 1) {
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
            continue;  // images and the like run exact
        }
        if (batch.logits[i]) {
            llama_ridgefill_set_error(
                format("position %d of sequence %d is marked as filled but asks for output (hint: only exact rows have "
                       "logits)",
                       batch.pos[i], batch.seq_id[i][0]));
            return false;
        }
        cur[i] = group_of(LLAMA_RIDGEFILL_MODE_FILL);
    }

    if (groups.size() == 1) {
        return true;
    }
    if (const auto why = llama_ridgefill_conflict(cparams, has_adapters()); !why.empty()) {
        llama_ridgefill_set_error("rows cannot be filled: " + why);
        return false;
    }
    if (capture) {
        llama_ridgefill_set_error(
            "rows cannot be filled while sites are captured (hint: llama_ridgefill_capture(ctx, -1))");
        return false;
    }
    if (!selections.empty() && has_samplers()) {
        llama_ridgefill_set_error(
            "rows cannot be selected: a sampler runs on the device, and the tail gets its logits after the other rows");
        return false;
    }
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        const auto & group = groups[cur[i]];
        if (group.mode == LLAMA_RIDGEFILL_MODE_LOWER && batch.logits[i] && finishing.count(group.seq_id) == 0) {
            llama_ridgefill_set_error(
                format("position %d of sequence %d asks for output before the end of its prompt (hint: the tail waits "
                       "for the selected rows)",
                       batch.pos[i], group.seq_id));
            return false;
        }
    }
    balloc.ridgefill_group = std::move(cur);
    return true;
}

llama_ridgefill_scope llama_ridgefill_context::on_ubatch(const llama_batch_allocr & balloc,
                                                         const llama_ubatch &       ubatch) {
    t_start_us = ggml_time_us();

    auto &     cur   = ctx.cparams.ridgefill;
    const auto saved = cur;

    if (!balloc.ridgefill_group.empty()) {
        const auto & group = groups.at(balloc.ridgefill_group.at(ubatch.data->batch_idxs.at(0)));

        cur.mode = group.mode;
        if (group.mode == LLAMA_RIDGEFILL_MODE_LOWER) {
            auto & selection = selections.at(group.seq_id);
            if (selection.type == LLAMA_RIDGEFILL_SELECT_ATTENTION) {
                const llama_pos last  = ubatch.pos[ubatch.n_tokens - 1];
                const int32_t   n_end = std::min(selection.n_query, llama_ridgefill_selection::N_END);

                cur.selection = &selection;
                cur.n_query   = selection.n_of_last(selection.n_query, last, ubatch.n_tokens);
                cur.n_end     = selection.n_of_last(n_end, last, ubatch.n_tokens);
            }
        }
    }
    return llama_ridgefill_scope(cur, saved);
}

// the largest score of each position, from scores by cell
static void add_scores(llama_ridgefill_selection & selection,
                       llama_seq_id                seq_id,
                       llama_memory_i &            memory,
                       const llama_hparams &       hparams,
                       bool                        has_end) {
    const llama_ridgefill_cells kvs(&memory);

    std::vector<float> data;
    size_t             i_scores = 0;
    for (size_t i = 0; i < selection.heads.size(); ++i) {
        const auto * t = selection.tensors.at(i);
        data.resize(ggml_nelements(t));
        ggml_backend_tensor_get(t, data.data(), 0, ggml_nbytes(t));

        const auto & kv    = kvs.swa && hparams.is_swa(selection.heads[i].layer) ? *kvs.swa : *kvs.base;
        const auto & cells = kv.get_cells(seq_id).seq_pos_get(seq_id);
        const auto   add   = [&](std::vector<float> & scores, int64_t i_row) {
            for (const auto & [pos, cell] : cells) {
                if (pos < selection.n_prompt && cell < t->ne[0]) {
                    scores[pos] = std::max(scores[pos], data[i_row * t->ne[0] + cell]);
                }
            }
        };
        const int64_t n_head = has_end ? t->ne[2] / 2 : t->ne[2];
        for (int64_t head = 0; head < n_head; ++head, ++i_scores) {
            add(selection.scores.at(i_scores), head);
            if (has_end) {
                add(selection.scores_end.at(i_scores), n_head + head);
            }
        }
    }
}

void llama_ridgefill_context::on_done(const llm_graph_result * res, const llama_ubatch & ubatch) {
    auto & memory  = *ctx.memory;
    auto & cparams = ctx.cparams;

    const bool fill  = cparams.ridgefill.mode == LLAMA_RIDGEFILL_MODE_FILL;
    const bool lower = cparams.ridgefill.mode == LLAMA_RIDGEFILL_MODE_LOWER;

    auto & marks = memory.ridgefill;

    if (res && lower) {
        const llama_seq_id seq_id    = ubatch.seq_id[0][0];
        auto &             selection = selections.at(seq_id);
        if (cparams.ridgefill.n_query > 0) {
            ggml_backend_sched_synchronize(ctx.sched.get());  // the graph has been started, not finished
            add_scores(selection, seq_id, memory, cparams.ridgefill.maps->model.hparams, cparams.ridgefill.n_end > 0);
        }
    }
    if (capture) {
        capture->on_done(res);
    }
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
        const uint64_t id = lower ? llama_ridgefill_marks::ID_PENDING :
                            fill  ? cparams.ridgefill.maps->cell_id(cparams.ridgefill.split) :
                                    0;
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

    const int64_t t_us = ggml_time_us() - t_start_us;

    (fill ? counters.n_filled : counters.n_exact) += ubatch.n_tokens;
    (fill ? counters.n_ubatch_filled : counters.n_ubatch_exact) += 1;
    (fill ? counters.t_filled_us : counters.t_exact_us) += t_us;
}
