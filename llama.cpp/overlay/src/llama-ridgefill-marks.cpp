#include "llama-ridgefill-marks.h"

#include "llama-memory.h"

#include <algorithm>
#include <limits>

static constexpr llama_pos POS_MAX = std::numeric_limits<llama_pos>::max();

// negative positions mean "from the start" and "to the end", as in llama_memory_seq_*
static void resolve(llama_pos & p0, llama_pos & p1) {
    p0 = p0 < 0 ? 0 : p0;
    p1 = p1 < 0 ? POS_MAX : p1;
}

//
// llama_ridgefill_ranges
//

void llama_ridgefill_ranges::add(llama_pos p0, llama_pos p1, uint64_t id) {
    if (p0 >= p1) {
        return;
    }

    // the common case: rows arrive in order
    if (!data.empty() && data.back().p1 == p0 && data.back().id == id) {
        data.back().p1 = p1;
        return;
    }

    erase(p0, p1);

    auto it = std::lower_bound(data.begin(), data.end(), p0, [](const range & r, llama_pos p) { return r.p0 < p; });
    it      = data.insert(it, { p0, p1, id });

    // join the neighbours that touch
    if (auto next = it + 1; next != data.end() && next->p0 == it->p1 && next->id == id) {
        it->p1 = next->p1;
        it     = data.erase(next) - 1;
    }
    if (it != data.begin() && (it - 1)->p1 == it->p0 && (it - 1)->id == id) {
        (it - 1)->p1 = it->p1;
        data.erase(it);
    }
}

void llama_ridgefill_ranges::erase(llama_pos p0, llama_pos p1) {
    if (data.empty() || p0 >= p1 || p0 >= data.back().p1) {
        return;
    }

    std::vector<range> res;
    res.reserve(data.size() + 1);

    for (const auto & r : data) {
        if (r.p1 <= p0 || r.p0 >= p1) {
            res.push_back(r);
            continue;
        }
        if (r.p0 < p0) {
            res.push_back({ r.p0, p0, r.id });
        }
        if (r.p1 > p1) {
            res.push_back({ p1, r.p1, r.id });
        }
    }

    data = std::move(res);
}

void llama_ridgefill_ranges::subtract(const llama_ridgefill_ranges & others) {
    std::vector<range> res;
    auto               other = others.data.begin();

    for (range r : data) {
        while (other != others.data.end() && other->p1 <= r.p0) {
            ++other;
        }
        for (; other != others.data.end() && other->p0 < r.p1; ++other) {
            if (r.p0 < other->p0) {
                res.push_back({ r.p0, other->p0, r.id });
            }
            r.p0 = other->p1;
            if (r.p0 >= r.p1) {
                break;  // the next range may begin in this one of the others
            }
        }
        if (r.p0 < r.p1) {
            res.push_back(r);
        }
    }

    data = std::move(res);
}

// take the part of the ranges in [p0, p1) out and put it back where `move` says
template <typename F> void llama_ridgefill_ranges::relocate(llama_pos p0, llama_pos p1, const F & move) {
    std::vector<range> moved;
    for (const auto & r : data) {
        const llama_pos a = std::max(r.p0, p0);
        const llama_pos b = std::min(r.p1, p1);
        if (a < b) {
            moved.push_back(move(range{ a, b, r.id }));
        }
    }

    erase(p0, p1);

    for (const auto & r : moved) {
        add(r.p0, r.p1, r.id);
    }
}

void llama_ridgefill_ranges::shift(llama_pos p0, llama_pos p1, llama_pos delta) {
    relocate(p0, p1,
             [&](const range & r) { return range{ std::max(0, r.p0 + delta), std::max(0, r.p1 + delta), r.id }; });
}

void llama_ridgefill_ranges::div(llama_pos p0, llama_pos p1, int d) {
    relocate(p0, p1, [&](const range & r) { return range{ r.p0 / d, (r.p1 - 1) / d + 1, r.id }; });
}

bool llama_ridgefill_ranges::contains(llama_pos p) const {
    const auto it =
        std::upper_bound(data.begin(), data.end(), p, [](llama_pos p, const range & r) { return p < r.p1; });
    return it != data.end() && it->p0 <= p;
}

//
// llama_ridgefill_marks
//

bool llama_ridgefill_marks::is_planned(llama_seq_id seq_id, llama_pos pos) const {
    const auto it = plan.find(seq_id);
    return it != plan.end() && it->second.contains(pos);
}

bool llama_ridgefill_marks::is_pending(llama_seq_id seq_id, llama_pos pos) const {
    return has_pending(seq_id, pos, pos + 1);
}

bool llama_ridgefill_marks::has_pending(llama_seq_id seq_id, llama_pos p0, llama_pos p1) const {
    const auto it = filled.find(seq_id);
    if (it == filled.end()) {
        return false;
    }
    const auto & ranges = it->second.get();
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const auto & r) { return r.id == ID_PENDING && r.p0 < p1 && p0 < r.p1; });
}

bool llama_ridgefill_marks::has_pending() const {
    return std::any_of(filled.begin(), filled.end(),
                       [&](const auto & it) { return pending_from(it.first) != POS_MAX; });
}

llama_pos llama_ridgefill_marks::pending_from(llama_seq_id seq_id) const {
    const auto it = filled.find(seq_id);
    if (it == filled.end()) {
        return POS_MAX;
    }
    for (const auto & r : it->second.get()) {
        if (r.id == ID_PENDING) {
            return r.p0;
        }
    }
    return POS_MAX;
}

llama_pos llama_ridgefill_marks::approximate_from(llama_seq_id seq_id) const {
    llama_pos res = POS_MAX;
    if (const auto it = filled.find(seq_id); it != filled.end() && !it->second.empty()) {
        res = it->second.get().front().p0;
    }
    if (const auto it = healed_to.find(seq_id); it != healed_to.end()) {
        res = std::min(res, it->second);
    }
    return res;
}

bool llama_ridgefill_marks::is_approximate(llama_seq_id seq_id) const {
    if (seq_id >= 0) {
        return approximate_from(seq_id) != POS_MAX;
    }
    return !healed_to.empty() ||
           std::any_of(filled.begin(), filled.end(), [](const auto & it) { return !it.second.empty(); });
}

llama_pos llama_ridgefill_marks::reusable(llama_seq_id                   seq_id,
                                          const llama_ridgefill_ranges & want,
                                          uint64_t                       id,
                                          llama_pos                      n_past) const {
    if (want.empty()) {
        return std::min(n_past, approximate_from(seq_id));  // exact rows that saw filled cells are not exact ones
    }
    const auto it = filled.find(seq_id);
    if (it == filled.end()) {
        return n_past;
    }

    for (const auto & r : it->second.get()) {
        if (r.p0 >= n_past) {
            break;
        }
        if (r.id != id) {
            return r.p0;
        }
        // the part of r that is not wanted starts where the wanted range that covers its start ends
        llama_pos p = r.p0;
        for (const auto & w : want.get()) {
            if (w.p0 <= p && p < w.p1) {
                p = w.p1;
            }
        }
        if (p < r.p1) {
            return std::min(p, n_past);
        }
    }

    return n_past;
}

bool llama_ridgefill_marks::seq_rm(bool removed, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    if (!removed) {
        return false;
    }
    resolve(p0, p1);

    // rows behind the removed ones stay, and saw them
    std::map<llama_seq_id, llama_pos> from;
    for (const auto & it : filled) {
        from[it.first] = approximate_from(it.first);
    }
    for (const auto & it : healed_to) {
        from[it.first] = approximate_from(it.first);
    }
    for (const auto & [id, pos] : from) {
        if ((seq_id < 0 || id == seq_id) && p0 <= pos && pos < p1) {
            if (p1 == POS_MAX) {
                healed_to.erase(id);
            } else {
                healed_to[id] = p0;
            }
        }
    }

    for (auto * marks : { &filled, &states }) {
        for (auto & [id, ranges] : *marks) {
            if (seq_id < 0 || id == seq_id) {
                ranges.erase(p0, p1);
            }
        }
    }
    return true;
}

bool llama_ridgefill_marks::on_seq_rm(llama_memory_i & memory, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    if (!seq_rm(memory.seq_rm(seq_id, p0, p1), seq_id, p0, p1)) {
        return false;
    }
    // a sequence without rows from there on is exact, also where the removed range had an end
    for (auto it = healed_to.begin(); it != healed_to.end();) {
        it = it->second > memory.seq_pos_max(it->first) ? healed_to.erase(it) : std::next(it);
    }
    return true;
}

void llama_ridgefill_marks::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    if (seq_id_src == seq_id_dst) {
        return;
    }

    resolve(p0, p1);

    if (!shared_cells) {
        // the copy has all cells, and replaces what the sequence had
        p0 = 0;
        p1 = POS_MAX;
        forget(seq_id_dst);
        copies.emplace_back(seq_id_src, seq_id_dst);
    }

    for (auto * marks : { &filled, &states }) {
        const auto it = marks->find(seq_id_src);
        if (it == marks->end()) {
            continue;
        }
        const auto src = it->second;  // the insertion below may move it
        auto &     dst = (*marks)[seq_id_dst];
        for (const auto & r : src.get()) {
            dst.add(std::max(r.p0, p0), std::min(r.p1, p1), r.id);
        }
    }
    // rows that saw filled cells stay such rows, even if these are not copied
    if (const llama_pos from = approximate_from(seq_id_src); from < p1) {
        const llama_pos pos = std::max(from, p0);
        if (approximate_from(seq_id_dst) > pos) {
            healed_to[seq_id_dst] = pos;
        }
    }
}

void llama_ridgefill_marks::seq_keep(llama_seq_id seq_id) {
    for (auto * marks : { &filled, &states }) {
        for (auto it = marks->begin(); it != marks->end();) {
            it = it->first == seq_id ? std::next(it) : marks->erase(it);
        }
    }
    for (auto it = healed_to.begin(); it != healed_to.end();) {
        it = it->first == seq_id ? std::next(it) : healed_to.erase(it);
    }
}

void llama_ridgefill_marks::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos delta) {
    if (delta == 0) {
        return;
    }
    resolve(p0, p1);

    // the first row that is filled or saw such a row, which others of this kind may now come before
    llama_pos from = approximate_from(seq_id);
    if (from < p0) {
        from = std::min(from, std::max(0, p0 + delta));
    } else if (from < p1) {
        from = std::min(std::max(0, from + delta), p1);
    }

    for (auto * marks : { &filled, &states }) {
        if (const auto it = marks->find(seq_id); it != marks->end()) {
            it->second.shift(p0, p1, delta);
        }
    }
    healed_to.erase(seq_id);
    if (from < approximate_from(seq_id)) {
        healed_to[seq_id] = from;
    }
}

void llama_ridgefill_marks::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    if (d <= 1) {
        return;
    }
    resolve(p0, p1);
    for (auto * marks : { &filled, &states }) {
        if (const auto it = marks->find(seq_id); it != marks->end()) {
            it->second.div(p0, p1, d);
        }
    }
    if (const auto it = healed_to.find(seq_id); it != healed_to.end()) {
        it->second /= d;
    }
}

void llama_ridgefill_marks::clear() {
    filled.clear();
    states.clear();
    healed_to.clear();
    copies.clear();
}

void llama_ridgefill_marks::splice(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    filled[seq_id].add(p0, p1, ID_SPLICED);
    states[seq_id].erase(p0, p1);  // running them again would not bring the lower layers back
}

void llama_ridgefill_marks::forget(llama_seq_id seq_id) {
    if (seq_id < 0) {
        clear();
        return;
    }
    filled.erase(seq_id);
    states.erase(seq_id);
    healed_to.erase(seq_id);
}
