#include "llama-ridgefill-graph.h"

#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-ridgefill-capture.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-nodes.h"
#include "llama-ridgefill-select.h"
#include "llama-ridgefill-states.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

// what the maps are applied to
struct fill_features {
    ggml_tensor * x;  // [n_embd, n_tokens] split state, divided by its RMS if the maps ask for it
    ggml_tensor * r;  // [1, n_tokens] the RMS, nullptr if not needed
};

static fill_features build_features(ggml_context *          ctx,
                                    const llama_ridgefill & maps,
                                    llama_ridgefill_target  target,
                                    ggml_tensor *           x_s) {
    fill_features res = { x_s, nullptr };

    // also keeps f16 products in range: split states above 65504 exist
    if (maps.feature_norm) {
        res.x = ggml_rms_norm(ctx, x_s, maps.feature_norm_eps);
        ggml_set_name(res.x, "ridgefill_features");

        if (target == LLAMA_RIDGEFILL_TARGET_INPUT) {
            res.r = ggml_mean(ctx, ggml_sqr(ctx, x_s));
            res.r = ggml_sqrt(ctx, ggml_scale_bias(ctx, res.r, 1.0f, maps.feature_norm_eps));
        }
    }

    return res;
}

static ggml_tensor * build_map(ggml_context *              ctx,
                               const llama_ridgefill_map & map,
                               const fill_features &       features,
                               const ggml_tensor *         like) {
    auto * cur = features.x;
    if (like->ne[2] != 1) {
        cur = ggml_reshape_3d(ctx, cur, cur->ne[0], like->ne[1], like->ne[2]);
    }

    cur = map.w ? ggml_mul_mat(ctx, map.w, cur) : ggml_mul_mat(ctx, map.b, ggml_mul_mat(ctx, map.a, cur));
    if (map.bias) {
        cur = ggml_add(ctx, cur, map.bias);
    }
    if (features.r) {
        cur = ggml_mul(ctx, cur, features.r);
    }

    return cur;
}

// make a tensor of the graph compute what `cur` computes; everything that reads the tensor follows by itself
static void retarget(ggml_tensor * t, const ggml_tensor * cur) {
    GGML_ASSERT(ggml_are_same_shape(t, cur) && t->type == cur->type && ggml_are_same_stride(t, cur));
    GGML_ASSERT(t->view_src == nullptr && cur->view_src == nullptr);

    t->op = cur->op;
    memcpy(t->op_params, cur->op_params, sizeof(t->op_params));
    memcpy(t->src, cur->src, sizeof(t->src));
}

// refuse a graph in which memory writes still need the upper layers: a map was not applied where it should be
// an input of a layer that no map predicts is found for certain; the weights are known by the names of the two that end
// a layer's halves in most architectures: where these are called otherwise, a filled row costs more than it should, but
// what it writes is the same
static void check_reached(const llama_model &                             model,
                          const std::unordered_set<ggml_tensor *> &       reached,
                          int32_t                                         split,
                          const std::unordered_set<const ggml_tensor *> & cut) {
    for (const auto * t : reached) {
        if (cut.count(t)) {
            throw std::runtime_error(
                format("architecture '%s' cannot be filled with these maps: memory writes above layer %d depend on "
                       "'%s' past the maps (hint: try the target 'input')",
                       llm_arch_name(model.arch), split, t->name));
        }
        int  il = -1;
        char rest[GGML_MAX_NAME];
        if (t->op == GGML_OP_NONE && sscanf(t->name, "blk.%9d.%63s", &il, rest) == 2 && il >= split &&
            (strncmp(rest, "ffn_down", 8) == 0 || strncmp(rest, "attn_output", 11) == 0)) {
            throw std::runtime_error(
                format("architecture '%s' cannot be filled: memory writes above layer %d depend on '%s'",
                       llm_arch_name(model.arch), split, t->name));
        }
    }
}

// reduce the graph to what some of its nodes need
static void keep_only(llm_graph_result & res, const std::unordered_set<ggml_tensor *> & reached) {
    auto * gf = res.get_gf();

    std::vector<ggml_tensor *> nodes(ggml_graph_n_nodes(gf));
    for (size_t i = 0; i < nodes.size(); ++i) {
        nodes[i] = ggml_graph_node(gf, i);
    }

    // the order of the nodes stays, so reads and writes of the same memory stay in order too
    ggml_graph_clear(gf);
    for (auto * node : nodes) {
        if (reached.count(node)) {
            ggml_build_forward_expand(gf, node);
        }
    }

    // inputs that nothing reads any more are still set before each computation: as leafs they get memory
    for (auto * t = ggml_get_first_tensor(res.get_ctx()); t; t = ggml_get_next_tensor(res.get_ctx(), t)) {
        if (t->op == GGML_OP_NONE && (t->flags & GGML_TENSOR_FLAG_INPUT)) {
            ggml_build_forward_expand(gf, t);
        }
    }
}

// store the split states of the rows in the cells of the attention cache that the rows get
static ggml_tensor * build_state_write(const llama_model & model,
                                       llm_graph_result &  res,
                                       ggml_tensor *       states,
                                       ggml_tensor *       x_s) {
    for (auto * sink : llama_ridgefill_find_sinks(res.get_gf())) {
        const int32_t il = llama_ridgefill_sink_layer(sink);
        if (sink->op == GGML_OP_SET_ROWS && il >= 0 && !model.hparams.is_swa(il) &&
            strncmp(llama_ridgefill_view_root(sink)->name, "cache_k_", 8) == 0) {
            return ggml_set_rows(res.get_ctx(), states, x_s, sink->src[1]);
        }
    }
    throw std::runtime_error(
        format("architecture '%s' has no attention cache for the split states", llm_arch_name(model.arch)));
}

void llama_ridgefill_rewrite_fill(const llama_model &     model,
                                  llm_graph_result &      res,
                                  const llama_ridgefill & maps,
                                  int32_t                 split) {
    auto * ctx = res.get_ctx();
    auto * gf  = res.get_gf();

    const auto & split_maps = maps.splits.at(split);

    const auto sites = llama_ridgefill_find_sites(model, res, split);
    const auto sinks = llama_ridgefill_find_sinks(gf);

    llama_ridgefill_check_sites(model, maps, split, sites);

    // replace what the maps predict
    const auto features = build_features(ctx, maps, split_maps.target, sites.front().tensor);

    std::unordered_set<const ggml_tensor *> cut;
    for (const auto & site : sites) {
        if (site.layer == split) {
            continue;
        }
        const auto it = split_maps.sites.find(site.name);
        if (it != split_maps.sites.end()) {
            retarget(site.tensor, build_map(ctx, it->second, features, site.tensor));
        } else if (site.is_input) {
            cut.insert(site.tensor);
        }
    }

    // keep only what the memory writes need
    std::unordered_set<ggml_tensor *> reached;
    for (auto * sink : sinks) {
        llama_ridgefill_collect(sink, reached);
    }

    check_reached(model, reached, split, cut);
    keep_only(res, reached);
}

static void rewrite_lower(const llama_model & model, llm_graph_result & res, const llama_ridgefill_cparams & cur) {
    const int32_t split = cur.split;

    std::vector<ggml_tensor *> scores;
    if (cur.n_query > 0) {
        scores                 = llama_ridgefill_build_scores(model, res, cur.selection->heads, cur.n_query, cur.n_end);
        cur.selection->tensors = scores;
    }

    std::unordered_set<ggml_tensor *> reached;
    llama_ridgefill_collect(llama_ridgefill_find_layer_input(model, res, split), reached);
    for (auto * sink : llama_ridgefill_find_sinks(res.get_gf())) {
        if (llama_ridgefill_sink_layer(sink) < split) {
            llama_ridgefill_collect(sink, reached);
        }
    }
    keep_only(res, reached);
    for (auto * t : scores) {
        ggml_build_forward_expand(res.get_gf(), t);
    }
    res.t_logits = nullptr;  // the rows get their logits later
}

// rows that came as embeddings have no token
static bool has_all_tokens(const llama_ubatch & ubatch) {
    return std::find(ubatch.token, ubatch.token + ubatch.n_tokens, LLAMA_TOKEN_NULL) == ubatch.token + ubatch.n_tokens;
}

static void rewrite_upper(const llama_model &             model,
                          llm_graph_result &              res,
                          const llama_ridgefill_cparams & cur,
                          const llama_ubatch &            ubatch) {
    auto * ctx = res.get_ctx();
    auto * gf  = res.get_gf();

    auto * x_s  = llama_ridgefill_find_layer_input(model, res, cur.split);
    auto * idxs = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, x_s->ne[1]);
    ggml_set_input(idxs);
    ggml_set_name(idxs, "ridgefill_rows");
    res.add_input(std::make_unique<llm_graph_input_ridgefill_rows>(idxs, cur.rows));

    retarget(x_s, ggml_get_rows(ctx, cur.states, idxs));

    std::unordered_set<ggml_tensor *> reached;
    for (auto * sink : llama_ridgefill_find_sinks(gf)) {
        if (llama_ridgefill_sink_layer(sink) >= cur.split) {
            llama_ridgefill_collect(sink, reached);
        }
    }
    if (res.t_logits) {
        llama_ridgefill_collect(res.t_logits, reached);
    }

    if (reached.count(res.get_inp_tokens()) && !has_all_tokens(ubatch)) {
        throw std::runtime_error(format(
            "rows that came as embeddings cannot run again: upper layers of architecture '%s' read the input too",
            llm_arch_name(model.arch)));
    }

    // the new node is the first that the upper layers need
    keep_only(res, reached);
}

bool llama_ridgefill_on_build(const llama_model & model, const llm_graph_params & params, llm_graph_result & res) {
    const auto & cur = params.cparams.ridgefill;

    if (cur.capture) {
        cur.capture->on_build(model, res);
    }
    try {
        ggml_tensor * state_write = nullptr;
        if (cur.states && cur.mode != LLAMA_RIDGEFILL_MODE_UPPER) {
            state_write =
                build_state_write(model, res, cur.states, llama_ridgefill_find_layer_input(model, res, cur.split));
        }
        switch (cur.mode) {
            case LLAMA_RIDGEFILL_MODE_FULL:
                break;
            case LLAMA_RIDGEFILL_MODE_FILL:
                llama_ridgefill_rewrite_fill(model, res, *cur.maps, cur.split);
                break;
            case LLAMA_RIDGEFILL_MODE_LOWER:
                rewrite_lower(model, res, cur);
                break;
            case LLAMA_RIDGEFILL_MODE_UPPER:
                rewrite_upper(model, res, cur, params.ubatch);
                break;
        }
        if (state_write) {
            ggml_build_forward_expand(res.get_gf(), state_write);
        }
    } catch (const std::exception & err) {
        llama_ridgefill_set_error(err.what());
        return false;
    }
    return true;
}
