#pragma once

// RidgeFill in the server: what a request asks for, what its slot did, what the endpoints tell about it

#include "ridgefill.h"
#include "server-ridgefill-spans.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct server_http_req;
struct server_http_res;
struct server_prompt;
struct server_queue;
struct server_slot_stats;
struct server_task;

namespace server_schema {
struct field;
}

// the "ridgefill" field of a request, -1 = the server's setting
struct server_ridgefill_request {
    bool    fill       = true;
    int32_t tail       = -1;
    int32_t sink       = -1;
    int32_t min_prompt = -1;
    int32_t select     = -1;    // llama_ridgefill_select
    double  budget     = -1.0;  // share of the filled rows

    bool has_spans = false;

    std::vector<server_ridgefill_span> spans;
    std::vector<llama_ridgefill_range> exact;   // their rows, or those of the server's roles
    std::string                        reason;  // why the whole prompt runs exact

    common_ridgefill_info_ptr maps;  // for which the request was read; if others are loaded by now, all rows run exact
};

// how a request selects rows
llama_ridgefill_select server_ridgefill_select(const common_ridgefill_info &    info,
                                               const server_ridgefill_request & req);

// part of server_slot_stats
struct server_ridgefill_stats {
    int32_t  split      = -1;  // -1 = no maps are loaded
    int32_t  tail       = 0;
    uint64_t n_filled   = 0;
    uint64_t n_selected = 0;  // reused or filled before

    std::string reason;       // why the whole prompt runs exact

    // adds "ridgefill" to res, nothing if no maps are loaded
    void to_json(common_json & res, uint64_t n_cached, uint64_t n_processed) const;

    // adds "timings" to the data of a route that has none, nothing if no maps are loaded
    void add_timings(common_json & data, const server_slot_stats & stats) const;
};

// part of server_metrics
struct server_ridgefill_metrics {
    bool loaded = false;

    uint64_t n_filled   = 0;  // rows
    uint64_t n_exact    = 0;  // rows
    uint64_t n_requests = 0;  // with at least one filled row
    uint64_t n_selected = 0;  // rows
    uint64_t n_healed   = 0;  // rows

    std::string to_prometheus() const;
};

// part of server_slot
struct server_ridgefill_slot {
    std::vector<llama_ridgefill_range> plan;  // rows that are marked to be filled

    llama_pos p_tail    = 0;                  // end of the plan, start of the tail
    llama_pos p_end     = 0;                  // end of the prompt
    int32_t   n_able    = 0;                  // filled rows that can be selected
    bool      selecting = false;

    bool to_heal    = false;     // cells may be filled; stays when the slot is released
    bool drop_cells = false;     // cells were computed from filled cells that are gone, so they must not be reused
    bool counting   = false;     // the slot processes a prompt of its own

    llama_pos pos_counted = -1;  // rows before it are part of the stats

    // what the last prompt selected
    struct {
        llama_ridgefill_select type   = LLAMA_RIDGEFILL_SELECT_NONE;
        double                 budget = 0.0;
        llama_pos              p_end  = -1;
    } last;

    // forget the prompt, but not what it selected
    void reset();

    // call when the slot's cells came from a file
    void restored(const common_params_ridgefill & params);

    // call before a context shift
    void shift(llama_context * ctx, int32_t id_slot);

    // call after a decode
    void count(llama_context * ctx, int32_t id_slot, server_slot_stats & stats, server_ridgefill_metrics & metrics);

    // call while all slots are idle: run one ubatch of this one's rows
    // true = some were run, and the queue has a task that leads to the next call
    bool heal(llama_context * ctx, int32_t id_slot, server_queue & queue, server_ridgefill_metrics & metrics);

    // call when the slot is released, logs what was done
    // true = the slot's cells must not be kept
    bool release(llama_context * ctx, int32_t id_slot, const server_task & task, const server_slot_stats & stats);
};

// call when a slot starts on its prompt, n_past tokens of which are cached
// marks the rows to fill and returns the number of cached tokens that this request may reuse
int32_t server_ridgefill_begin(const common_params_ridgefill & params,
                               llama_context *                 ctx,
                               int32_t                         id_slot,
                               const server_task &             task,
                               server_prompt &                 prompt,
                               server_slot_stats &             stats,
                               server_ridgefill_slot &         slot,
                               int32_t                         n_past);

// call when a task is complete: finds the rows of its spans
// data: the parameters of the request, prompt i of which is the task's
// throws std::invalid_argument if the request asks for what the maps cannot do with its prompt
void server_ridgefill_check(const common_params_ridgefill & params,
                            const llama_vocab *             vocab,
                            const common_json &             data,
                            size_t                          i_prompt,
                            server_task &                   task);

// such a prompt runs exact
bool server_ridgefill_has_media(const server_tokens & tokens);

// call before the choices of several prompts become one answer: each keeps the timings of its prompt
// nothing if no maps are loaded
void server_ridgefill_keep_timings(common_json & answers);

// the request field
server_schema::field * server_ridgefill_field(const common_params & params);

// adds "ridgefill" to the properties
void server_ridgefill_props(const common_params_ridgefill & params, common_json & props);

// GET /ridgefill, params must outlive the handler
std::function<std::unique_ptr<server_http_res>(const server_http_req &)> server_ridgefill_get_handler(
    const common_params & params);
