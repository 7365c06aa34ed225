// replace filled cells, and those that were computed from them, by exact ones

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache-iswa.h"
#include "llama-model.h"
#include "llama-ridgefill-marks.h"

#include <algorithm>
#include <set>
#include <stdexcept>

// whether positions have their cells in a cache for sliding windows, if there is one: windows drop cells that their
// sequence has left when other rows need room, and saved sequences do not have them
static bool has_cells(const llama_ridgefill_cells & kvs, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    for (llama_pos p = p0; kvs.swa && p < p1; ++p) {
        if (llama_ridgefill_cells::find(*kvs.base, seq_id, p) >= 0 &&
            llama_ridgefill_cells::find(*kvs.swa, seq_id, p) < 0) {
            return false;
        }
    }
    return true;
}

// the first position that a row attends to in the layers with a sliding window
static llama_pos window_start(const llama_hparams & hparams, llama_pos pos) {
    llama_pos res = pos;
    while (res > 0 && !llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, res - 1, pos)) {
        --res;
    }
    return res;
}

// whether the rows [p0, p1) of a sequence may run for all sequences that have them too: these must have the same rows
// before them
static bool is_shared_whole(const llama_kv_cells & cells, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    const auto & own = cells.seq_pos_get(seq_id);
    const auto   end = own.lower_bound({ p1, 0 });

    std::set<llama_seq_id> others;
    for (auto it = own.lower_bound({ p0, 0 }); it != end; ++it) {
        for (llama_seq_id id = 0; cells.seq_count(it->second) > 1 && id < LLAMA_MAX_SEQ; ++id) {
            if (id != seq_id && cells.seq_has(it->second, id)) {
                others.insert(id);
            }
        }
    }
    return std::all_of(others.begin(), others.end(), [&](llama_seq_id id) {
        const auto & rows   = cells.seq_pos_get(id);
        const auto   differ = std::mismatch(own.begin(), end, rows.begin(), rows.end()).first;
        return std::none_of(differ, end, [&](const auto & row) { return cells.seq_has(row.second, id); });
    });
}

int32_t llama_ridgefill_context::heal(llama_seq_id seq_id, int32_t n_max) {
    auto & marks = ctx.memory->ridgefill;

    // the next row of each sequence, the largest position if it needs none
    std::map<llama_seq_id, llama_pos> next;
    if (seq_id >= 0) {
        next[seq_id] = marks.approximate_from(seq_id);
    } else {
        for (const auto & [id, states] : marks.states) {
            const llama_pos from = marks.approximate_from(id);
            if (states.contains(from)) {
                next[id] = from;
            }
        }
    }

    const llama_ridgefill_cells kvs(ctx.memory.get());

    std::vector<llama_ridgefill_row>  rows;
    std::map<llama_seq_id, llama_pos> end;
    int32_t                           n_seqs = next.size();
    for (const auto & [id, from] : next) {
        const llama_pos last = ctx.memory->seq_pos_max(id);
        const int32_t   n    = (n_max - (int32_t) rows.size()) / n_seqs--;
        for (llama_pos p = from; p <= last && p - from < n; ++p) {
            // a later row sees nothing new but the rows since
            const bool is_whole =
                has_cells(kvs, id, kvs.swa && p == from ? window_start(ctx.model.hparams, p) : p, p + 1);
            if ((p > from || seq_id < 0) && (!is_whole || !marks.states[id].contains(p))) {
                break;  // the rows before and other sequences can be healed
            }
            if (!is_whole) {
                throw std::runtime_error(
                    format("position %d of sequence %d attends to rows that a sliding window has dropped (hint: the "
                           "prompt must run again)",
                           p, id));
            }
            rows.push_back({ id, p });
            end[id] = p + 1;
        }
        if (kvs.base && end.count(id) && !is_shared_whole(kvs.base->get_cells(id), id, from, end[id])) {
            if (seq_id >= 0) {
                throw std::runtime_error(
                    format("rows [%d, %d) of sequence %d are in cells that another sequence has behind other rows "
                           "(hint: remove one of the sequences)",
                           from, end[id], id));
            }
            rows.resize(rows.size() - (end[id] - from));
            end.erase(id);
        }
    }
    if (rows.empty()) {
        return 0;
    }
    upper(rows);

    // all rows before are exact, so these are now; later ones still saw what was filled here
    for (const auto & [id, p_end] : end) {
        marks.filled[id].erase(next[id], p_end);
        if (p_end > ctx.memory->seq_pos_max(id)) {
            marks.healed_to.erase(id);
        } else {
            marks.healed_to[id] = p_end;
        }
    }
    counters.n_healed += rows.size();

    return rows.size();
}
