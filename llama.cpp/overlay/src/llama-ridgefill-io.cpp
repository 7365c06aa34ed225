// saved states: what the cells of a memory were filled with, and the split states of rows that may run again
//
// a state with approximate rows has a mark in front of the memory's data, and behind it
//   the filled rows
//   the split states, where the context keeps them, or the end
// without the mark, nothing behind the memory's data is read: the state is one of stock llama.cpp

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-io.h"
#include "llama-model.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-marks.h"
#include "llama-ridgefill-states.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <stdexcept>

static constexpr uint32_t MAGIC_FILLED = 0x6c696672;  // "rfil"
static constexpr uint32_t MAGIC_STATES = 0x74736672;  // "rfst"
static constexpr uint32_t MAGIC_END    = 0x6e656672;  // "rfen"

static constexpr size_t MAX_CHUNK = 1 << 20;          // bytes that a section needs on the host at a time

template <typename T> static void put(llama_io_write_i & io, const T & value) {
    io.write(&value, sizeof(value));
}

template <typename T> static T take(llama_io_read_i & io) {
    T value;
    io.read(&value, sizeof(value));
    return value;
}

// ranges of one sequence after the other, ascending and disjoint
struct seq_range {
    llama_seq_id seq_id;
    llama_pos    p0;
    llama_pos    p1;
};

static void put_range(llama_io_write_i & io, llama_seq_id seq_id, const llama_ridgefill_ranges::range & r) {
    put(io, seq_id);
    put(io, r.p0);
    put(io, r.p1);
}

static seq_range take_range(llama_io_read_i & io, const seq_range & last) {
    seq_range res;
    res.seq_id            = take<llama_seq_id>(io);
    res.p0                = take<llama_pos>(io);
    res.p1                = take<llama_pos>(io);
    const bool after_last = res.seq_id > last.seq_id || (res.seq_id == last.seq_id && res.p0 >= last.p1);
    if (res.seq_id < 0 || res.seq_id >= LLAMA_MAX_SEQ || res.p0 < 0 || res.p0 >= res.p1 || !after_last) {
        throw std::runtime_error(
            format("bad range of rows in a saved state: sequence %d, positions [%d, %d)", res.seq_id, res.p0, res.p1));
    }
    return res;
}

//
// filled cells
//

void llama_ridgefill_marks::state_write(llama_io_write_i & io, llama_seq_id seq_id) const {
    auto approximate = filled;
    for (const auto & [id, pos] : healed_to) {
        if (!approximate[id].contains(pos)) {
            approximate[id].add(pos, pos + 1, 0);  // ends what an exact prompt can reuse
        }
    }

    uint32_t n = 0;
    for (const auto & [id, ranges] : approximate) {
        n += seq_id < 0 || id == seq_id ? ranges.get().size() : 0;
    }
    put(io, MAGIC_FILLED);
    put(io, n);
    for (const auto & [id, ranges] : approximate) {
        if (seq_id >= 0 && id != seq_id) {
            continue;
        }
        for (const auto & r : ranges.get()) {
            put_range(io, id, r);
            put(io, r.id);
        }
    }
}

void llama_ridgefill_marks::state_read(llama_io_read_i & io, llama_seq_id seq_id) {
    const uint32_t n = take<uint32_t>(io);
    seq_range      r = { -1, 0, 0 };
    for (uint32_t i = 0; i < n; ++i) {
        r = take_range(io, r);
        filled[seq_id < 0 ? r.seq_id : seq_id].add(r.p0, r.p1, take<uint64_t>(io));
    }
}

//
// split states
//

// the cells of the rows in the ranges, each once: sequences may share cells
static std::vector<int32_t> find_rows(const llama_kv_cache & kv, const std::vector<seq_range> & ranges) {
    const size_t n_cells = (size_t) kv.get_size() * kv.get_n_stream();

    std::vector<bool>    seen(n_cells, false);
    std::vector<int32_t> res;
    for (const auto & r : ranges) {
        if ((size_t) (r.p1 - r.p0) > n_cells ||
            (kv.get_n_stream() > 1 && r.seq_id >= (llama_seq_id) kv.get_n_stream())) {
            throw std::runtime_error(
                format("split states: there are no rows [%d, %d) of sequence %d in the cache", r.p0, r.p1, r.seq_id));
        }
        for (llama_pos pos = r.p0; pos < r.p1; ++pos) {
            const int32_t cell = llama_ridgefill_cells::find(kv, r.seq_id, pos);
            if (cell < 0) {
                throw std::runtime_error(format("split states: not all rows [%d, %d) of sequence %d are in the cache",
                                                r.p0, r.p1, r.seq_id));
            }
            if (!seen[cell]) {
                seen[cell] = true;
                res.push_back(cell);
            }
        }
    }
    return res;
}

// call fn(offset, size) for the bytes of consecutive cells
template <typename F> static void each_run(const std::vector<int32_t> & cells, size_t row_size, const F & fn) {
    const size_t n_max = std::max<size_t>(1, MAX_CHUNK / row_size);
    for (size_t i = 0, n; i < cells.size(); i += n) {
        n = 1;
        while (n < n_max && i + n < cells.size() && cells[i + n] == cells[i] + (int32_t) n) {
            n++;
        }
        fn(cells[i] * row_size, n * row_size);
    }
}

void llama_ridgefill_context::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
        return;  // holds no attention cells
    }
    const auto & marks = ctx.memory->ridgefill;
    if (!marks.is_approximate(seq_id)) {
        return;
    }
    marks.state_write(io, seq_id);

    // states on the device hold the memory alone: when one is put back, the context may keep other split states, or none
    if (!states || (flags & LLAMA_STATE_SEQ_FLAGS_ON_DEVICE)) {
        put(io, MAGIC_END);
        return;
    }
    update();

    const llama_ridgefill_cells kvs(ctx.memory.get());
    const llama_kv_cache &      kv = *kvs.base;

    // rows before the first approximate one never run again, nor do those that a window has left: the state of a
    // sequence does not hold their cells
    const auto & hparams = ctx.model.hparams;
    const auto   is_left = [&](llama_pos pos, llama_seq_id id) {
        return kvs.swa && seq_id >= 0 &&
               llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, pos, kv.seq_pos_max(id));
    };
    std::vector<seq_range> ranges;
    for (const auto & [id, rows] : marks.states) {
        const llama_pos from = marks.approximate_from(id);
        if (seq_id >= 0 && id != seq_id) {
            continue;
        }
        const auto & cells = kv.get_cells(id).seq_pos_get(id);
        for (auto it = cells.lower_bound({ from, 0 }); it != cells.end(); ++it) {
            if (!rows.contains(it->first) || is_left(it->first, id)) {
                continue;
            }
            if (!ranges.empty() && ranges.back().seq_id == id && ranges.back().p1 == it->first) {
                ranges.back().p1++;
            } else {
                ranges.push_back({ id, it->first, it->first + 1 });
            }
        }
    }
    if (ranges.empty()) {
        put(io, MAGIC_END);
        return;
    }

    auto *     x     = states->x;
    const auto cells = find_rows(kv, ranges);

    put(io, MAGIC_STATES);
    put(io, (int32_t) ctx.cparams.ridgefill.split);
    put(io, (int32_t) x->type);
    put(io, (uint32_t) x->ne[0]);
    put(io, (uint64_t) ctx.cparams.ridgefill.maps->hash);
    put(io, (uint32_t) ranges.size());
    put(io, (uint32_t) cells.size());
    for (const auto & r : ranges) {
        put_range(io, r.seq_id, { r.p0, r.p1, 0 });
    }
    for (const int32_t cell : cells) {
        put(io, llama_ridgefill_cells::token(kv, cell));
    }
    each_run(cells, x->nb[1], [&](size_t offs, size_t size) { io.write_tensor(x, offs, size); });
}

static void skip(llama_io_read_i & io, uint64_t size) {
    std::vector<uint8_t> buf(std::min<uint64_t>(size, MAX_CHUNK));
    while (size > 0) {
        const size_t n = std::min<uint64_t>(size, buf.size());
        io.read(buf.data(), n);
        size -= n;
    }
}

void llama_ridgefill_context::states_read(llama_io_read_i & io, llama_seq_id seq_id) {
    const auto split    = take<int32_t>(io);
    const auto type     = take<int32_t>(io);
    const auto width    = take<uint32_t>(io);
    const auto hash     = take<uint64_t>(io);
    const auto n_ranges = take<uint32_t>(io);
    const auto n_rows   = take<uint32_t>(io);

    if (!llama_ridgefill_states::is_type(type) || width != ctx.model.hparams.n_embd) {
        throw std::runtime_error(
            format("split states: expected %u values of type f32, f16 or bf16 in a row, found %u of type %d",
                   ctx.model.hparams.n_embd, width, type));
    }
    if (!states) {
        // rows of this context do not run again
        skip(io, n_ranges * (uint64_t) sizeof(seq_range) +
                     n_rows * (sizeof(llama_token) + (uint64_t) ggml_row_size((ggml_type) type, width)));
        return;
    }

    auto * x = states->x;
    if (type != x->type) {
        throw std::runtime_error(format("split states: expected type %s, found %s", ggml_type_name(x->type),
                                        ggml_type_name((ggml_type) type)));
    }
    if (split != ctx.cparams.ridgefill.split || hash != ctx.cparams.ridgefill.maps->hash) {
        throw std::runtime_error(format("split states: expected split %d and maps %016" PRIx64
                                        ", found %d and %016" PRIx64 " (hint: they fit the maps they were saved with)",
                                        ctx.cparams.ridgefill.split, ctx.cparams.ridgefill.maps->hash, split, hash));
    }

    std::vector<seq_range> ranges;
    seq_range              last = { -1, 0, 0 };
    for (uint32_t i = 0; i < n_ranges; ++i) {
        last = take_range(io, last);
        ranges.push_back({ seq_id < 0 ? last.seq_id : seq_id, last.p0, last.p1 });
    }

    llama_kv_cache & kv    = *llama_ridgefill_cells(ctx.memory.get()).base;
    const auto       cells = find_rows(kv, ranges);
    if (cells.size() != n_rows) {
        throw std::runtime_error(format("split states: expected %zu rows, found %u", cells.size(), n_rows));
    }
    for (const int32_t cell : cells) {
        const auto token = take<llama_token>(io);
        if (token < LLAMA_TOKEN_NULL || token >= (llama_token) ctx.model.vocab.n_tokens()) {
            throw std::runtime_error(format("split states: there is no token %d", token));
        }
        llama_ridgefill_cells::set_token(kv, cell, token);
    }
    each_run(cells, x->nb[1], [&](size_t offs, size_t size) { io.read_tensor(x, offs, size); });

    for (const auto & r : ranges) {
        ctx.memory->ridgefill.states[r.seq_id].add(r.p0, r.p1, 0);
    }
}

// cells of unknown origin must not be used
static void drop_cells(llama_memory_i & memory, llama_seq_id seq_id) {
    memory.ridgefill.forget(seq_id);
    if (seq_id < 0) {
        memory.clear(true);
    } else {
        memory.seq_rm(seq_id, -1, -1);
    }
}

void llama_ridgefill_context::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
        return;
    }
    update();

    auto & marks = ctx.memory->ridgefill;
    marks.forget(seq_id);

    if (!io.ridgefill) {
        return;
    }
    try {
        if (take<uint32_t>(io) != MAGIC_FILLED) {
            throw std::runtime_error("the filled rows of a saved state are missing");
        }
        marks.state_read(io, seq_id);
        const auto magic = take<uint32_t>(io);
        if (magic == MAGIC_STATES) {
            states_read(io, seq_id);
        } else if (magic != MAGIC_END) {
            throw std::runtime_error("unknown data behind the filled rows of a saved state");
        }
        if (!marks.is_approximate(seq_id)) {
            throw std::runtime_error("the saved state has filled rows, and does not say which");
        }
    } catch (const std::exception &) {
        io.discard();
        drop_cells(*ctx.memory, seq_id);
        throw;
    }
}

//
// the mark in front
//

static constexpr uint32_t     MARK_NUMBER = 0x80000000;
static constexpr const char * MARK_NAME   = "+ridgefill";

uint32_t llama_ridgefill_context::mark(uint32_t number, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    const bool has_cells = ctx.memory && !(flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    return has_cells && ctx.memory->ridgefill.is_approximate(seq_id) ? number ^ MARK_NUMBER : number;
}

std::string llama_ridgefill_context::mark(const std::string & arch) const {
    return ctx.memory && ctx.memory->ridgefill.is_approximate(-1) ? arch + MARK_NAME : arch;
}

bool llama_ridgefill_take_mark(uint32_t & found, uint32_t plain) {
    const bool res = found == (plain ^ MARK_NUMBER);
    found          = res ? plain : found;
    return res;
}

bool llama_ridgefill_take_mark(std::string & found, const std::string & plain) {
    const bool res = found == plain + MARK_NAME;
    found          = res ? plain : found;
    return res;
}
