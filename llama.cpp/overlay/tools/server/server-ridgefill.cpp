#include "server-ridgefill.h"

#include "server-http.h"
#include "server-schema.h"
#include "server-task.h"

#include <algorithm>
#include <cinttypes>
#include <climits>
#include <sstream>
#include <stdexcept>

//
// request
//

static int32_t get_int(const json & data, const std::string & name, int32_t min) {
    // compared as a double: a number beyond 64 bits must not wrap into the range
    if (!data.is_number_integer() || data.get<double>() < min || data.get<double>() > INT32_MAX) {
        throw std::invalid_argument(string_format("%s must be an integer of at least %d, but got %s",
            name.c_str(), min, data.dump_safe().substr(0, 64).c_str()));
    }
    return data.get<int32_t>();
}

static std::vector<llama_ridgefill_range> get_spans(const json & data) {
    // every exact span can end one filled range and start another
    const size_t n_max = LLAMA_RIDGEFILL_MAX_RANGES - 1;

    if (!data.is_array()) {
        throw std::invalid_argument("spans must be an array of [start, end) pairs of token positions");
    }
    if (data.size() > n_max) {
        throw std::invalid_argument(string_format("spans has %zu entries, the limit is %zu", data.size(), n_max));
    }

    std::vector<llama_ridgefill_range> spans;
    for (size_t i = 0; i < data.size(); i++) {
        const auto & pair = data.at(i);
        if (!pair.is_array() || pair.size() != 2) {
            throw std::invalid_argument(string_format("spans[%zu] must be a [start, end) pair of token positions", i));
        }
        const int32_t p0 = get_int(pair.at(0), string_format("the start of spans[%zu]", i), 0);
        const int32_t p1 = get_int(pair.at(1), string_format("the end of spans[%zu]",   i), 0);
        if (p0 >= p1) {
            throw std::invalid_argument(string_format("spans[%zu] = [%d, %d) is empty", i, p0, p1));
        }
        spans.push_back({ p0, p1 });
    }

    return spans;
}

static server_ridgefill_request parse_request(const common_ridgefill_info & info, const json & data) {
    server_ridgefill_request res;

    if (!data.is_boolean() && !data.is_object()) {
        throw std::invalid_argument("must be true, false or an object");
    }

    if (data.is_boolean() && !data.get<bool>()) {
        res.fill = false;
        return res;
    }

    if (!info.loaded) {
        throw std::invalid_argument("this server has no maps, start it with --ridgefill-maps FNAME");
    }

    if (data.is_boolean()) {
        return res;
    }

    for (const auto & [key, val] : data.items()) {
        if (key == "tail") {
            res.tail = get_int(val, key, 1);
        } else if (key == "sink") {
            res.sink = get_int(val, key, 0);
        } else if (key == "min_prompt") {
            res.min_prompt = get_int(val, key, 0);
        } else if (key == "spans") {
            res.spans = get_spans(val);
        } else if (key == "split") {
            if (get_int(val, key, 0) != info.split) {
                throw std::invalid_argument(string_format("split must be the one in use, %d, but got %s", info.split, val.dump_safe().c_str()));
            }
        } else {
            throw std::invalid_argument(string_format("unknown key '%s', expected tail, sink, min_prompt, split or spans", key.substr(0, 64).c_str()));
        }
    }

    return res;
}

server_schema::field * server_ridgefill_field(const common_params & params) {
    return (new server_schema::field_json("ridgefill"))
        ->set_desc("Fill the prompt with the loaded RidgeFill maps: true, false or an object with tail, sink, min_prompt, split and spans (exact token positions). Default: true if maps are loaded")
        ->set_handler([&params](server_schema::field_eval_context & ctx, const json & data) {
            ctx.params.ridgefill = parse_request(params.ridgefill.info, data.at("ridgefill"));
        });
}

void server_ridgefill_check(const common_params_ridgefill & params, const server_task & task) {
    if (!params.info.loaded) {
        return;
    }

    if (task.params.n_cache_reuse > 0) {
        throw std::invalid_argument("Field 'n_cache_reuse': not possible while RidgeFill maps are loaded, a moved chunk no longer shows which filled rows it was computed from");
    }

    for (const auto & span : task.params.ridgefill.spans) {
        if (span.p1 > task.n_tokens()) {
            throw std::invalid_argument(string_format("Field 'ridgefill': span [%d, %d) ends after the prompt of %d tokens", span.p0, span.p1, task.n_tokens()));
        }
    }
}

//
// slot
//

static bool has_media(const server_tokens & tokens) {
    return tokens.has_mtmd && !tokens.empty() && (tokens[0] == LLAMA_TOKEN_NULL || tokens.find_next_media_chunk(0).first);
}

// empty if the whole prompt runs exact, then reason says why
static std::vector<llama_ridgefill_range> make_plan(const common_ridgefill_info & info, const server_task & task, int32_t tail, std::string & reason) {
    const auto & req = task.params.ridgefill;

    if (!req.fill) {
        reason = "the request turned it off";
        return {};
    }
    if (has_media(task.tokens)) {
        reason = "the prompt has media";
        return {};
    }

    llama_ridgefill_plan_params params = {};
    params.tail       = tail;
    params.sink       = req.sink       >= 0 ? req.sink       : info.sink;
    params.min_prompt = req.min_prompt >= 0 ? req.min_prompt : info.min_prompt;
    params.exact      = req.spans.data();
    params.n_exact    = req.spans.size();

    auto ranges = common_ridgefill_plan(params, task.n_tokens());
    if (ranges.empty()) {
        reason = task.n_tokens() < params.min_prompt
            ? string_format("the prompt is shorter than min_prompt, %d", params.min_prompt)
            : "sink, tail and spans cover the prompt";
    }
    return ranges;
}

int32_t server_ridgefill_begin(
        const common_params_ridgefill & params,
        llama_context                 * ctx,
        int32_t                         id_slot,
        const server_task             & task,
        server_prompt                 & prompt,
        server_slot_stats             & stats,
        server_ridgefill_slot         & slot,
        int32_t                         n_past) {
    std::vector<llama_ridgefill_range> ranges;

    slot = {};

    if (params.info.loaded) {
        auto & rf = stats.ridgefill;

        rf.split = params.info.split;
        rf.tail  = task.params.ridgefill.tail >= 0 ? task.params.ridgefill.tail : params.info.tail;

        ranges = make_plan(params.info, task, rf.tail, rf.reason);
    }

    // asked without maps as well: a restored state may hold filled cells
    const llama_pos pos_next = prompt.tokens.pos_next(n_past);
    const llama_pos pos_keep = llama_ridgefill_seq_reusable(ctx, id_slot, ranges.data(), ranges.size(), pos_next);
    if (pos_keep < 0) {
        throw std::runtime_error(string_format("failed to check the cached rows: %s", llama_ridgefill_last_error()));
    }
    if (pos_keep < pos_next) {
        n_past = prompt.tokens.size_up_to_pos(pos_keep);

        // what was saved at or after the first cell that cannot be reused depends on it
        prompt.checkpoints.remove_if([&](const auto & cur) { return cur.pos_max >= pos_keep; });
    }

    if (params.info.loaded) {
        if (llama_ridgefill_seq_mark(ctx, id_slot, ranges.data(), ranges.size()) != 0) {
            throw std::runtime_error(string_format("failed to mark the rows to fill: %s", llama_ridgefill_last_error()));
        }
        slot.marked   = !ranges.empty();
        slot.counting = true;
    }

    return n_past;
}

static void unmark(llama_context * ctx, int32_t id_slot, bool & marked) {
    if (marked) {
        llama_ridgefill_seq_mark(ctx, id_slot, nullptr, 0);
        marked = false;
    }
}

void server_ridgefill_slot::shift(llama_context * ctx, int32_t id_slot) {
    drop_cells = drop_cells || llama_ridgefill_seq_n_filled(ctx, id_slot, 0, -1) > 0;

    // generated rows will get positions that the prompt had
    unmark(ctx, id_slot, marked);
}

void server_ridgefill_slot::count(llama_context * ctx, int32_t id_slot, server_slot_stats & stats, server_ridgefill_metrics & metrics) {
    if (!counting) {
        return;
    }

    const llama_pos pos_end = stats.n_prompt_cached + stats.n_prompt_processed;
    if (pos_counted < 0) {
        pos_counted = stats.n_prompt_cached;
    }
    if (pos_counted >= pos_end) {
        return;
    }

    // ask the engine rather than the plan: this is what was done
    const uint64_t n_rows   = pos_end - pos_counted;
    const uint64_t n_filled = marked ? llama_ridgefill_seq_n_filled(ctx, id_slot, pos_counted, pos_end) : 0;

    metrics.n_requests += n_filled > 0 && stats.ridgefill.n_filled == 0;
    metrics.n_filled   += n_filled;
    metrics.n_exact    += n_rows - n_filled;

    stats.ridgefill.n_filled += n_filled;

    pos_counted = pos_end;
}

bool server_ridgefill_slot::release(llama_context * ctx, int32_t id_slot, const server_task & task, const server_slot_stats & stats) {
    const auto & rf = stats.ridgefill;

    if (rf.split >= 0 && !task.is_child()) {
        LOG_INF("slot %12.*s: id %2d | task %d | ridgefill: filled = %d, exact = %d, reused = %d rows, split = %d, tail = %d%s%s\n",
            12, __func__, id_slot, task.id,
            (int) rf.n_filled, (int) (stats.n_prompt_processed - rf.n_filled), (int) stats.n_prompt_cached, rf.split, rf.tail,
            rf.reason.empty() ? "" : ", exact because ", rf.reason.c_str());
    }

    const bool drop = drop_cells;

    unmark(ctx, id_slot, marked);
    *this = {};

    return drop;
}

//
// output
//

void server_ridgefill_stats::to_json(json & res, uint64_t n_cached, uint64_t n_processed) const {
    if (split < 0) {
        return;
    }

    json data = {
        {"split",    split},
        {"filled",   n_filled},
        {"selected", 0},
        {"exact",    n_processed - n_filled},
        {"reused",   n_cached},
    };
    if (!reason.empty()) {
        data["reason"] = reason;
    }
    res["ridgefill"] = data;
}

std::string server_ridgefill_metrics::to_prometheus() const {
    if (!loaded) {
        return "";
    }

    std::stringstream res;
    auto add = [&res](const char * name, const char * desc, uint64_t value) {
        res << "# HELP llamacpp:" << name << " " << desc << "\n"
            << "# TYPE llamacpp:" << name << " counter\n"
            << "llamacpp:"        << name << " " << value << "\n";
    };
    add("ridgefill_rows_filled_total",     "Number of prompt rows filled by RidgeFill maps",                      n_filled);
    add("ridgefill_rows_exact_total",      "Number of prompt rows run through all layers, excluding cached rows", n_exact);
    add("ridgefill_requests_filled_total", "Number of requests with at least one filled row",                     n_requests);
    return res.str();
}

static json info_to_json(const common_ridgefill_info & info) {
    return {
        {"hash",   string_format("%016" PRIx64, info.hash)},
        {"split",  info.split},
        {"splits", info.splits},
        {"defaults", {
            {"tail",       info.tail},
            {"sink",       info.sink},
            {"min_prompt", info.min_prompt},
        }},
    };
}

void server_ridgefill_props(const common_params_ridgefill & params, json & props) {
    if (params.info.loaded) {
        props["ridgefill"] = info_to_json(params.info);
    }
}

static server_http_res_ptr get_maps(const common_params_ridgefill & params) {
    auto res = std::make_unique<server_http_res>();

    if (!params.info.loaded) {
        const json error = format_error_response("No RidgeFill maps are loaded. Start the server with `--ridgefill-maps`", ERROR_TYPE_NOT_SUPPORTED);
        res->status = json_value(error, "code", 501);
        res->data   = safe_json_to_str({{ "error", error }});
        return res;
    }

    json meta = json::object();
    for (const auto & [key, val] : params.info.meta) {
        if (string_starts_with(key, "ridgefill.")) {
            meta[key] = val;
        }
    }

    json data = info_to_json(params.info);
    data["file"] = params.info.file;
    data["size"] = params.info.size;
    data["meta"] = meta;

    res->status = 200;
    res->data   = safe_json_to_str(data);
    return res;
}

server_http_context::handler_t server_ridgefill_get_handler(const common_params & params) {
    return [&params](const server_http_req &) {
        return get_maps(params.ridgefill);
    };
}
