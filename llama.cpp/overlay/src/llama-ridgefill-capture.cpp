#include "llama-ridgefill-capture.h"

#include "llama-graph.h"

#include <stdexcept>

void llama_ridgefill_capture_state::on_build(const llama_model & model, llm_graph_result & res) {
    std::vector<llama_ridgefill_site> found;
    try {
        found = llama_ridgefill_find_sites(model, res, layer_first);
    } catch (const std::exception & err) {
        error = err.what();
        return;
    }

    auto & cur = tensors[&res];
    cur.clear();
    for (const auto & it : found) {
        ggml_set_output(it.tensor);
        cur.push_back(it.tensor);
    }

    if (sites.empty()) {
        for (const auto & it : found) {
            sites.push_back({ it.name, it.layer, (int32_t) it.tensor->ne[0], nullptr, {} });
        }
    }
    GGML_ASSERT(sites.size() == cur.size());
}

void llama_ridgefill_capture_state::on_done(const llm_graph_result & res) {
    const auto & cur = tensors.at(&res);

    for (size_t i = 0; i < sites.size(); ++i) {
        auto * t = cur[i];
        if (ggml_backend_buffer_is_host(t->buffer)) {
            sites[i].data = (const float *) t->data;
        } else {
            sites[i].host.resize(ggml_nelements(t));
            ggml_backend_tensor_get(t, sites[i].host.data(), 0, ggml_nbytes(t));
            sites[i].data = sites[i].host.data();
        }
    }
}
