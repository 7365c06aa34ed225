#pragma once

#include "common.h"
#include "llama-ridgefill.h"

#include <vector>

// maps in use by a context; must not outlive it
struct common_ridgefill {
    common_ridgefill() = default;

    ~common_ridgefill() { unload(); }

    common_ridgefill(const common_ridgefill &)             = delete;
    common_ridgefill & operator=(const common_ridgefill &) = delete;

    // load the maps that params name, if any, set them in the context and say so in params.ridgefill.loaded
    // false = the reason has been logged
    bool load(const common_params & params, llama_model * model, llama_context * ctx);

    void unload();

    bool loaded() const { return maps != nullptr; }

  private:
    void set(const common_params & params, common_ridgefill_info & info);

    llama_context *   ctx  = nullptr;
    llama_ridgefill * maps = nullptr;
};

// the rows of a prompt to fill, empty = all run exact
// throws std::invalid_argument
std::vector<llama_ridgefill_range> common_ridgefill_plan(const llama_ridgefill_plan_params & params, int32_t n_prompt);

// for llama_ridgefill_seq_select, with the settings in use
llama_ridgefill_select_params common_ridgefill_select_params(const common_ridgefill_info & info,
                                                             llama_ridgefill_select        type,
                                                             int32_t                       budget);

// for tools that decode one prompt in sequence 0, n_batch tokens at a time: mark the rows to fill with the settings in
// use, nothing without maps
// false = the reason has been logged
bool common_ridgefill_mark(const common_params & params, llama_context * ctx, int32_t n_prompt);
