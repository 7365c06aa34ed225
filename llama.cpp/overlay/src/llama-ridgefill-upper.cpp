#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache-iswa.h"
#include "llama-model.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-marks.h"
#include "llama-ridgefill-states.h"

#include <algorithm>
#include <set>
#include <stdexcept>

using upper_rows = std::vector<llama_ridgefill_row>;

// the cell of each row, throws if one is gone
static std::vector<int32_t> find_cells(const llama_kv_cache & kv, const upper_rows & rows) {
    std::vector<int32_t> res;
    for (const auto & row : rows) {
        res.push_back(llama_ridgefill_cells::find(kv, row.seq_id, row.pos));
        if (res.back() < 0) {
            throw std::runtime_error(
                format("position %d of sequence %d is not in the cache (hint: sliding windows drop old cells unless "
                       "they are kept in full)",
                       row.pos, row.seq_id));
        }
    }
    return res;
}

// the rows of each ubatch; those of one sequence stay in their order
// unified cache: any mix of sequences, no cell twice; otherwise equal numbers of rows of consecutive sequences
static std::vector<upper_rows> split_rows(const llama_kv_cache & kv, const upper_rows & rows, size_t n_ubatch) {
    std::vector<upper_rows> res;

    if (kv.get_n_stream() == 1) {
        std::set<int32_t> seen;
        for (const auto & row : rows) {
            const int32_t cell = llama_ridgefill_cells::find(kv, row.seq_id, row.pos);
            if (res.empty() || res.back().size() == n_ubatch || seen.count(cell)) {
                res.emplace_back();
                seen.clear();
            }
            seen.insert(cell);
            res.back().push_back(row);
        }
        return res;
    }

    std::map<llama_seq_id, upper_rows> left;  // the next row last
    for (auto it = rows.rbegin(); it != rows.rend(); ++it) {
        left[it->seq_id].push_back(*it);
    }
    while (!left.empty()) {
        const llama_seq_id first  = left.begin()->first;
        size_t             n_seqs = 0;
        size_t             n_rows = n_ubatch;
        for (const auto & [seq_id, cur] : left) {
            if (seq_id != first + (llama_seq_id) n_seqs || n_seqs == n_ubatch) {
                break;
            }
            n_rows = std::min(n_rows, cur.size());
            n_seqs++;
        }
        n_rows = std::min(n_rows, n_ubatch / n_seqs);

        res.emplace_back();
        for (size_t s = 0; s < n_seqs; ++s) {
            const auto it = left.find(first + s);
            res.back().insert(res.back().end(), it->second.rbegin(), it->second.rbegin() + n_rows);
            it->second.resize(it->second.size() - n_rows);
            if (it->second.empty()) {
                left.erase(it);
            }
        }
    }
    return res;
}

// the ubatch that the rows could have had when they got their cells
static llama_ubatch build_ubatch(const llama_kv_cache &       kv,
                                 const upper_rows &           rows,
                                 const std::vector<int32_t> & cells) {
    const uint32_t n     = rows.size();
    const bool     equal = kv.get_n_stream() > 1;

    auto data = std::make_shared<llama_ubatch::data_t>();
    data->n_seq_id.assign(n, 1);
    data->seq_idx.assign(LLAMA_MAX_SEQ, -1);
    data->batch_idxs.assign(n, 0);
    data->seq_id_data.reserve(n);

    std::set<llama_seq_id> seq_ids;
    for (uint32_t i = 0; i < n; ++i) {
        data->pos.push_back(rows[i].pos);
        data->output.push_back(rows[i].out >= 0);
        data->token.push_back(llama_ridgefill_cells::token(kv, cells[i]));
        data->seq_id_data.push_back(rows[i].seq_id);
        data->seq_id.push_back(&data->seq_id_data[i]);
        seq_ids.insert(rows[i].seq_id);
    }
    for (const llama_seq_id seq_id : seq_ids) {
        data->seq_idx[seq_id] = data->seq_id_unq.size();
        data->seq_id_unq.push_back(seq_id);
    }

    const uint32_t n_seqs = equal ? seq_ids.size() : n;
    return {
        /*.b_equal_seqs =*/equal,
        /*.n_tokens     =*/n,
        /*.n_seq_tokens =*/n / n_seqs,
        /*.n_seqs       =*/n_seqs,
        /*.n_seqs_unq   =*/(uint32_t) seq_ids.size(),
        /*.n_pos        =*/1,

        /*.token        =*/data->token.data(),
        /*.embd         =*/nullptr,
        /*.pos          =*/data->pos.data(),
        /*.n_seq_id     =*/data->n_seq_id.data(),
        /*.seq_id       =*/data->seq_id.data(),
        /*.seq_id_unq   =*/data->seq_id_unq.data(),
        /*.seq_idx      =*/data->seq_idx.data(),
        /*.output       =*/data->output.data(),
        /*.data         =*/data,
    };
}

static llama_kv_cache::slot_info build_slot(const llama_kv_cache & kv, const std::vector<int32_t> & cells) {
    llama_kv_cache::slot_info res = {};
    for (const int32_t cell : cells) {
        const llama_seq_id stream = cell / kv.get_size();
        if (res.strm.empty() || res.strm.back() != stream) {
            res.strm.push_back(stream);
            res.idxs.emplace_back();
        }
        res.idxs.back().push_back(cell % kv.get_size());
    }
    res.s0       = res.strm.front();
    res.s1       = res.strm.back();
    res.in_place = true;
    return res;
}

static llama_memory_context_ptr build_memory_context(llama_memory_i *     memory,
                                                     const upper_rows &   rows,
                                                     const llama_ubatch & ubatch) {
    const llama_ridgefill_cells kvs(memory);

    const auto slots = [&](const llama_kv_cache & kv) {
        return llama_kv_cache::slot_info_vec_t{ build_slot(kv, find_cells(kv, rows)) };
    };
    if (kvs.swa) {
        return std::make_unique<llama_kv_cache_iswa_context>(static_cast<llama_kv_cache_iswa *>(memory),
                                                             slots(*kvs.base), slots(*kvs.swa),
                                                             std::vector<llama_ubatch>{ ubatch });
    }
    return std::make_unique<llama_kv_cache_context>(kvs.base, slots(*kvs.base), std::vector<llama_ubatch>{ ubatch });
}

void llama_ridgefill_context::upper(const std::vector<llama_ridgefill_row> & rows) {
    if (!states) {
        throw std::runtime_error("split states are not kept (hint: keep_states of llama_ridgefill_context_params)");
    }

    const llama_kv_cache & kv    = *llama_ridgefill_cells(ctx.memory.get()).base;
    auto &                 marks = ctx.memory->ridgefill;

    for (const auto & row : rows) {
        if (!marks.states[row.seq_id].contains(row.pos)) {
            throw std::runtime_error(
                format("position %d of sequence %d has no split state (hint: it came with a saved state, or ran before "
                       "the maps were set)",
                       row.pos, row.seq_id));
        }
    }

    ctx.sched_reserve();
    ctx.memory_update(false);
    update();

    // callers of the last decode can still read its outputs
    const auto n_outputs_org = ctx.n_outputs;

    for (const auto & part : split_rows(kv, rows, ctx.cparams.n_ubatch)) {
        upper_cells = find_cells(kv, part);

        const auto ubatch = build_ubatch(kv, part, upper_cells);
        const auto mctx   = build_memory_context(ctx.memory.get(), part, ubatch);

        ctx.n_outputs = std::count_if(part.begin(), part.end(), [](const auto & row) { return row.out >= 0; });

        const llama_ridgefill_scope scope(ctx.cparams.ridgefill);
        ctx.cparams.ridgefill.mode = LLAMA_RIDGEFILL_MODE_UPPER;

        ggml_status  status;
        const auto * res = ctx.process_ubatch(ubatch, LLM_GRAPH_TYPE_DEFAULT, mctx.get(), status);

        if (!res) {
            ctx.n_outputs         = n_outputs_org;
            const std::string why = llama_ridgefill_get_error();
            throw std::runtime_error(
                why.empty() ? format("failed to compute %zu rows, status %d", part.size(), (int) status) : why);
        }

        if (auto * t_logits = ctx.n_outputs == 0 ? nullptr : res->get_logits()) {
            const int64_t n_vocab = ctx.model.vocab.n_tokens();
            auto *        backend = ggml_backend_sched_get_tensor_backend(ctx.sched.get(), t_logits);
            size_t        i       = 0;
            for (const auto & row : part) {
                if (row.out >= 0) {
                    ggml_backend_tensor_get_async(backend, t_logits, ctx.logits.data + row.out * n_vocab,
                                                  i++ * n_vocab * sizeof(float), n_vocab * sizeof(float));
                }
            }
        }
    }

    ctx.n_outputs = n_outputs_org;
}

// after rows have run again: rows that ran before and behind the first filled one still come from what it held
static void mark_approximate(llama_ridgefill_marks &        marks,
                             llama_seq_id                   seq_id,
                             llama_pos                      from,
                             const llama_ridgefill_ranges & rerun,
                             llama_pos                      end) {
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

// the rows of a prompt that can be selected: reused ones may be exact, or have no split state or cell
static llama_ridgefill_ranges find_able(llama_memory_i * memory, llama_seq_id seq_id, llama_pos p_end) {
    const llama_ridgefill_cells kvs(memory);
    auto &                      marks = memory->ridgefill;

    llama_ridgefill_ranges res;
    for (const auto & r : marks.plan[seq_id].get()) {
        for (llama_pos p = r.p0; p < std::min(r.p1, p_end); ++p) {
            if (marks.filled[seq_id].contains(p) && marks.states[seq_id].contains(p) &&
                (!kvs.swa || llama_ridgefill_cells::find(*kvs.swa, seq_id, p) >= 0)) {
                res.add(p, p + 1, 0);
            }
        }
    }
    return res;
}

// the prompts that the batch has ended: the selected rows of all of them, then their tails
bool llama_ridgefill_context::finish() {
    if (finishing.empty()) {
        return true;
    }
    auto & marks = ctx.memory->ridgefill;

    struct prompt {
        llama_pos              p_tail;
        llama_pos              from;  // the first approximate row
        std::vector<llama_pos> selected;
        llama_ridgefill_ranges rerun;
    };

    std::map<llama_seq_id, prompt> prompts;

    const auto mark_rerun = [&](const std::vector<llama_ridgefill_row> & rows) {
        for (const auto & row : rows) {
            prompts[row.seq_id].rerun.add(row.pos, row.pos + 1, 0);
        }
        for (const auto & [seq_id, cur] : prompts) {
            marks.filled[seq_id].subtract(cur.rerun);
        }
    };

    try {
        std::vector<llama_ridgefill_row> rows;
        for (const auto & it : finishing) {
            const llama_seq_id seq_id    = it.first;
            auto &             selection = selections.at(seq_id);
            auto &             cur       = prompts[seq_id];
            selection.pool();
            cur.p_tail   = std::max(0, selection.n_prompt - selection.tail);
            cur.from     = marks.approximate_from(seq_id);
            cur.selected = selection.choose(find_able(ctx.memory.get(), seq_id, cur.p_tail));
            for (const llama_pos p : cur.selected) {
                rows.push_back({ seq_id, p });
            }
        }
        upper(rows);
        mark_rerun(rows);
        counters.n_selected += rows.size();

        rows.clear();
        for (const auto & [seq_id, outputs] : finishing) {
            std::map<llama_pos, int64_t> out;
            for (const auto & it : outputs) {
                out[it.pos] = it.row;
            }
            for (llama_pos p = prompts[seq_id].p_tail; p < selections.at(seq_id).n_prompt; ++p) {
                if (marks.is_pending(seq_id, p)) {
                    rows.push_back({ seq_id, p, out.count(p) ? out[p] : -1 });
                }
            }
        }
        upper(rows);
        mark_rerun(rows);
    } catch (const std::exception & err) {
        llama_ridgefill_set_error(err.what());
        for (const auto & [seq_id, cur] : prompts) {
            llama_memory_seq_rm(ctx.memory.get(), seq_id, cur.p_tail, -1);
            selections.erase(seq_id);
        }
        finishing.clear();
        return false;
    }

    for (auto & [seq_id, cur] : prompts) {
        auto & selection = selections.at(seq_id);
        mark_approximate(marks, seq_id, cur.from, cur.rerun, selection.n_prompt);
        selection.tensors.clear();
        selected      = std::move(cur.selected);
        selected_last = std::move(selection);
        selections.erase(seq_id);
    }
    finishing.clear();
    return true;
}
