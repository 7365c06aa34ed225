#pragma once

#include "llama-ridgefill-capture.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-mode.h"
#include "llama-ridgefill-select.h"
#include "llama-ridgefill-states.h"
#include "llama-ridgefill.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct llama_context;
struct llama_cparams;
struct llama_memory_breakdown_data;
struct llama_memory_context_i;
struct llama_ridgefill_marks;
struct llama_ubatch;
class llama_batch_allocr;
class llama_io_read_i;
class llama_io_write_i;

// a cached row that runs again
struct llama_ridgefill_row {
    llama_seq_id seq_id;
    llama_pos    pos;
    int64_t      out = -1;  // the row of the logits that it gets, -1 for none
};

// the RidgeFill part of a llama_context, which owns it and calls the methods named "hooks"
class llama_ridgefill_context {
  public:
    explicit llama_ridgefill_context(llama_context & ctx) : ctx(ctx) {}

    llama_ridgefill_counters counters = {};

    // set: the sites of every ubatch are recorded
    std::unique_ptr<llama_ridgefill_capture_state> capture;

    // set: the split states of all rows are kept, and rows can be run again
    std::unique_ptr<llama_ridgefill_states> states;

    // by sequence: the prompt that is being processed with selected rows
    std::map<llama_seq_id, llama_ridgefill_selection> selections;

    // of the last finished selection
    llama_ridgefill_selection selected_last = {};
    std::vector<llama_pos>    selected;

    // use maps from now on, nullptr: none; throws if the context cannot be filled
    int32_t set(llama_ridgefill * maps, const llama_ridgefill_context_params & params);

    // the split in use, -1 without maps
    int32_t split() const;

    // record sites from this layer on, -1: stop
    void set_capture(int32_t layer_first);

    // the marks of the context's memory, nullptr if it has none
    llama_ridgefill_marks * marks() const;

    bool has_adapters() const;
    bool has_samplers() const;

    // why split states cannot be kept, "" if they can
    std::string states_conflict() const;

    // copy the split states of sequences whose cells were copied
    void update();

    // run cached rows again in the layers from the split on
    void upper(const std::vector<llama_ridgefill_row> & rows);

    // replace up to n_max approximate rows by exact ones, returns their number
    int32_t heal(llama_seq_id seq_id, int32_t n_max);

    //
    // hooks
    //

    // reserve the worst cases of all modes; throws if that fails
    void reserve(uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs, const llama_memory_context_i * mctx);

    // mark the rows of a batch, so that no ubatch mixes filled and exact rows; false if the batch cannot run
    bool on_batch(llama_batch_allocr & balloc);

    // choose how a ubatch runs; the result ends it
    llama_ridgefill_scope on_ubatch(const llama_batch_allocr & balloc, const llama_ubatch & ubatch);

    // record what a ubatch did, res == nullptr: it failed
    void on_done(const llm_graph_result * res, const llama_ubatch & ubatch);

    // run the selected rows and the tails of the prompts that the batch has ended; false if that fails
    bool finish();

    // sections behind the memory's data in a saved state, seq_id < 0: all sequences
    void state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags);
    void state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags);

    // in front of the memory's data a saved state has a number, or the name of the architecture; where these sections
    // follow, it is another one: the reader knows from it that they must be there, and stock llama.cpp refuses the state
    uint32_t    mark(uint32_t number, llama_seq_id seq_id, llama_state_seq_flags flags = 0) const;
    std::string mark(const std::string & arch) const;

    void memory_breakdown(std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data> & res) const;

  private:
    void states_read(llama_io_read_i & io, llama_seq_id seq_id);

    llama_context & ctx;

    std::vector<int32_t> upper_cells;  // cells of the UPPER ubatch

    // what the rows of a group have in common, see llama_batch_allocr::ridgefill_group
    struct row_group {
        llama_ridgefill_mode mode;
        llama_seq_id         seq_id;  // LOWER: whose tail they are, -1 in other modes

        bool operator==(const row_group & other) const { return mode == other.mode && seq_id == other.seq_id; }
    };

    std::vector<row_group> groups;  // of the batch, the first one runs exact

    int16_t group_of(llama_ridgefill_mode mode, llama_seq_id seq_id = -1);

    // the sequences whose prompt the batch ends, and the output rows that their tails have in the batch
    struct tail_output {
        llama_pos pos;
        int64_t   row;
    };

    std::map<llama_seq_id, std::vector<tail_output>> finishing;

    int64_t t_start_us = 0;
    int64_t n_outputs  = 0;  // of the batch so far
};

// whether what was read is what llama_ridgefill_context::mark makes of `plain`; if so, it becomes `plain`
bool llama_ridgefill_take_mark(uint32_t & found, uint32_t plain);
bool llama_ridgefill_take_mark(std::string & found, const std::string & plain);

// why rows of this context cannot be filled, "" if they can
std::string llama_ridgefill_conflict(const llama_cparams & cparams, bool has_adapters);

// throws if a context cannot have a sequence
void llama_ridgefill_check_seq(const llama_context * ctx, llama_seq_id seq_id);
