#pragma once

#include <cstdint>

struct llama_ridgefill;
struct llama_ridgefill_capture_state;

// how the rows of a ubatch run, see docs/how-it-works.md
enum llama_ridgefill_mode : int8_t {
    LLAMA_RIDGEFILL_MODE_FULL = 0, // all layers, the upstream graph
    LLAMA_RIDGEFILL_MODE_FILL,     // layers below the split, and what the maps predict for the memory of those above
};

// the part of the compute parameters that decides the topology of the graph
struct llama_ridgefill_cparams {
    const llama_ridgefill *         maps    = nullptr;
    llama_ridgefill_capture_state * capture = nullptr;

    int32_t              split = -1;
    llama_ridgefill_mode mode  = LLAMA_RIDGEFILL_MODE_FULL;

    bool operator==(const llama_ridgefill_cparams & other) const {
        if (capture != other.capture || mode != other.mode) {
            return false;
        }
        return mode == LLAMA_RIDGEFILL_MODE_FULL || (maps == other.maps && split == other.split);
    }
};
