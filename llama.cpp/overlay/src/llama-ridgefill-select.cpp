#include "llama-ridgefill-select.h"

#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

// each score counts for the rows around it too, half with every n_before rows before and every n_after rows after it
static std::vector<float> spread(const std::vector<float> & scores, double n_before, double n_after) {
    const auto factor = [](double n) {
        return n > 0.0 ? (float) std::exp2(-1.0 / n) : 0.0f;
    };

    const float before = factor(n_before);
    const float after  = factor(n_after);

    std::vector<float> res(scores.size());

    float sum = 0.0f;
    for (size_t i = 0; i < scores.size(); ++i) {
        sum    = sum * after + scores[i];
        res[i] = sum;
    }
    sum = 0.0f;
    for (size_t i = scores.size(); i-- > 0;) {
        res[i] += sum;  // of the rows behind
        sum = (sum + scores[i]) * before;
    }
    return res;
}

std::vector<llama_pos> llama_ridgefill_selection::choose(const llama_ridgefill_ranges & ranges) const {
    std::vector<llama_pos> rows;
    for (const auto & r : ranges.get()) {
        for (llama_pos p = r.p0; p < std::min(r.p1, n_prompt - tail); ++p) {
            rows.push_back(p);
        }
    }
    if ((size_t) budget >= rows.size()) {
        return rows;
    }

    std::vector<llama_pos> res;

    if (type == LLAMA_RIDGEFILL_SELECT_STRIDE) {
        // blocks whose starts are spread evenly
        const size_t n_block  = (size_t) n_before + 1 + n_after;
        const size_t n_blocks = std::max<size_t>(1, (budget + n_block - 1) / n_block);
        for (size_t i = 0; i < n_blocks; ++i) {
            const size_t start = i * rows.size() / n_blocks;
            const size_t end   = std::min({ start + n_block, (i + 1) * rows.size() / n_blocks,
                                            start + budget - std::min<size_t>(budget, res.size()) });
            res.insert(res.end(), rows.begin() + start, rows.begin() + std::max(start, end));
        }
        return res;
    }

    std::vector<float> best(n_prompt, 0.0f);
    for (size_t i = 0; i < scores.size(); ++i) {
        const auto near = spread(scores[i], n_before, n_after);
        const auto far  = spread(scores_end[i], n_before, (double) n_after * LLAMA_RIDGEFILL_END_REACH);
        for (int32_t p = 0; p < n_prompt; ++p) {
            best[p] = std::max({ best[p], near[p], far[p] });
        }
    }

    res = rows;
    std::nth_element(res.begin(), res.begin() + budget, res.end(),
                     [&](llama_pos a, llama_pos b) { return best[a] != best[b] ? best[a] > best[b] : a < b; });
    res.resize(budget);
    std::sort(res.begin(), res.end());
    return res;
}

static ggml_tensor * find_node(ggml_cgraph * gf, const std::string & name) {
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        if (name == ggml_graph_node(gf, i)->name) {
            return ggml_graph_node(gf, i);
        }
    }
    return nullptr;
}

// the last n rows (second dimension) of the matrices [i2, i2 + n2) of a tensor
static ggml_tensor * last_rows(ggml_context * ctx, ggml_tensor * t, int64_t n, int64_t i2, int64_t n2) {
    return ggml_view_3d(ctx, t, t->ne[0], n, n2, t->nb[1], t->nb[2], i2 * t->nb[2] + (t->ne[1] - n) * t->nb[1]);
}

// probabilities [n_kv, n_query, n_head] of the heads [head, head + n_head) with flash attention, which does not leave them behind
static ggml_tensor * build_probs(ggml_context *      ctx,
                                 const ggml_tensor * fattn,
                                 int64_t             head,
                                 int64_t             n_head,
                                 int64_t             n_query) {
    auto * q    = fattn->src[0];  // [d, n_rows, all heads]
    auto * k    = fattn->src[1];  // [d, n_kv, all heads of the cache]
    auto * mask = fattn->src[3];  // [n_kv, n_rows]

    float scale, max_bias, softcap;
    memcpy(&scale, (const float *) fattn->op_params + 0, sizeof(float));
    memcpy(&max_bias, (const float *) fattn->op_params + 1, sizeof(float));
    memcpy(&softcap, (const float *) fattn->op_params + 2, sizeof(float));
    if (max_bias != 0.0f) {
        throw std::runtime_error("heads with a position bias (ALiBi) cannot score rows");
    }

    const int64_t n_rows    = q->ne[1];
    const int64_t n_share   = q->ne[2] / k->ne[2];  // heads that share one of the cache
    const int64_t n_head_kv = n_head == 1 ? 1 : k->ne[2];

    auto * q_h = ggml_cont(ctx, last_rows(ctx, q, n_query, head, n_head));
    auto * k_h = ggml_view_3d(ctx, k, k->ne[0], k->ne[1], n_head_kv, k->nb[1], k->nb[2], head / n_share * k->nb[2]);

    auto * kq = ggml_mul_mat(ctx, k_h, q_h);
    ggml_prec_set_acc(kq, GGML_PREC_F32);

    if (softcap != 0.0f) {
        kq    = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, kq, scale / softcap)), softcap);
        scale = 1.0f;
    }

    // the mask may have more rows than there are queries
    auto * mask_h =
        ggml_cont(ctx, ggml_view_2d(ctx, mask, mask->ne[0], n_query, mask->nb[1], (n_rows - n_query) * mask->nb[1]));

    auto * probs = ggml_soft_max_ext(ctx, kq, mask_h, scale, 0.0f);
    if (auto * sinks = fattn->src[4]) {
        ggml_soft_max_add_sinks(probs, ggml_cont(ctx, ggml_view_1d(ctx, sinks, n_head, head * sinks->nb[0])));
    }
    return probs;
}

// the largest probability [n_kv, 1, n_head] that any of the last n rows gives to a cell
static ggml_tensor * build_best(ggml_context * ctx, ggml_tensor * probs, int64_t n) {
    if (n < probs->ne[1]) {
        probs = ggml_cont(ctx, last_rows(ctx, probs, n, 0, probs->ne[2]));
    }
    return n == 1 ? probs : ggml_pool_2d(ctx, probs, GGML_OP_POOL_MAX, 1, n, 1, n, 0, 0);
}

std::vector<ggml_tensor *> llama_ridgefill_build_scores(const llama_model &                       model,
                                                        llm_graph_result &                        res,
                                                        const std::vector<llama_ridgefill_head> & heads,
                                                        int64_t                                   n_query,
                                                        int64_t                                   n_end) {
    auto * ctx = res.get_ctx();
    auto * gf  = res.get_gf();

    std::map<int32_t, const ggml_tensor *> fattns;
    for (const auto & fused : res.get_fused_nodes()) {
        if (fused.op == LLM_FUSED_OP_FLASH_ATTN) {
            fattns[fused.il] = fused.tensor;
        }
    }

    std::vector<ggml_tensor *> out;
    for (const auto & it : heads) {
        const int64_t head = std::max(0, it.head);

        const auto count = [&](const ggml_tensor * t) {
            if (head >= t->ne[2]) {
                throw std::runtime_error(format("layer %d has no head %d", it.layer, it.head));
            }
            return it.head < 0 ? t->ne[2] : 1;
        };

        ggml_tensor * probs = nullptr;
        if (const auto fattn_it = fattns.find(it.layer); fattn_it != fattns.end()) {
            const auto * fattn = fattn_it->second;
            probs              = build_probs(ctx, fattn, head, count(fattn->src[0]), n_query);
        } else if (auto * soft_max = find_node(gf, format("kq_soft_max-%d", it.layer))) {
            probs = ggml_cont(ctx, last_rows(ctx, soft_max, n_query, head, count(soft_max)));
        } else {
            throw std::runtime_error(format("layer %d of architecture '%s' has no attention that can score rows",
                                            it.layer, llm_arch_name(model.arch)));
        }

        auto * best = build_best(ctx, probs, n_query);
        if (n_end > 0) {
            best = ggml_concat(ctx, best, build_best(ctx, probs, n_end), 2);
        }
        ggml_set_output(best);
        out.push_back(best);
    }
    return out;
}
