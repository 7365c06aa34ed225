#pragma once

#include "ggml-backend.h"
#include "llama-ridgefill-graph.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// calibration: keeps the values of all sites of a ubatch readable after the computation
struct llama_ridgefill_capture_state {
    explicit llama_ridgefill_capture_state(int32_t layer_first) : layer_first(layer_first) {}

    const int32_t layer_first;

    struct site {
        std::string name;
        int32_t     layer;
        int32_t     width;

        const float *      data = nullptr;  // rows of the last ubatch, once somebody has asked for them
        std::vector<float> host;            // their copy, where device memory cannot be read directly
    };

    std::vector<site> sites;

    std::string error;  // why the graph cannot be captured

    void on_build(const llama_model & model, llm_graph_result & res);

    // the last decode computed this graph, nullptr: none or it failed
    void on_done(const llm_graph_result * res);

    // rows of the last ubatch, nullptr if there are none; the caller has waited until the device is done
    const float * read(int32_t i_site);

  private:
    const std::vector<ggml_tensor *> * last = nullptr;  // sites of the last ubatch

    // a context keeps several graphs
    std::map<const llm_graph_result *, std::vector<ggml_tensor *>> tensors;
};
