#include "ridgefill.h"

#include "log.h"

#include <cinttypes>
#include <filesystem>
#include <stdexcept>

// programs that stop because of it do not flush the log themselves
static bool fail(const std::string & message) {
    LOG_ERR("error: %s\n", message.c_str());
    common_log_flush(common_log_main());
    return false;
}

template <typename F> static std::string meta_str(F get) {
    std::string   res(256, '\0');
    const int32_t n = get(&res[0], res.size());
    if (n < 0) {
        return "";
    }
    if ((size_t) n >= res.size()) {
        res.resize(n + 1);
        get(&res[0], res.size());
    }
    res.resize(n);
    return res;
}

// 0.05f -> 0.05
static double share_of(float value) {
    return std::stod(string_format("%g", value));
}

static common_ridgefill_info get_info(const common_params_ridgefill & params, const llama_ridgefill * maps) {
    const auto defaults = llama_ridgefill_default_plan_params(maps);

    common_ridgefill_info info;
    info.loaded     = true;
    info.file       = std::filesystem::path(params.maps).filename().string();
    info.hash       = llama_ridgefill_hash(maps);
    info.size       = llama_ridgefill_size(maps);
    info.tail       = params.tail >= 0 ? params.tail : defaults.tail;
    info.sink       = params.sink >= 0 ? params.sink : defaults.sink;
    info.min_prompt = params.min_prompt >= 0 ? params.min_prompt : defaults.min_prompt;

    const auto select = llama_ridgefill_default_select_params(maps, params.split);

    info.select = params.select >= 0 ? (llama_ridgefill_select) params.select : select.type;
    info.budget = params.budget >= 0 ? params.budget : share_of(llama_ridgefill_default_budget(maps));
    info.heads  = params.heads;

    info.heal        = params.heal;
    info.keep_states = params.heal || info.select != LLAMA_RIDGEFILL_SELECT_NONE;

    info.n_before = params.n_before >= 0 ? params.n_before : select.n_before;
    info.n_after  = params.n_after >= 0 ? params.n_after : select.n_after;
    info.n_query  = params.n_query >= 0 ? params.n_query : select.n_query;

    if (info.heads.empty()) {
        info.heads.assign(select.heads, select.heads + select.n_heads);
    }

    for (int32_t i = 0; i < llama_ridgefill_n_splits(maps); i++) {
        info.splits.push_back(llama_ridgefill_split(maps, i));
    }

    for (int32_t i = 0; i < llama_ridgefill_meta_count(maps); i++) {
        info.meta.emplace_back(
            meta_str([&](char * buf, size_t size) { return llama_ridgefill_meta_key_by_index(maps, i, buf, size); }),
            meta_str(
                [&](char * buf, size_t size) { return llama_ridgefill_meta_val_str_by_index(maps, i, buf, size); }));
    }

    return info;
}

bool common_ridgefill::load(const common_params & params, llama_model * model, llama_context * ctx) {
    const auto & rf = params.ridgefill;

    if (rf.maps.empty()) {
        return true;
    }

    try {
        common_ridgefill_check(params);  // the options may have changed since they were parsed
    } catch (const std::invalid_argument & e) {
        return fail(e.what());
    }

    if (llama_pooling_type(ctx) != LLAMA_POOLING_TYPE_NONE) {
        return fail(
            "--ridgefill-maps cannot be used with this model: it pools the output of all rows, and filled rows have "
            "none");
    }

    maps = llama_ridgefill_init(model, rf.maps.c_str(), llama_ridgefill_default_params());
    if (maps == nullptr) {
        return fail(string_format("failed to load RidgeFill maps: %s", llama_ridgefill_last_error()));
    }

    this->ctx = ctx;

    auto info = get_info(rf, maps);
    try {
        set(params, info);
    } catch (const std::exception & e) {
        unload();
        return fail(string_format("failed to use RidgeFill maps: %s", e.what()));
    }

    const auto last = rf.loaded->get();
    if (last->loaded && (last->hash != info.hash || last->meta != info.meta)) {
        LOG_WRN("ridgefill: '%s' is another file than the last time, whose hash was %016" PRIx64 "\n",
                info.file.c_str(), last->hash);
    }

    LOG_INF("ridgefill: maps '%s', hash %016" PRIx64 ", %.2f MiB, split %d, tail %d, sink %d, min-prompt %d\n",
            info.file.c_str(), info.hash, info.size / (1024.0 * 1024.0), info.split, info.tail, info.sink,
            info.min_prompt);
    if (info.keep_states) {
        LOG_INF("ridgefill: select %s, budget %g, %zu retrieval heads, pool %d,%d, queries %d, heal %s\n",
                common_ridgefill_select_name(info.select), info.budget, info.heads.size(), info.n_before, info.n_after,
                info.n_query, info.heal ? "on" : "off");
    }
    rf.loaded->set(std::move(info));

    return true;
}

llama_ridgefill_select_params common_ridgefill_select_params(const common_ridgefill_info & info,
                                                             llama_ridgefill_select        type,
                                                             int32_t                       budget) {
    return {
        /*.type     =*/type,
        /*.budget   =*/budget,
        /*.n_before =*/info.n_before,
        /*.n_after  =*/info.n_after,
        /*.n_query  =*/info.n_query,
        /*.heads    =*/info.heads.data(),
        /*.n_heads  =*/info.heads.size(),
    };
}

// throws std::runtime_error or std::invalid_argument
void common_ridgefill::set(const common_params & params, common_ridgefill_info & info) {
    const auto & rf = params.ridgefill;

    if (info.select == LLAMA_RIDGEFILL_SELECT_ATTENTION && info.heads.empty()) {
        throw std::runtime_error(
            "--ridgefill-select attention needs retrieval heads, and the maps name none (hint: --ridgefill-heads "
            "L.H,L.H,...)");
    }
    common_ridgefill_check_select(rf, info.keep_states);

    const bool is_asked = rf.select > LLAMA_RIDGEFILL_SELECT_NONE || rf.heal;

    std::string reason;
    if (info.keep_states && !llama_ridgefill_can_keep_states(ctx)) {
        reason = llama_ridgefill_last_error();
    } else if (info.keep_states && !is_asked && params.sampling.backend_sampling) {
        reason = "--backend-sampling samples before rows are selected";
    }
    if (!reason.empty() && is_asked) {
        throw std::runtime_error(reason);
    }
    if (!reason.empty()) {
        info.select      = LLAMA_RIDGEFILL_SELECT_NONE;
        info.keep_states = false;
        info.no_states   = reason;
        LOG_WRN("ridgefill: runs without the selection that the maps recommend: %s\n", reason.c_str());
    }

    auto cparams        = llama_ridgefill_default_context_params();
    cparams.split       = rf.split;
    cparams.keep_states = info.keep_states;

    if (llama_set_ridgefill(ctx, maps, cparams) != 0) {
        throw std::runtime_error(llama_ridgefill_last_error());
    }
    info.split = llama_ridgefill_ctx_split(ctx);

    if (info.keep_states && !info.heads.empty()) {
        if (llama_ridgefill_check_heads(ctx, info.heads.data(), info.heads.size()) != 0) {
            throw std::runtime_error(std::string("--ridgefill-heads: ") + llama_ridgefill_last_error());
        }
    }
}

void common_ridgefill::unload() {
    if (maps == nullptr) {
        return;
    }

    llama_set_ridgefill(ctx, nullptr, llama_ridgefill_default_context_params());
    llama_ridgefill_free(maps);

    maps = nullptr;
    ctx  = nullptr;
}

std::vector<llama_ridgefill_range> common_ridgefill_plan(const llama_ridgefill_plan_params & params, int32_t n_prompt) {
    std::vector<llama_ridgefill_range> ranges(LLAMA_RIDGEFILL_MAX_RANGES);

    const int32_t n = llama_ridgefill_plan(params, n_prompt, ranges.data(), ranges.size());
    if (n < 0) {
        throw std::invalid_argument(std::string("ridgefill plan: ") + llama_ridgefill_last_error());
    }
    ranges.resize(n);

    return ranges;
}

bool common_ridgefill_mark(const common_params & params, llama_context * ctx, int32_t n_prompt) {
    const auto   loaded = params.ridgefill.loaded->get();
    const auto & info   = *loaded;
    if (!info.loaded) {
        return true;
    }

    // the last row of each batch has an output
    std::vector<llama_ridgefill_range> exact;
    for (int32_t p1 = params.n_batch; p1 < n_prompt; p1 += params.n_batch) {
        exact.push_back({ p1 - 1, p1 });
    }

    llama_ridgefill_plan_params pparams = {};
    pparams.tail                        = info.tail;
    pparams.sink                        = info.sink;
    pparams.min_prompt                  = info.min_prompt;
    pparams.exact                       = exact.data();
    pparams.n_exact                     = exact.size();

    std::vector<llama_ridgefill_range> ranges;
    try {
        ranges = common_ridgefill_plan(pparams, n_prompt);
    } catch (const std::invalid_argument & e) {
        return fail(e.what());
    }

    if (llama_ridgefill_seq_mark(ctx, 0, ranges.data(), ranges.size()) != 0) {
        return fail(string_format("failed to mark the rows to fill: %s", llama_ridgefill_last_error()));
    }

    int32_t n_fill = 0;
    for (const auto & r : ranges) {
        n_fill += r.p1 - r.p0;
    }

    LOG_INF("ridgefill: filling %d of %d prompt rows, split %d, tail %d\n", n_fill, n_prompt, info.split, info.tail);

    return true;
}
