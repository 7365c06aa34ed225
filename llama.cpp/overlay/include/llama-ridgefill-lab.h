#pragma once

// instruments of the laboratory: programs that serve do not need them, and they may change or go in any release

#include "llama-ridgefill.h"

#ifdef __cplusplus
extern "C" {
#endif

//
// splice: give one sequence parts of what another one's memory holds, to see which part of a fill does harm
//

enum llama_ridgefill_component {
    LLAMA_RIDGEFILL_COMPONENT_K     = 1,
    LLAMA_RIDGEFILL_COMPONENT_V     = 2,
    LLAMA_RIDGEFILL_COMPONENT_STATE = 4,  // of a recurrent layer
};

// what a layer keeps in the memory, a sum of components; 0: it reads what an earlier layer keeps, or nothing
// returns -1 on error
LLAMA_API int32_t llama_ridgefill_layer_components(const struct llama_context * ctx, int32_t layer);

// replace what seq_id_dst holds for the positions [p0, p1) in the layers [layer_first, layer_last] by what seq_id_src
// holds, for a sum of components that each occur in these layers; p0 < 0: from the start, p1 < 0: to the end
// a recurrent state is one for all rows: it is replaced as a whole, and p1 must be the end of both sequences
// rows that a sliding window has left for good need not be there
// spliced rows count as filled; since no prompt would have left them so, none reuses them, and they cannot run again
// returns 0, or -1 on error, with nothing changed
LLAMA_API int32_t llama_ridgefill_seq_splice(struct llama_context * ctx,
                                             llama_seq_id           seq_id_src,
                                             llama_seq_id           seq_id_dst,
                                             llama_pos              p0,
                                             llama_pos              p1,
                                             int32_t                layer_first,
                                             int32_t                layer_last,
                                             int32_t                components);

#ifdef __cplusplus
}
#endif
