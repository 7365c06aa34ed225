#pragma once

#include "llama-ridgefill.h"
#include "llama-ridgefill-capture.h"
#include "llama-ridgefill-mode.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct llama_context;
struct llama_cparams;
struct llama_ridgefill_marks;
struct llama_ubatch;
class  llama_batch_allocr;

// the RidgeFill part of a llama_context
class llama_ridgefill_context {
public:
    llama_ridgefill_counters counters = {};

    // set: the sites of every ubatch are recorded
    std::unique_ptr<llama_ridgefill_capture_state> capture;

    // llama_context::decode calls these in turn

    // mark the rows of a batch, so that no ubatch mixes filled and exact rows; false if the batch cannot run
    bool on_batch(llama_batch_allocr & balloc, const llama_context & ctx);

    // choose how a ubatch runs
    void on_ubatch(const llama_batch_allocr & balloc, const llama_ubatch & ubatch, llama_cparams & cparams);

    // record what a ubatch did, res == nullptr: it failed
    void on_done(const llm_graph_result * res, const llama_ubatch & ubatch, llama_ridgefill_marks & marks, llama_cparams & cparams);

private:
    int64_t t_start_us = 0;
};

// why rows of this context cannot be filled, "" if they can
std::string llama_ridgefill_conflict(const llama_cparams & cparams, bool has_adapters);
