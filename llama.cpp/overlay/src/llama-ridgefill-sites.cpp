#include "llama-impl.h"
#include "llama-model.h"
#include "llama-ridgefill-graph.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-nodes.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

[[noreturn]] static void refuse(const llama_model & model, const std::string & why) {
    throw std::runtime_error(format("architecture '%s' cannot be filled: %s", llm_arch_name(model.arch), why.c_str()));
}

// the weight behind a view or reshape, nullptr if `t` is no weight
static const ggml_tensor * weight_of(const ggml_tensor * t) {
    while (t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE) {
        t = t->src[0];
    }
    const bool is_weight = t->op == GGML_OP_NONE && t->buffer &&
                           ggml_backend_buffer_get_usage(t->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    return is_weight ? t : nullptr;
}

static bool is_projection(const ggml_tensor * t) {
    return t->op == GGML_OP_MUL_MAT && weight_of(t->src[0]) != nullptr;
}

// the projections of one layer: of what its memory writes compute from the layer input, the multiplications by a weight
// that have no other one before them
static std::vector<ggml_tensor *> find_projections(ggml_cgraph *                      gf,
                                                   ggml_tensor *                      input,
                                                   const std::vector<ggml_tensor *> & sinks) {
    std::unordered_set<ggml_tensor *> reached = { input };  // ends the walk
    for (auto * sink : sinks) {
        llama_ridgefill_collect(sink, reached);
    }
    reached.erase(input);

    std::vector<ggml_tensor *>              found;
    std::unordered_set<const ggml_tensor *> behind;  // projections, and what is computed from them

    // each node comes behind those that it reads
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        auto * t = ggml_graph_node(gf, i);
        if (reached.count(t) == 0) {
            continue;
        }
        bool is_behind = false;
        for (const auto * src : t->src) {
            is_behind = is_behind || behind.count(src) > 0;
        }
        if (!is_behind && is_projection(t)) {
            found.push_back(t);
            is_behind = true;
        }
        if (is_behind) {
            behind.insert(t);
        }
    }
    return found;
}

static std::string site_name(const ggml_tensor * weight) {
    const std::string name   = weight->name;
    const std::string suffix = ".weight";
    return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0 ?
               name.substr(0, name.size() - suffix.size()) :
               name;
}

static ggml_tensor * get_layer_input(const llm_graph_result & res, int32_t il) {
    if (auto * t = res.get_layer_inp(il)) {
        return t;
    }
    if (il > 0) {
        return ggml_graph_get_tensor(res.get_gf(), format("l_out-%d", il - 1).c_str());
    }
    // no layer below: what the first norm reads
    auto * t = ggml_graph_get_tensor(res.get_gf(), "attn_norm-0");
    while (t && t->op != GGML_OP_RMS_NORM && t->op != GGML_OP_NORM) {
        t = t->src[0];
    }
    return t ? t->src[0] : nullptr;
}

ggml_tensor * llama_ridgefill_find_layer_input(const llama_model & model, const llm_graph_result & res, int32_t il) {
    auto * t = get_layer_input(res, il);
    if (t == nullptr) {
        refuse(model, format("the input of layer %d has no name", il));
    }
    if (t->type != GGML_TYPE_F32 || t->ne[0] != model.hparams.n_embd || t->ne[2] != 1 || t->ne[3] != 1) {
        refuse(model, format("the input of layer %d is not one row of width %u per token", il, model.hparams.n_embd));
    }
    if (t->view_src || !ggml_is_contiguous(t)) {
        refuse(model, format("the input of layer %d is a view", il));
    }
    return t;
}

std::vector<llama_ridgefill_site> llama_ridgefill_find_sites(const llama_model &      model,
                                                             const llm_graph_result & res,
                                                             int32_t                  layer_first) {
    auto * gf = res.get_gf();

    const int32_t n_layer = model.hparams.n_layer();

    std::map<int32_t, std::vector<ggml_tensor *>> sinks;
    for (auto * sink : llama_ridgefill_find_sinks(gf)) {
        const int32_t il = llama_ridgefill_sink_layer(sink);
        if (il < 0) {
            refuse(model, format("the memory tensor '%s' names no layer", llama_ridgefill_view_root(sink)->name));
        }
        sinks[il].push_back(sink);
    }
    if (sinks.empty()) {
        refuse(model, "it keeps no memory");
    }

    std::vector<llama_ridgefill_site> sites;

    for (int32_t il = layer_first; il < n_layer; ++il) {
        if (il != layer_first && sinks.count(il) == 0) {
            continue;  // borrows the memory of another layer
        }

        auto * input = llama_ridgefill_find_layer_input(model, res, il);
        sites.push_back({ format("blk.%d.input", il), il, true, input });

        std::vector<llama_ridgefill_site> projections;
        for (auto * t : find_projections(gf, input, sinks[il])) {
            const std::string name = site_name(weight_of(t->src[0]));
            if (name.rfind(format("blk.%d.", il), 0) != 0) {
                continue;  // does not depend on the layer input
            }
            projections.push_back({ name, il, false, t });
        }
        std::sort(projections.begin(), projections.end(),
                  [](const auto & a, const auto & b) { return a.name < b.name; });
        sites.insert(sites.end(), projections.begin(), projections.end());
    }

    return sites;
}

void llama_ridgefill_check_sites(const llama_model &                       model,
                                 const llama_ridgefill &                   maps,
                                 int32_t                                   split,
                                 const std::vector<llama_ridgefill_site> & sites) {
    const auto & cur = maps.splits.at(split);

    std::set<std::string> expected;
    for (const auto & site : sites) {
        if (site.layer <= split || site.is_input != (cur.target == LLAMA_RIDGEFILL_TARGET_INPUT)) {
            continue;
        }

        const auto it = cur.sites.find(site.name);
        if (it == cur.sites.end()) {
            throw std::runtime_error(format("map 'ridgefill.%d.%s' is missing (hint: the model writes memory there)",
                                            split, site.name.c_str()));
        }
        if (it->second.width() != site.tensor->ne[0]) {
            throw std::runtime_error(format("map 'ridgefill.%d.%s': expected width %d, found %d", split,
                                            site.name.c_str(), (int) site.tensor->ne[0], (int) it->second.width()));
        }
        if (!expected.insert(site.name).second) {
            refuse(model, format("'%s' is used twice", site.name.c_str()));
        }
        if (site.tensor->type != GGML_TYPE_F32 || site.tensor->view_src || !ggml_is_contiguous(site.tensor) ||
            site.tensor->ne[3] != 1) {
            refuse(model, format("'%s' has a form that cannot be replaced", site.name.c_str()));
        }
    }

    for (const auto & [name, map] : cur.sites) {
        if (expected.count(name) == 0) {
            throw std::runtime_error(
                format("map 'ridgefill.%d.%s' has no place in the model (hint: made for another model or version?)",
                       split, name.c_str()));
        }
    }
}
