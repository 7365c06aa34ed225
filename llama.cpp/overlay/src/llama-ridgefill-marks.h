#pragma once

#include "llama.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

struct llama_memory_i;
class llama_io_write_i;
class llama_io_read_i;

// ascending, disjoint ranges of positions, each with the identity of the maps that filled it
class llama_ridgefill_ranges {
  public:
    struct range {
        llama_pos p0;
        llama_pos p1;
        uint64_t  id;
    };

    void add(llama_pos p0, llama_pos p1, uint64_t id);
    void erase(llama_pos p0, llama_pos p1);
    void shift(llama_pos p0, llama_pos p1, llama_pos delta);
    void div(llama_pos p0, llama_pos p1, int d);

    // remove all positions of the others, in one pass over both
    void subtract(const llama_ridgefill_ranges & others);

    bool contains(llama_pos p) const;

    bool empty() const { return data.empty(); }

    void clear() { data.clear(); }

    const std::vector<range> & get() const { return data; }

  private:
    template <typename F> void relocate(llama_pos p0, llama_pos p1, const F & move);

    std::vector<range> data;
};

// which rows the plan wants to be filled, and which cells of the memory have been filled
// lives in the memory module and follows its sequence operations
struct llama_ridgefill_marks {
    std::map<llama_seq_id, llama_ridgefill_ranges> plan;
    std::map<llama_seq_id, llama_ridgefill_ranges> filled;

    // rows whose split state is kept
    std::map<llama_seq_id, llama_ridgefill_ranges> states;

    // sequences share cells (unified cache); otherwise a copy of a sequence has cells of its own
    bool shared_cells = true;

    // a cache for sliding windows keeps cells that the window has left: the rows that attended to them may run again
    bool keeps_left = false;

    // copies (from, to) whose split states have not been copied yet
    std::vector<std::pair<llama_seq_id, llama_seq_id>> copies;

    // rows that only ran below the split and wait for the end of their prompt have this identity
    static constexpr uint64_t ID_PENDING = ~0ull;

    // rows that are made of parts of two sequences have this identity: neither exact nor what any maps would fill
    static constexpr uint64_t ID_SPLICED = ~0ull - 1;

    // healing has come to this position: rows behind it still saw filled cells
    std::map<llama_seq_id, llama_pos> healed_to;

    // the first row that is not that of an exact prefill, the largest position if there is none
    llama_pos approximate_from(llama_seq_id seq_id) const;

    // whether a sequence has such a row, -1: any sequence
    bool is_approximate(llama_seq_id seq_id) const;

    bool is_planned(llama_seq_id seq_id, llama_pos pos) const;
    bool is_pending(llama_seq_id seq_id, llama_pos pos) const;
    bool has_pending(llama_seq_id seq_id, llama_pos p0, llama_pos p1) const;

    // whether any sequence has rows that wait, and the first one of a sequence, the largest position if it has none
    bool      has_pending() const;
    llama_pos pending_from(llama_seq_id seq_id) const;

    // number of leading positions, at most n_past, that `want` can keep; id is the identity of the maps in use
    llama_pos reusable(llama_seq_id seq_id, const llama_ridgefill_ranges & want, uint64_t id, llama_pos n_past) const;

    // the arguments are those of llama_memory_seq_*
    bool seq_rm(bool removed, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
    // remove the cells of the memory, and their marks
    bool on_seq_rm(llama_memory_i & memory, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
    void seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1);
    void seq_keep(llama_seq_id seq_id);
    void seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos delta);
    void seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d);
    void clear();

    // rows of a sequence got parts of another one's
    void splice(llama_seq_id seq_id, llama_pos p0, llama_pos p1);

    // the cells of a sequence are replaced: what was known about them is void
    void forget(llama_seq_id seq_id);

    // a section behind the memory's data, only if cells were filled: states of exact sequences are those of stock
    // llama.cpp; seq_id < 0: all sequences
    void state_write(llama_io_write_i & io, llama_seq_id seq_id) const;
    void state_read(llama_io_read_i & io, llama_seq_id seq_id);
};
