#pragma once

#include "llama-ridgefill.h"
#include "llama-ridgefill-capture.h"
#include "llama-ridgefill-mode.h"
#include "llama-ridgefill-select.h"
#include "llama-ridgefill-states.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct llama_context;
struct llama_cparams;
struct llama_memory_i;
struct llama_ridgefill_marks;
struct llama_ubatch;
class  llama_batch_allocr;

// a cached row that runs again
struct llama_ridgefill_row {
    llama_seq_id seq_id;
    llama_pos    pos;
    int64_t      out = -1; // the row of the logits that it gets, -1 for none
};

// the RidgeFill part of a llama_context
class llama_ridgefill_context {
public:
    llama_ridgefill_counters counters = {};

    // set: the sites of every ubatch are recorded
    std::unique_ptr<llama_ridgefill_capture_state> capture;

    // set: the split states of all rows are kept, and rows can be run again
    std::unique_ptr<llama_ridgefill_states> states;
    std::vector<int32_t>                    rows; // cells of the UPPER ubatch

    // by sequence: the prompt that is being processed with selected rows
    std::map<llama_seq_id, llama_ridgefill_selection> selections;

    bool file_is_filled = false; // what the version of the state file that is being read says

    // of the last finished selection
    llama_ridgefill_selection selected_last = {};
    std::vector<llama_pos>    selected;

    // the sequences whose prompt the batch ends, and the output rows that their tails have in the batch
    struct tail_output {
        llama_pos pos;
        int64_t   row;
    };
    std::map<llama_seq_id, std::vector<tail_output>> finishing;

    // llama_context::decode calls these in turn

    // mark the rows of a batch, so that no ubatch mixes filled and exact rows; false if the batch cannot run
    bool on_batch(llama_batch_allocr & balloc, llama_context & ctx);

    // choose how a ubatch runs
    void on_ubatch(const llama_batch_allocr & balloc, const llama_ubatch & ubatch, llama_cparams & cparams);

    // record what a ubatch did, res == nullptr: it failed
    void on_done(const llm_graph_result * res, const llama_ubatch & ubatch, llama_memory_i & memory, llama_cparams & cparams);

private:
    int64_t t_start_us = 0;
    int64_t n_outputs  = 0; // of the batch so far
};

// why rows of this context cannot be filled, "" if they can
std::string llama_ridgefill_conflict(const llama_cparams & cparams, bool has_adapters);

// throws if a context cannot have a sequence
void llama_ridgefill_check_seq(const llama_context * ctx, llama_seq_id seq_id);
