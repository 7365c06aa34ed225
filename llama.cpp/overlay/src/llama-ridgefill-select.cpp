#include "llama-ridgefill-select.h"

#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

// pass each score on to the rows around it, half as much with every n_before rows before and every n_after rows after it
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

void llama_ridgefill_selection::pool() {
    for (size_t i = 0; i < scores.size(); ++i) {
        const auto far = spread(scores_end[i], n_before, (double) n_after * END_REACH);
        scores[i]      = spread(scores[i], n_before, n_after);
        for (int32_t p = 0; p < n_prompt; ++p) {
            scores[i][p] = std::max(scores[i][p], far[p]);
        }
    }
    scores_end.clear();
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
    for (const auto & head : scores) {
        for (int32_t p = 0; p < n_prompt; ++p) {
            best[p] = std::max(best[p], head[p]);
        }
    }

    res = std::move(rows);
    std::nth_element(res.begin(), res.begin() + budget, res.end(),
                     [&](llama_pos a, llama_pos b) { return best[a] != best[b] ? best[a] > best[b] : a < b; });
    res.resize(budget);
    std::sort(res.begin(), res.end());
    return res;
}

// what scores a layer's rows: its fused attention, or the probabilities that its attention leaves behind
struct score_source {
    const ggml_tensor * fattn    = nullptr;
    ggml_tensor *       soft_max = nullptr;  // [n_kv, n_rows, all heads]

    int64_t n_kv() const { return fattn ? fattn->src[1]->ne[1] : soft_max->ne[0]; }

    int64_t n_rows() const { return fattn ? fattn->src[0]->ne[1] : soft_max->ne[1]; }

    int64_t n_head() const { return fattn ? fattn->src[0]->ne[2] : soft_max->ne[2]; }
};

// bytes of probabilities that the scores of an entry of `heads` need at a time, where the graph has room for the nodes;
// a long cache and many queries would take gigabytes of the compute buffer otherwise
static constexpr int64_t MAX_PROBS = 32 << 20;

// tensors that one chunk of queries needs at most
static constexpr int64_t MAX_TENSORS = 16;

// copy the rows [i1, i1 + n1) (second dimension) of the matrices [i2, i2 + n2) of a tensor
static ggml_tensor * copy_rows(ggml_context * ctx, ggml_tensor * t, int64_t i1, int64_t n1, int64_t i2, int64_t n2) {
    return ggml_cont(ctx, ggml_view_3d(ctx, t, t->ne[0], n1, n2, t->nb[1], t->nb[2], i2 * t->nb[2] + i1 * t->nb[1]));
}

// probabilities [n_kv, n, n_head] that the rows [i, i + n) give to the cells, for the heads [head, head + n_head)
// flash attention does not leave them behind: they are computed again, as the model does
static ggml_tensor * build_probs(ggml_context *       ctx,
                                 const score_source & source,
                                 int64_t              head,
                                 int64_t              n_head,
                                 int64_t              i,
                                 int64_t              n) {
    if (!source.fattn) {
        return copy_rows(ctx, source.soft_max, i, n, head, n_head);
    }
    auto * q    = source.fattn->src[0];  // [d, n_rows, all heads]
    auto * k    = source.fattn->src[1];  // [d, n_kv, all heads of the cache]
    auto * mask = source.fattn->src[3];  // [n_kv, at least n_rows]

    float scale, max_bias, softcap;
    memcpy(&scale, (const float *) source.fattn->op_params + 0, sizeof(float));
    memcpy(&max_bias, (const float *) source.fattn->op_params + 1, sizeof(float));
    memcpy(&softcap, (const float *) source.fattn->op_params + 2, sizeof(float));
    if (max_bias != 0.0f) {
        throw std::runtime_error("heads with a position bias (ALiBi) cannot score rows");
    }

    const int64_t n_share   = q->ne[2] / k->ne[2];  // heads that share one of the cache
    const int64_t n_head_kv = n_head == 1 ? 1 : k->ne[2];

    auto * k_h = ggml_view_3d(ctx, k, k->ne[0], k->ne[1], n_head_kv, k->nb[1], k->nb[2], head / n_share * k->nb[2]);

    auto * kq = ggml_mul_mat(ctx, k_h, copy_rows(ctx, q, i, n, head, n_head));
    ggml_prec_set_acc(kq, GGML_PREC_F32);

    if (softcap != 0.0f) {
        kq    = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, kq, scale / softcap)), softcap);
        scale = 1.0f;
    }

    // whole rows of the mask lie one after the other: no copy is needed
    auto * mask_h = ggml_view_2d(ctx, mask, mask->ne[0], n, mask->nb[1], i * mask->nb[1]);

    auto * probs = ggml_soft_max_ext(ctx, kq, mask_h, scale, 0.0f);
    if (auto * sinks = source.fattn->src[4]) {
        ggml_soft_max_add_sinks(probs, ggml_cont(ctx, ggml_view_1d(ctx, sinks, n_head, head * sinks->nb[0])));
    }
    return probs;
}

// the largest of the rows: [n_kv, n, n_head] -> [n_kv, 1, n_head]
static ggml_tensor * build_max(ggml_context * ctx, ggml_tensor * t) {
    return t->ne[1] == 1 ? t : ggml_pool_2d(ctx, t, GGML_OP_POOL_MAX, 1, t->ne[1], 1, t->ne[1], 0, 0);
}

// for the heads [head, head + n_head): the largest probability of each cell among the last n_query rows, and behind
// them along the last dimension, if n_end > 0, among the last n_end rows
// the rows are scored in at most max_chunks chunks, the last rows first
static ggml_tensor * build_best(ggml_context *       ctx,
                                const score_source & source,
                                int64_t              head,
                                int64_t              n_head,
                                int64_t              n_query,
                                int64_t              n_end,
                                int64_t              max_chunks) {
    const int64_t n_fit   = MAX_PROBS / ((int64_t) sizeof(float) * source.n_kv() * n_head);
    const int64_t n_chunk = std::max({ n_fit, (n_query + max_chunks - 1) / max_chunks, n_end, (int64_t) 1 });

    ggml_tensor * best = nullptr;
    ggml_tensor * end  = nullptr;
    for (int64_t n_done = 0; n_done < n_query; n_done += n_chunk) {
        const int64_t n = std::min(n_chunk, n_query - n_done);

        auto * probs = build_probs(ctx, source, head, n_head, source.n_rows() - n_done - n, n);
        if (n_done == 0 && n_end > 0) {
            end = build_max(ctx, n_end < n ? copy_rows(ctx, probs, n - n_end, n_end, 0, n_head) : probs);
        }
        auto * cur = build_max(ctx, probs);
        best       = best ? build_max(ctx, ggml_concat(ctx, best, cur, 1)) : cur;
    }
    return end ? ggml_concat(ctx, best, end, 2) : best;
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

    // half of what the graph's context has left, in equal shares
    const int64_t n_free     = (ggml_get_mem_size(ctx) - ggml_used_mem(ctx)) / ggml_tensor_overhead();
    const int64_t max_chunks = std::max<int64_t>(1, n_free / 2 / (MAX_TENSORS * std::max<int64_t>(1, heads.size())));

    std::vector<ggml_tensor *> out;
    for (const auto & it : heads) {
        score_source source;
        if (const auto fattn = fattns.find(it.layer); fattn != fattns.end()) {
            source.fattn = fattn->second;
        } else {
            source.soft_max = ggml_graph_get_tensor(gf, format("kq_soft_max-%d", it.layer).c_str());
        }
        if (!source.fattn && !source.soft_max) {
            throw std::runtime_error(format("layer %d of architecture '%s' has no attention that can score rows",
                                            it.layer, llm_arch_name(model.arch)));
        }
        if (it.head >= source.n_head()) {
            throw std::runtime_error(format("layer %d has no head %d", it.layer, it.head));
        }

        auto * best = build_best(ctx, source, std::max(0, it.head), it.head < 0 ? source.n_head() : 1, n_query, n_end,
                                 max_chunks);
        ggml_set_output(best);
        out.push_back(best);
    }
    return out;
}
