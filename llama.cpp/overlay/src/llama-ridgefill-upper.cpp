#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache-iswa.h"
#include "llama-model.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-marks.h"
#include "llama-ridgefill-states.h"

#include <algorithm>
#include <stdexcept>

// the ubatch that rows of one sequence had when they got their cells
static llama_ubatch build_ubatch(const llama_kv_cache & kv, llama_seq_id seq_id, const std::vector<llama_pos> & pos, const std::vector<int32_t> & cells) {
    const uint32_t n      = pos.size();
    const bool     stream = kv.get_n_stream() > 1;

    auto data = std::make_shared<llama_ubatch::data_t>();
    data->pos = pos;
    data->n_seq_id.assign(n, 1);
    data->seq_id_data.assign(n, seq_id);
    data->seq_id_unq = { seq_id };
    data->seq_idx.assign(LLAMA_MAX_SEQ, -1);
    data->seq_idx[seq_id] = 0;
    data->output.assign(n, 0);
    data->batch_idxs.assign(n, 0);
    for (uint32_t i = 0; i < n; ++i) {
        data->token.push_back(llama_ridgefill_cells::token(kv, cells[i]));
        data->seq_id.push_back(&data->seq_id_data[i]);
    }

    return {
        /*.b_equal_seqs =*/ stream,
        /*.n_tokens     =*/ n,
        /*.n_seq_tokens =*/ stream ? n : 1,
        /*.n_seqs       =*/ stream ? 1 : n,
        /*.n_seqs_unq   =*/ 1,
        /*.n_pos        =*/ 1,

        /*.token        =*/ data->token.data(),
        /*.embd         =*/ nullptr,
        /*.pos          =*/ data->pos.data(),
        /*.n_seq_id     =*/ data->n_seq_id.data(),
        /*.seq_id       =*/ data->seq_id.data(),
        /*.seq_id_unq   =*/ data->seq_id_unq.data(),
        /*.seq_idx      =*/ data->seq_idx.data(),
        /*.output       =*/ data->output.data(),
        /*.data         =*/ data,
    };
}

static llama_kv_cache::slot_info build_slot(const llama_kv_cache & kv, llama_seq_id seq_id, const std::vector<int32_t> & cells) {
    const uint32_t stream = kv.get_n_stream() > 1 ? seq_id : 0;

    llama_kv_cache::slot_info res;
    res.s0   = stream;
    res.s1   = stream;
    res.strm = { (llama_seq_id) stream };
    res.idxs.resize(1);
    for (const int32_t cell : cells) {
        res.idxs[0].push_back(cell - stream*kv.get_size());
    }
    res.in_place = true;
    return res;
}

// where the rows of one ubatch are in the caches; throws if one is gone
static std::vector<int32_t> find_cells(const llama_kv_cache & kv, llama_seq_id seq_id, const std::vector<llama_pos> & pos) {
    auto res = llama_ridgefill_cells::find(kv, seq_id, pos);
    for (size_t i = 0; i < pos.size(); ++i) {
        if (res[i] < 0) {
            throw std::runtime_error(format("position %d of sequence %d is not in the cache (hint: sliding windows drop old cells unless they are kept in full)", pos[i], seq_id));
        }
    }
    return res;
}

void llama_context::ridgefill_upper(llama_seq_id seq_id, const std::vector<llama_pos> & pos, const std::vector<llama_ridgefill_context::tail_output> & outputs) {
    if (!ridgefill.states) {
        throw std::runtime_error("split states are not kept (hint: keep_states of llama_ridgefill_context_params)");
    }

    const llama_ridgefill_cells kvs(memory.get());
    auto & marks = memory->ridgefill;

    for (const llama_pos p : pos) {
        if (!marks.states[seq_id].contains(p)) {
            throw std::runtime_error(format("position %d of sequence %d has no split state (hint: it came with a saved state, or ran before the maps were set)", p, seq_id));
        }
    }

    sched_reserve();
    memory_update(false);
    ridgefill_update();

    // callers of the last decode can still read its outputs
    const auto n_outputs_org = n_outputs;

    for (size_t i0 = 0; i0 < pos.size(); i0 += cparams.n_ubatch) {
        const std::vector<llama_pos> part(pos.begin() + i0, pos.begin() + std::min(pos.size(), i0 + cparams.n_ubatch));

        const auto cells  = find_cells(*kvs.base, seq_id, part);
        auto       ubatch = build_ubatch(*kvs.base, seq_id, part, cells);

        llama_memory_context_ptr mctx;
        if (kvs.swa) {
            mctx = std::make_unique<llama_kv_cache_iswa_context>(static_cast<llama_kv_cache_iswa *>(memory.get()),
                    llama_kv_cache::slot_info_vec_t { build_slot(*kvs.base, seq_id, cells) },
                    llama_kv_cache::slot_info_vec_t { build_slot(*kvs.swa,  seq_id, find_cells(*kvs.swa, seq_id, part)) },
                    std::vector<llama_ubatch> { ubatch });
        } else {
            mctx = std::make_unique<llama_kv_cache_context>(kvs.base,
                    llama_kv_cache::slot_info_vec_t { build_slot(*kvs.base, seq_id, cells) },
                    std::vector<llama_ubatch> { ubatch });
        }

        ridgefill.rows = cells;

        // outputs that this ubatch has, in its order
        std::vector<int64_t> rows_out;
        for (size_t i = 0; i < part.size(); ++i) {
            for (const auto & out : outputs) {
                if (out.pos == part[i]) {
                    ubatch.output[i] = 1;
                    rows_out.push_back(out.row);
                }
            }
        }
        n_outputs = rows_out.size();

        ggml_status status;
        cparams.ridgefill.mode = LLAMA_RIDGEFILL_MODE_UPPER;
        const auto * res = process_ubatch(ubatch, LLM_GRAPH_TYPE_DEFAULT, mctx.get(), status);
        cparams.ridgefill.mode = LLAMA_RIDGEFILL_MODE_FULL;

        if (!res) {
            throw std::runtime_error(format("failed to compute %zu rows, status %d", part.size(), (int) status));
        }

        if (auto * t_logits = rows_out.empty() ? nullptr : res->get_logits()) {
            const int64_t n_vocab = model.vocab.n_tokens();
            auto * backend = ggml_backend_sched_get_tensor_backend(sched.get(), t_logits);
            for (size_t i = 0; i < rows_out.size(); ++i) {
                ggml_backend_tensor_get_async(backend, t_logits, logits.data + rows_out[i]*n_vocab, i*n_vocab*sizeof(float), n_vocab*sizeof(float));
            }
        }
    }

    n_outputs = n_outputs_org;
}

// after rows have run again: rows that ran before and behind the first filled one still come from what it held
static void mark_approximate(llama_ridgefill_marks & marks, llama_seq_id seq_id, llama_pos from, const llama_ridgefill_ranges & rerun, llama_pos end) {
    while (from < end && rerun.contains(from)) {
        from++;
    }
    const auto & filled = marks.filled[seq_id].get();
    if (from < end && (filled.empty() || from < filled.front().p0)) {
        marks.healed_to[seq_id] = from;
    } else {
        marks.healed_to.erase(seq_id);
    }
}

// the prompts that the batch has ended: selected rows, then the tail
bool llama_context::ridgefill_finish() {
    auto & marks = memory->ridgefill;

    for (const auto & [seq_id, outputs] : ridgefill.finishing) {
        auto & selection = ridgefill.selections.at(seq_id);
        const llama_pos p_tail = selection.n_prompt - selection.tail;

        try {
            const llama_pos from = marks.approximate_from(seq_id);

            // reused rows may be exact, or have no split state
            llama_ridgefill_ranges able;
            for (const auto & r : marks.plan[seq_id].get()) {
                for (llama_pos p = r.p0; p < std::min(r.p1, p_tail); ++p) {
                    if (marks.filled[seq_id].contains(p) && marks.states[seq_id].contains(p)) {
                        able.add(p, p + 1, 0);
                    }
                }
            }

            ridgefill.selected = selection.choose(able);
            ridgefill_upper(seq_id, ridgefill.selected);
            for (const llama_pos p : ridgefill.selected) {
                marks.filled[seq_id].erase(p, p + 1);
            }

            std::vector<llama_pos> rows;
            for (llama_pos p = std::max(0, p_tail); p < selection.n_prompt; ++p) {
                if (marks.is_pending(seq_id, p)) {
                    rows.push_back(p);
                }
            }
            ridgefill_upper(seq_id, rows, outputs);
            marks.filled[seq_id].erase(p_tail, selection.n_prompt);

            llama_ridgefill_ranges rerun;
            for (const auto * part : { &ridgefill.selected, &rows }) {
                for (const llama_pos p : *part) {
                    rerun.add(p, p + 1, 0);
                }
            }
            mark_approximate(marks, seq_id, from, rerun, selection.n_prompt);

            ridgefill.counters.n_selected += ridgefill.selected.size();
        } catch (const std::exception & err) {
            llama_ridgefill_set_error(err.what());
            llama_memory_seq_rm(memory.get(), seq_id, std::max(0, p_tail), -1);
            ridgefill.selections.erase(seq_id);
            ridgefill.finishing.clear();
            return false;
        }

        selection.tensors.clear();
        ridgefill.selected_last = std::move(selection);
        ridgefill.selections.erase(seq_id);
    }

    ridgefill.finishing.clear();
    return true;
}

int32_t llama_context::ridgefill_heal(llama_seq_id seq_id, int32_t n_max) {
    auto & marks = memory->ridgefill;

    const llama_pos from = marks.approximate_from(seq_id);
    const llama_pos last = memory->seq_pos_max(seq_id);
    if (from > last) {
        return 0;
    }

    const int32_t n = std::min(n_max, last + 1 - from);
    std::vector<llama_pos> pos(n);
    for (int32_t i = 0; i < n; ++i) {
        pos[i] = from + i;
    }
    ridgefill_upper(seq_id, pos);

    // all rows before are exact, so these are now; later ones still saw what was filled here
    marks.filled[seq_id].erase(from, from + n);
    marks.healed_to[seq_id] = from + n;
    if (from + n > last) {
        marks.healed_to.erase(seq_id);
    }
    ridgefill.counters.n_healed += n;

    return n;
}
