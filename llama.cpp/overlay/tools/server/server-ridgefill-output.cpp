// what answers, metrics and endpoints tell

#include "server-common.h"
#include "server-http.h"
#include "server-ridgefill.h"

#include <cinttypes>
#include <sstream>

void server_ridgefill_stats::to_json(json & res, uint64_t n_cached, uint64_t n_processed) const {
    if (split < 0) {
        return;
    }

    json data = {
        { "split",    split                  },
        { "filled",   n_filled               },
        { "selected", n_selected             },
        { "exact",    n_processed - n_filled },
        { "reused",   n_cached               },
    };
    if (!reason.empty()) {
        data["reason"] = reason;
    }
    res["ridgefill"] = data;
}

void server_ridgefill_stats::add_timings(json & data, const server_slot_stats & stats) const {
    if (split >= 0) {
        data["timings"] = stats.to_json();
    }
}

void server_ridgefill_keep_timings(json & answers) {
    for (auto & answer : answers) {
        const json timings = json_value(answer, "timings", json::object());
        if (timings.contains("ridgefill")) {
            answer.at("choices").at(0)["timings"] = timings;
        }
    }
}

std::string server_ridgefill_metrics::to_prometheus() const {
    if (!loaded) {
        return "";
    }

    std::stringstream res;
    auto              add = [&res](const char * name, const char * desc, uint64_t value) {
        res << "# HELP llamacpp:" << name << " " << desc << "\n"
            << "# TYPE llamacpp:" << name << " counter\n"
            << "llamacpp:" << name << " " << value << "\n";
    };
    add("ridgefill_rows_filled_total", "Number of prompt rows filled by RidgeFill maps", n_filled);
    add("ridgefill_rows_exact_total", "Number of prompt rows run through all layers, excluding cached rows", n_exact);
    add("ridgefill_rows_selected_total", "Number of filled prompt rows run through all layers before the tail",
        n_selected);
    add("ridgefill_rows_healed_total", "Number of cached rows replaced by exact ones while idle", n_healed);
    add("ridgefill_requests_filled_total", "Number of requests with at least one filled row", n_requests);
    return res.str();
}

static json info_to_json(const common_ridgefill_info & info, const std::vector<std::string> & exact_roles) {
    std::vector<std::string> heads;
    for (const auto & head : info.heads) {
        heads.push_back(string_format("%d.%d", head.layer, head.head));
    }

    return {
        { "hash", string_format("%016" PRIx64, info.hash) },
        { "split", info.split },
        { "splits", info.splits },
        { "defaults",
         {
              { "tail", info.tail },
              { "sink", info.sink },
              { "min_prompt", info.min_prompt },
              { "select", common_ridgefill_select_name(info.select) },
              { "budget", info.budget },
              { "pool", std::vector<int32_t>{ info.n_before, info.n_after } },
              { "queries", info.n_query },
              { "exact_roles", exact_roles },
          } },
        { "heads", heads },
        { "heal", info.heal },
    };
}

void server_ridgefill_props(const common_params_ridgefill & params, json & props) {
    const auto info = params.loaded->get();
    if (info->loaded) {
        props["ridgefill"] = info_to_json(*info, params.exact_roles);
    }
}

static server_http_res_ptr get_maps(const common_params_ridgefill & params) {
    auto res = std::make_unique<server_http_res>();

    const auto info = params.loaded->get();
    if (!info->loaded) {
        const json error = format_error_response(
            "No RidgeFill maps are loaded. Start the server with `--ridgefill-maps`", ERROR_TYPE_NOT_SUPPORTED);
        res->status = json_value(error, "code", 501);
        res->data   = safe_json_to_str({
            { "error", error }
        });
        return res;
    }

    json meta = json::object();
    for (const auto & [key, val] : info->meta) {
        if (string_starts_with(key, "ridgefill.")) {
            meta[key] = val;
        }
    }

    json data    = info_to_json(*info, params.exact_roles);
    data["file"] = info->file;
    data["size"] = info->size;
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
