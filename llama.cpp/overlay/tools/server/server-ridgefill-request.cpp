#include "server-ridgefill.h"

#include "server-schema.h"
#include "server-task.h"

#include <climits>
#include <stdexcept>

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

static llama_ridgefill_select get_select(const common_ridgefill_info & info, const json & data) {
    if (!data.is_string()) {
        throw std::invalid_argument("select must be none, stride or attention");
    }

    llama_ridgefill_select select;
    try {
        select = common_ridgefill_parse_select(data.get<std::string>());
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument(std::string("select ") + e.what());
    }

    if (select != LLAMA_RIDGEFILL_SELECT_NONE && !info.keep_states) {
        throw std::invalid_argument("select needs a server that keeps split states, start it with --ridgefill-select or --ridgefill-heal");
    }
    if (select == LLAMA_RIDGEFILL_SELECT_ATTENTION && info.heads.empty()) {
        throw std::invalid_argument("select attention needs retrieval heads, start the server with --ridgefill-heads L.H,L.H,...");
    }
    return select;
}

static double get_budget(const json & data) {
    if (!data.is_number()) {
        throw std::invalid_argument(string_format("budget must be a number, but got %s", data.dump_safe().substr(0, 64).c_str()));
    }
    try {
        return common_ridgefill_check_budget(data.get<double>());
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument(std::string("budget ") + e.what());
    }
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
        } else if (key == "select") {
            res.select = get_select(info, val);
        } else if (key == "budget") {
            res.budget = get_budget(val);
        } else if (key == "split") {
            if (get_int(val, key, 0) != info.split) {
                throw std::invalid_argument(string_format("split must be the one in use, %d, but got %s", info.split, val.dump_safe().c_str()));
            }
        } else {
            throw std::invalid_argument(string_format("unknown key '%s', expected tail, sink, min_prompt, split, spans, select or budget", key.substr(0, 64).c_str()));
        }
    }

    if (res.budget >= 0.0 && server_ridgefill_select(info, res) == LLAMA_RIDGEFILL_SELECT_NONE) {
        throw std::invalid_argument("budget has no effect without select");
    }

    return res;
}

llama_ridgefill_select server_ridgefill_select(const common_ridgefill_info & info, const server_ridgefill_request & req) {
    return req.select < 0 ? info.select : (llama_ridgefill_select) req.select;
}

server_schema::field * server_ridgefill_field(const common_params & params) {
    return (new server_schema::field_json("ridgefill"))
        ->set_desc("Fill the prompt with the loaded RidgeFill maps: true, false or an object with tail, sink, min_prompt, split, spans (exact token positions), select and budget. Default: true if maps are loaded")
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

    const auto & req = task.params.ridgefill;

    if (req.fill && task.params.sampling.backend_sampling && server_ridgefill_select(params.info, req) != LLAMA_RIDGEFILL_SELECT_NONE) {
        throw std::invalid_argument("Field 'backend_sampling': not possible with selected rows, the logits of the tail come after them; set select of 'ridgefill' to none");
    }

    for (const auto & span : req.spans) {
        if (span.p1 > task.n_tokens()) {
            throw std::invalid_argument(string_format("Field 'ridgefill': span [%d, %d) ends after the prompt of %d tokens", span.p0, span.p1, task.n_tokens()));
        }
    }
}
