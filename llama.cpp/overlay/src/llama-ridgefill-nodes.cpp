#include "llama-ridgefill-nodes.h"

#include <cstdio>
#include <cstring>

const ggml_tensor * llama_ridgefill_view_root(const ggml_tensor * t) {
    while (t->view_src) {
        t = t->view_src;
    }
    return t;
}

std::vector<ggml_tensor *> llama_ridgefill_find_sinks(ggml_cgraph * gf) {
    std::vector<ggml_tensor *> sinks;

    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        auto * node = ggml_graph_node(gf, i);
        if (!node->view_src || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
            node->op == GGML_OP_TRANSPOSE) {
            continue;
        }
        // tensors of the graph have no memory yet
        const auto * root = llama_ridgefill_view_root(node);
        if (root->op == GGML_OP_NONE && root->buffer) {
            sinks.push_back(node);
        }
    }

    return sinks;
}

int32_t llama_ridgefill_sink_layer(const ggml_tensor * sink) {
    const char * name = llama_ridgefill_view_root(sink)->name;
    const char * pos  = strrchr(name, '_');
    int32_t      il   = -1;
    int          n    = 0;
    if (!pos || sscanf(pos, "_l%9d%n", &il, &n) != 1 || pos[n] != '\0') {
        return -1;
    }
    return il;
}

void llama_ridgefill_collect(ggml_tensor * t, std::unordered_set<ggml_tensor *> & reached) {
    std::vector<ggml_tensor *> stack{ t };

    while (!stack.empty()) {
        auto * cur = stack.back();
        stack.pop_back();
        if (!reached.insert(cur).second) {
            continue;
        }
        for (auto * src : cur->src) {
            if (src) {
                stack.push_back(src);
            }
        }
        if (cur->view_src) {
            stack.push_back(cur->view_src);
        }
    }
}
