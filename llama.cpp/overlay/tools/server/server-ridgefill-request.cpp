#include "server-ridgefill.h"
#include "server-schema.h"
#include "server-task.h"

#include <stdexcept>

static llama_ridgefill_select get_select(const common_ridgefill_info & info, const json & data) {
    if (data == "spans") {
        return LLAMA_RIDGEFILL_SELECT_NONE;  // they run exact, no further rows are selected
    }

    llama_ridgefill_select select;
    try {
        select = common_ridgefill_parse_select(data.is_string() ? data.get<std::string>() : "");
    } catch (const std::invalid_argument &) {
        throw std::invalid_argument(string_format("select must be none, spans, stride or attention, but got %s",
                                                  data.dump_safe().substr(0, 64).c_str()));
    }

    if (select != LLAMA_RIDGEFILL_SELECT_NONE && !info.keep_states) {
        throw std::invalid_argument(
            info.no_states.empty() ?
                "select needs a server that keeps split states, start it with --ridgefill-select or --ridgefill-heal" :
                string_format("select is not possible: %s", info.no_states.c_str()));
    }
    if (select == LLAMA_RIDGEFILL_SELECT_ATTENTION && info.heads.empty()) {
        throw std::invalid_argument(
            "select attention needs retrieval heads, start the server with --ridgefill-heads L.H,L.H,...");
    }
    return select;
}

static double get_budget(const json & data) {
    if (!data.is_number()) {
        throw std::invalid_argument(
            string_format("budget must be a number, but got %s", data.dump_safe().substr(0, 64).c_str()));
    }
    try {
        return common_ridgefill_check_budget(data.get<double>());
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument(std::string("budget ") + e.what());
    }
}

static server_ridgefill_request parse_request(const common_params_ridgefill & params, const json & data) {
    server_ridgefill_request res;
    res.maps = params.loaded->get();

    const auto & info = *res.maps;

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
            res.tail = server_ridgefill_get_int(val, key, 1);
        } else if (key == "sink") {
            res.sink = server_ridgefill_get_int(val, key, 0);
        } else if (key == "min_prompt") {
            res.min_prompt = server_ridgefill_get_int(val, key, 0);
        } else if (key == "spans") {
            res.spans     = server_ridgefill_parse_spans(val);
            res.has_spans = true;
        } else if (key == "select") {
            res.select = get_select(info, val);
        } else if (key == "budget") {
            res.budget = get_budget(val);
        } else if (key == "split") {
            if (server_ridgefill_get_int(val, key, 0) != info.split) {
                throw std::invalid_argument(
                    string_format("split must be the one in use, %d, but got %s", info.split, val.dump_safe().c_str()));
            }
        } else {
            throw std::invalid_argument(
                string_format("unknown key '%s', expected tail, sink, min_prompt, split, spans, select or budget",
                              key.substr(0, 64).c_str()));
        }
    }

    if (json_value(data, "select", json()) == "spans" &&
        (res.has_spans ? res.spans.empty() : params.exact_roles.empty())) {
        throw std::invalid_argument("select spans has no effect without spans");
    }
    if (res.budget >= 0.0 && server_ridgefill_select(info, res) == LLAMA_RIDGEFILL_SELECT_NONE) {
        throw std::invalid_argument("budget has no effect without select");
    }

    return res;
}

llama_ridgefill_select server_ridgefill_select(const common_ridgefill_info &    info,
                                               const server_ridgefill_request & req) {
    return req.select < 0 ? info.select : (llama_ridgefill_select) req.select;
}

server_schema::field * server_ridgefill_field(const common_params & params) {
    return (new server_schema::field_json("ridgefill"))
        ->set_desc(
            "Fill the prompt with the loaded RidgeFill maps: true, false or an object with tail, sink, min_prompt, "
            "split, spans (rows that run exact), select and budget. Default: true if maps are loaded")
        ->set_handler([&params](server_schema::field_eval_context & ctx, const json & data) {
            ctx.params.ridgefill = parse_request(params.ridgefill, data.at("ridgefill"));
        });
}

static std::vector<llama_ridgefill_range> find_rows(const common_params_ridgefill & params,
                                                    const llama_vocab *             vocab,
                                                    const json &                    data,
                                                    size_t                          i_prompt,
                                                    const server_task &             task) {
    const auto & req  = task.params.ridgefill;
    const auto   type = task.params.res_type;

    const bool converted = type == TASK_RESPONSE_TYPE_OAI_RESP || type == TASK_RESPONSE_TYPE_ANTHROPIC;
    const bool chat      = type == TASK_RESPONSE_TYPE_OAI_CHAT || type == TASK_RESPONSE_TYPE_OAI_ASR || converted;

    for (const auto & span : req.spans) {
        if (converted && span.type == server_ridgefill_span::MESSAGE) {
            throw std::invalid_argument(span.name +
                                        ": this route has no message indices, its input is converted to other messages "
                                        "(hint: use role, chars or tokens)");
        }
    }
    if (!req.has_spans && !chat) {
        return {};
    }
    return server_ridgefill_rows(req.has_spans ? req.spans : server_ridgefill_default_spans(params), vocab, task.tokens,
                                 data, i_prompt, chat);
}

void server_ridgefill_check(const common_params_ridgefill & params,
                            const llama_vocab *             vocab,
                            const json &                    data,
                            size_t                          i_prompt,
                            server_task &                   task) {
    auto & req = task.params.ridgefill;
    if (!req.maps) {
        req.maps = params.loaded->get();  // the request has no such field
    }

    const auto & info = *req.maps;
    if (!info.loaded) {
        return;
    }

    if (task.params.n_cache_reuse > 0) {
        throw std::invalid_argument(
            "Field 'n_cache_reuse': not possible while RidgeFill maps are loaded, a moved chunk no longer shows which "
            "filled rows it was computed from");
    }

    if (req.fill && task.params.sampling.backend_sampling &&
        server_ridgefill_select(info, req) != LLAMA_RIDGEFILL_SELECT_NONE) {
        throw std::invalid_argument(
            "Field 'backend_sampling': not possible with selected rows, the logits of the tail come after them; set "
            "select of 'ridgefill' to none");
    }

    if (!req.fill || server_ridgefill_has_media(task.tokens)) {
        return;  // all rows run exact
    }

    try {
        req.exact = find_rows(params, vocab, data, i_prompt, task);
    } catch (const std::invalid_argument & e) {
        if (req.has_spans) {
            throw std::invalid_argument(string_format("Field 'ridgefill': %s", e.what()));
        }
        req.fill   = false;
        req.reason = e.what();
    }
}
