#pragma once

#include "ggml.h"

#include <cstdint>
#include <unordered_set>
#include <vector>

// the tensor that a chain of views ends in
const ggml_tensor * llama_ridgefill_view_root(const ggml_tensor * t);

// the nodes that write in place into the memory of the model, in graph order
std::vector<ggml_tensor *> llama_ridgefill_find_sinks(ggml_cgraph * gf);

// the layer whose memory a sink writes, from the name of the memory tensor ("cache_k_l7"); -1 if it has none
int32_t llama_ridgefill_sink_layer(const ggml_tensor * sink);

// everything that a node depends on, itself included
void llama_ridgefill_collect(ggml_tensor * t, std::unordered_set<ggml_tensor *> & reached);
