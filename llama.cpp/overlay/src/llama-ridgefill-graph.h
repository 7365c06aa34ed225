#pragma once

#include "ggml.h"

#include <map>
#include <string>
#include <vector>

struct llama_model;
struct llama_ridgefill;
struct llm_graph_params;
class llm_graph_result;

// a value in the graph of one layer that a map can predict: the layer's input, or a projection of it that feeds a
// memory write
struct llama_ridgefill_site {
    std::string   name;  // "blk.<l>.input", "blk.<l>.<projection>"
    int32_t       layer;
    bool          is_input;
    ggml_tensor * tensor;  // [width, n_tokens], a projection may split n_tokens over two dimensions
};

// the sites of the layers [layer_first, n_layer) that write memory, by layer, the input first
// the input of layer_first is listed even if that layer writes nothing: it is the split state
// throws std::runtime_error, naming the architecture, if the graph has a form that cannot be served
std::vector<llama_ridgefill_site> llama_ridgefill_find_sites(const llama_model &      model,
                                                             const llm_graph_result & res,
                                                             int32_t                  layer_first);

// the input of one layer, the split state if the layer is the split
// throws std::runtime_error if the graph does not name it, or if it has not one row of width n_embd for each token
ggml_tensor * llama_ridgefill_find_layer_input(const llama_model & model, const llm_graph_result & res, int32_t il);

// what the graph rewrite needs for one split; throws if maps and sites do not match one to one
void llama_ridgefill_check_sites(const llama_model &                       model,
                                 const llama_ridgefill &                   maps,
                                 int32_t                                   split,
                                 const std::vector<llama_ridgefill_site> & sites);

// reduce the graph to the memory writes: exact up to the split, predicted above
void llama_ridgefill_rewrite_fill(const llama_model &     model,
                                  llm_graph_result &      res,
                                  const llama_ridgefill & maps,
                                  int32_t                 split);

// the one call in llama_model::build_graph; false if the graph cannot be rewritten, see llama_ridgefill_last_error
bool llama_ridgefill_on_build(const llama_model & model, const llm_graph_params & params, llm_graph_result & res);
