#include "llama-ridgefill.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-marks.h"

#include <cstring>
#include <stdexcept>

uint32_t llama_ridgefill_api_version(void) {
    return LLAMA_RIDGEFILL_API_VERSION;
}

llama_ridgefill_fingerprint llama_ridgefill_model_fingerprint(const llama_model * model) {
    return llama_ridgefill_guarded<llama_ridgefill_fingerprint>(
        {}, [&]() { return llama_ridgefill_fingerprint_of(*model); });
}

//
// maps
//

llama_ridgefill_params llama_ridgefill_default_params(void) {
    return {
        /*.skip_fingerprint =*/false,
    };
}

llama_ridgefill * llama_ridgefill_init(llama_model * model, const char * path, llama_ridgefill_params params) {
    return llama_ridgefill_guarded<llama_ridgefill *>(nullptr, [&]() {
        if (!model || !path) {
            throw std::runtime_error("no model or no path given");
        }
        const int64_t t_start_us = ggml_time_us();

        auto maps = std::make_unique<llama_ridgefill>(*model);
        try {
            maps->load(path, params);
        } catch (const std::exception & err) {
            throw std::runtime_error(format("failed to load maps '%s': %s", path, err.what()));
        }
        LLAMA_LOG_INFO("llama_ridgefill_init: loaded '%s' in %.2f ms\n", path, (ggml_time_us() - t_start_us) / 1000.0);
        return maps.release();
    });
}

void llama_ridgefill_free(llama_ridgefill * maps) {
    delete maps;
}

static int32_t copy_str(const std::string & str, char * buf, size_t buf_size) {
    return snprintf(buf, buf_size, "%s", str.c_str());
}

static int32_t no_str(char * buf, size_t buf_size) {
    if (buf_size > 0) {
        buf[0] = '\0';
    }
    return -1;
}

int32_t llama_ridgefill_meta_val_str(const llama_ridgefill * maps, const char * key, char * buf, size_t buf_size) {
    for (const auto & kv : maps->gguf_kv) {
        if (kv.first == key) {
            return copy_str(kv.second, buf, buf_size);
        }
    }
    return no_str(buf, buf_size);
}

int32_t llama_ridgefill_meta_count(const llama_ridgefill * maps) {
    return maps->gguf_kv.size();
}

int32_t llama_ridgefill_meta_key_by_index(const llama_ridgefill * maps, int32_t i, char * buf, size_t buf_size) {
    return i < 0 || i >= (int32_t) maps->gguf_kv.size() ? no_str(buf, buf_size) :
                                                          copy_str(maps->gguf_kv[i].first, buf, buf_size);
}

int32_t llama_ridgefill_meta_val_str_by_index(const llama_ridgefill * maps, int32_t i, char * buf, size_t buf_size) {
    return i < 0 || i >= (int32_t) maps->gguf_kv.size() ? no_str(buf, buf_size) :
                                                          copy_str(maps->gguf_kv[i].second, buf, buf_size);
}

int32_t llama_ridgefill_n_splits(const llama_ridgefill * maps) {
    return maps->splits.size();
}

int32_t llama_ridgefill_split(const llama_ridgefill * maps, int32_t i) {
    for (const auto & it : maps->splits) {
        if (i-- == 0) {
            return it.first;
        }
    }
    return -1;
}

size_t llama_ridgefill_size(const llama_ridgefill * maps) {
    return maps->size();
}

uint64_t llama_ridgefill_hash(const llama_ridgefill * maps) {
    return maps->hash;
}

//
// context
//

llama_ridgefill_context_params llama_ridgefill_default_context_params(void) {
    return {
        /*.split       =*/-1,
        /*.keep_states =*/false,
        /*.type_states =*/GGML_TYPE_F32,
    };
}

int32_t llama_set_ridgefill(llama_context * ctx, llama_ridgefill * maps, llama_ridgefill_context_params params) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() { return ctx->ridgefill.set(maps, params); });
}

bool llama_ridgefill_can_keep_states(const llama_context * ctx) {
    const std::string why = ctx->ridgefill.states_conflict();
    llama_ridgefill_set_error(why, false);
    return why.empty();
}

int32_t llama_ridgefill_ctx_split(const llama_context * ctx) {
    return ctx->ridgefill.split();
}

llama_ridgefill_counters llama_ridgefill_get_counters(const llama_context * ctx) {
    return ctx->ridgefill.counters;
}

void llama_ridgefill_reset_counters(llama_context * ctx) {
    ctx->ridgefill.counters = {};
}

//
// plan
//

static llama_ridgefill_ranges to_ranges(const llama_ridgefill_range * ranges, int32_t n) {
    llama_ridgefill_ranges res;
    llama_pos              last = 0;
    for (int32_t i = 0; i < n; ++i) {
        if (ranges[i].p0 < last || ranges[i].p1 <= ranges[i].p0) {
            throw std::runtime_error(format("expected ascending, disjoint ranges, found [%d, %d) after %d",
                                            ranges[i].p0, ranges[i].p1, last));
        }
        res.add(ranges[i].p0, ranges[i].p1, 0);
        last = ranges[i].p1;
    }
    return res;
}

void llama_ridgefill_check_seq(const llama_context * ctx, llama_seq_id seq_id) {
    const auto &       cparams   = ctx->get_cparams();
    const llama_seq_id n_seq_max = cparams.kv_unified ? LLAMA_MAX_SEQ : cparams.n_seq_max;
    if (!ctx->ridgefill.marks() || seq_id < 0 || seq_id >= n_seq_max) {
        throw std::runtime_error(format("there is no sequence %d, expected one in [0, %d)", seq_id, n_seq_max));
    }
}

int32_t llama_ridgefill_seq_mark(llama_context *               ctx,
                                 llama_seq_id                  seq_id,
                                 const llama_ridgefill_range * ranges,
                                 int32_t                       n) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        llama_ridgefill_check_seq(ctx, seq_id);
        auto *       marks   = ctx->ridgefill.marks();
        const auto & cparams = ctx->get_cparams();
        if (n == 0) {
            marks->plan.erase(seq_id);
            return 0;
        }
        if (ctx->ridgefill.split() < 0) {
            throw std::runtime_error("no maps are set (hint: llama_set_ridgefill)");
        }
        if (const auto why = llama_ridgefill_conflict(cparams, ctx->ridgefill.has_adapters()); !why.empty()) {
            throw std::runtime_error(why);
        }
        marks->plan[seq_id] = to_ranges(ranges, n);
        return 0;
    });
}

llama_pos llama_ridgefill_seq_reusable(const llama_context *         ctx,
                                       llama_seq_id                  seq_id,
                                       const llama_ridgefill_range * ranges,
                                       int32_t                       n,
                                       llama_pos                     n_past) {
    return llama_ridgefill_guarded<llama_pos>(-1, [&]() {
        const auto * marks = ctx->ridgefill.marks();
        if (!marks) {
            return n_past;
        }
        const auto &   cur = ctx->get_cparams().ridgefill;
        const uint64_t id  = cur.maps ? cur.maps->cell_id(cur.split) : 0;
        return marks->reusable(seq_id, to_ranges(ranges, n), id, n_past);
    });
}

int32_t llama_ridgefill_seq_n_filled(const llama_context * ctx, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    const auto * marks = ctx->ridgefill.marks();
    if (!marks) {
        return 0;
    }
    const auto it = marks->filled.find(seq_id);
    if (it == marks->filled.end()) {
        return 0;
    }
    int32_t res = 0;
    for (const auto & r : it->second.get()) {
        res += std::max(0, (p1 < 0 ? r.p1 : std::min(r.p1, p1)) - std::max(r.p0, p0));
    }
    return res;
}

static void check_heads(const llama_context & ctx, const llama_ridgefill_head * heads, size_t n_heads) {
    const auto & hparams = ctx.get_model().hparams;
    const auto   split   = ctx.ridgefill.split();
    if (n_heads > LLAMA_RIDGEFILL_MAX_HEADS) {
        throw std::runtime_error(format("expected at most %d heads, found %zu", LLAMA_RIDGEFILL_MAX_HEADS, n_heads));
    }
    for (size_t i = 0; i < n_heads; ++i) {
        const auto & it = heads[i];
        if (it.layer < 0 || it.layer >= split || it.head < -1 || it.head >= (int32_t) hparams.n_head(it.layer)) {
            throw std::runtime_error(format("expected heads that exist in layers below the split %d, found %d.%d",
                                            split, it.layer, it.head));
        }
    }
}

int32_t llama_ridgefill_check_heads(const llama_context * ctx, const llama_ridgefill_head * heads, size_t n_heads) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        check_heads(*ctx, heads, n_heads);
        return 0;
    });
}

int32_t llama_ridgefill_seq_select(llama_context *               ctx,
                                   llama_seq_id                  seq_id,
                                   int32_t                       n_prompt,
                                   int32_t                       tail,
                                   llama_ridgefill_select_params params) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        llama_ridgefill_check_seq(ctx, seq_id);
        auto & selections = ctx->ridgefill.selections;
        if (params.type == LLAMA_RIDGEFILL_SELECT_NONE) {
            selections.erase(seq_id);
            return 0;
        }
        if (!ctx->ridgefill.states) {
            throw std::runtime_error("split states are not kept (hint: keep_states of llama_ridgefill_context_params)");
        }
        if (n_prompt < 1 || tail < 1 || params.n_query < 1 || params.budget < 0 || params.n_before < 0 ||
            params.n_after < 0) {
            throw std::runtime_error(
                format("expected n_prompt, tail, n_query of at least 1 and budget, n_before, n_after of at least 0, "
                       "found %d, %d, %d, %d, %d and %d",
                       n_prompt, tail, params.n_query, params.budget, params.n_before, params.n_after));
        }

        if ((uint32_t) n_prompt > ctx->get_cparams().n_ctx_seq) {
            throw std::runtime_error(
                format("expected a prompt of at most %u rows as the context of a sequence, found %d",
                       ctx->get_cparams().n_ctx_seq, n_prompt));
        }

        llama_ridgefill_selection cur = { params.type,
                                          n_prompt,
                                          std::min(tail, n_prompt),
                                          params.budget,
                                          params.n_before,
                                          params.n_after,
                                          std::min(params.n_query, tail),
                                          {},
                                          {},
                                          {},
                                          {} };
        if (params.type == LLAMA_RIDGEFILL_SELECT_ATTENTION) {
            const auto & cparams = ctx->get_cparams().ridgefill;
            const auto & hparams = cparams.maps->model.hparams;
            if (params.n_heads == 0) {
                cur.heads = cparams.maps->splits.at(cparams.split).heads;
            }
            if (params.n_heads == 0 && cur.heads.empty()) {
                throw std::runtime_error("no retrieval heads (hint: pyridgefill heads finds them)");
            }
            check_heads(*ctx, params.heads, params.n_heads);
            cur.heads.insert(cur.heads.end(), params.heads, params.heads + params.n_heads);
            size_t n_scores = 0;
            for (const auto & it : cur.heads) {
                n_scores += it.head < 0 ? hparams.n_head(it.layer) : 1;
            }
            cur.scores.assign(n_scores, std::vector<float>(n_prompt, 0.0f));
            cur.scores_end = cur.scores;
        }
        selections[seq_id] = std::move(cur);
        return 0;
    });
}

int32_t llama_ridgefill_n_selected(const llama_context * ctx) {
    return ctx->ridgefill.selected.size();
}

const llama_pos * llama_ridgefill_selected(const llama_context * ctx) {
    return ctx->ridgefill.selected.data();
}

int32_t llama_ridgefill_n_score_heads(const llama_context * ctx) {
    return ctx->ridgefill.selected_last.scores.size();
}

const float * llama_ridgefill_head_scores(const llama_context * ctx, int32_t i) {
    const auto & scores = ctx->ridgefill.selected_last.scores;
    return i < 0 || i >= (int32_t) scores.size() ? nullptr : scores[i].data();
}

int32_t llama_ridgefill_seq_upper(llama_context * ctx, llama_seq_id seq_id, const llama_pos * pos, int32_t n) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        llama_ridgefill_check_seq(ctx, seq_id);
        if (n < 0) {
            throw std::runtime_error(format("expected a number of rows of at least 0, found %d", n));
        }
        auto & marks = *ctx->ridgefill.marks();

        std::vector<llama_ridgefill_row> rows;
        auto                             waiting = marks;
        rows.reserve(n);
        for (int32_t i = 0; i < n; ++i) {
            if (const llama_pos from = waiting.pending_from(seq_id); from < pos[i]) {
                throw std::runtime_error(
                    format("position %d of sequence %d attends to row %d, which waits for a selection (hint: run the "
                           "waiting rows first)",
                           pos[i], seq_id, from));
            }
            waiting.filled[seq_id].erase(pos[i], pos[i] + 1);
            rows.push_back({ seq_id, pos[i] });
        }
        const llama_pos from = marks.approximate_from(seq_id);
        ctx->ridgefill.upper(rows);

        // rows that waited are complete now, but saw what was filled before them
        for (const auto & row : rows) {
            if (marks.is_pending(seq_id, row.pos)) {
                marks.filled[seq_id].erase(row.pos, row.pos + 1);
            }
        }
        if (from < marks.approximate_from(seq_id)) {
            marks.healed_to[seq_id] = from;
        }
        ctx->ridgefill.counters.n_selected += n;
        return n;
    });
}

int32_t llama_ridgefill_seq_heal(llama_context * ctx, llama_seq_id seq_id, int32_t n_max) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        llama_ridgefill_check_seq(ctx, std::max(0, seq_id));
        if (n_max < 1) {
            throw std::runtime_error(format("expected a number of rows of at least 1, found %d", n_max));
        }
        return ctx->ridgefill.heal(seq_id, n_max);
    });
}
