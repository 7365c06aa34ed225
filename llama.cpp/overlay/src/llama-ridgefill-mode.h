#pragma once

#include <cstdint>
#include <vector>

struct ggml_tensor;
struct llama_ridgefill;
struct llama_ridgefill_capture_state;
struct llama_ridgefill_selection;

// how the rows of a ubatch run, see docs/how-it-works.md
enum llama_ridgefill_mode : int8_t {
    LLAMA_RIDGEFILL_MODE_FULL = 0,  // all layers, the upstream graph
    LLAMA_RIDGEFILL_MODE_FILL,      // layers below the split, and what the maps predict for the memory of those above
    LLAMA_RIDGEFILL_MODE_LOWER,     // layers below the split
    LLAMA_RIDGEFILL_MODE_UPPER,     // layers from the split on, over cells that exist
};

// the part of the compute parameters that decides the topology of the graph
struct llama_ridgefill_cparams {
    const llama_ridgefill *         maps    = nullptr;
    llama_ridgefill_capture_state * capture = nullptr;

    // split states by cell, nullptr if they are not kept, and the cells that an UPPER ubatch reads
    ggml_tensor *                states = nullptr;
    const std::vector<int32_t> * rows   = nullptr;

    // LOWER: the selection whose heads score, and the numbers of rows that do (0: none) and of the prompt's last ones
    llama_ridgefill_selection * selection = nullptr;
    int32_t                     n_query   = 0;
    int32_t                     n_end     = 0;

    int32_t              split = -1;
    llama_ridgefill_mode mode  = LLAMA_RIDGEFILL_MODE_FULL;

    bool operator==(const llama_ridgefill_cparams & other) const {
        if (capture != other.capture || mode != other.mode || states != other.states || n_query > 0 ||
            other.n_query > 0) {
            return false;
        }
        return (mode == LLAMA_RIDGEFILL_MODE_FULL && !states) || (maps == other.maps && split == other.split);
    }
};

// at its end the parameters are again what they were: what is set for one ubatch holds for no other one
class llama_ridgefill_scope {
  public:
    explicit llama_ridgefill_scope(llama_ridgefill_cparams & cparams) : cparams(cparams), saved(cparams) {}

    // for parameters that have been set since
    llama_ridgefill_scope(llama_ridgefill_cparams & cparams, const llama_ridgefill_cparams & saved) :
        cparams(cparams),
        saved(saved) {}

    ~llama_ridgefill_scope() { cparams = saved; }

    llama_ridgefill_scope(const llama_ridgefill_scope &)             = delete;
    llama_ridgefill_scope & operator=(const llama_ridgefill_scope &) = delete;

  private:
    llama_ridgefill_cparams &     cparams;
    const llama_ridgefill_cparams saved;
};
