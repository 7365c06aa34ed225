// what a slot does with its prompt

#include "server-ridgefill.h"

#include "server-queue.h"
#include "server-task.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

bool server_ridgefill_has_media(const server_tokens & tokens) {
    return tokens.has_mtmd && !tokens.empty() &&
           (tokens[0] == LLAMA_TOKEN_NULL || tokens.find_next_media_chunk(0).first);
}

// empty if the whole prompt runs exact, then reason says why
static std::vector<llama_ridgefill_range> make_plan(const common_ridgefill_info_ptr & loaded,
                                                    const server_task &               task,
                                                    int32_t                           tail,
                                                    std::string &                     reason) {
    const auto & info = *loaded;
    const auto & req  = task.params.ridgefill;

    if (!req.fill) {
        reason = req.reason.empty() ? "the request turned it off" : req.reason;
        return {};
    }
    if (server_ridgefill_has_media(task.tokens)) {
        reason = "the prompt has media";
        return {};
    }
    if (req.maps && req.maps != loaded) {
        reason = "the maps were loaded again after the request was read";
        return {};
    }

    llama_ridgefill_plan_params params = {};
    params.tail                        = tail;
    params.sink                        = req.sink >= 0 ? req.sink : info.sink;
    params.min_prompt                  = req.min_prompt >= 0 ? req.min_prompt : info.min_prompt;
    params.exact                       = req.exact.data();
    params.n_exact                     = req.exact.size();

    auto ranges = common_ridgefill_plan(params, task.n_tokens());
    if (ranges.empty()) {
        reason = task.n_tokens() < params.min_prompt ?
                     string_format("the prompt is shorter than min_prompt, %d", params.min_prompt) :
                     "sink, tail and spans cover the prompt";
    }
    return ranges;
}

static int32_t n_planned(const std::vector<llama_ridgefill_range> & plan, llama_pos p0, llama_pos p1) {
    int32_t n = 0;
    for (const auto & r : plan) {
        n += std::max(0, std::min(r.p1, p1) - std::max(r.p0, p0));
    }
    return n;
}

// after the rows are marked
static void select_rows(const common_ridgefill_info & info,
                        llama_context *               ctx,
                        int32_t                       id_slot,
                        const server_task &           task,
                        server_ridgefill_slot &       slot,
                        llama_pos                     pos_keep) {
    const auto & req = task.params.ridgefill;

    const auto type = slot.plan.empty() ? LLAMA_RIDGEFILL_SELECT_NONE : server_ridgefill_select(info, req);
    if (type == LLAMA_RIDGEFILL_SELECT_NONE) {
        slot.last = {};
        return;
    }
    const double budget = req.budget >= 0.0 ? req.budget : info.budget;

    // a prompt that is there as a whole keeps what it selected before: its last row alone would ask for other rows
    const bool is_repeated = pos_keep >= slot.p_end - 1 && slot.last.type == type && slot.last.budget == budget &&
                             slot.last.p_end == slot.p_end;
    slot.last              = { type, budget, slot.p_end };
    if (is_repeated) {
        return;
    }

    slot.selecting = true;
    slot.n_able = n_planned(slot.plan, pos_keep, slot.p_tail) + llama_ridgefill_seq_n_filled(ctx, id_slot, 0, pos_keep);

    const auto params = common_ridgefill_select_params(info, type, std::lround(budget * slot.n_able));
    if (llama_ridgefill_seq_select(ctx, id_slot, slot.p_end, slot.p_end - slot.p_tail, params) != 0) {
        throw std::runtime_error(string_format("failed to select rows: %s", llama_ridgefill_last_error()));
    }
}

// no more rows of the slot are filled or wait for selected ones
static void unmark(llama_context * ctx, int32_t id_slot, server_ridgefill_slot & slot) {
    if (slot.selecting) {
        llama_ridgefill_seq_select(ctx, id_slot, 0, 0, {});  // none
        slot.selecting = false;
    }
    if (!slot.plan.empty()) {
        llama_ridgefill_seq_mark(ctx, id_slot, nullptr, 0);
        slot.plan.clear();
    }
}

int32_t server_ridgefill_begin(const common_params_ridgefill & params,
                               llama_context *                 ctx,
                               int32_t                         id_slot,
                               const server_task &             task,
                               server_prompt &                 prompt,
                               server_slot_stats &             stats,
                               server_ridgefill_slot &         slot,
                               int32_t                         n_past) {
    std::vector<llama_ridgefill_range> ranges;

    slot.reset();

    const auto   loaded = params.loaded->get();
    const auto & info   = *loaded;

    if (info.loaded) {
        auto & rf = stats.ridgefill;

        rf.split = info.split;
        rf.tail  = task.params.ridgefill.tail >= 0 ? task.params.ridgefill.tail : info.tail;

        ranges = make_plan(loaded, task, rf.tail, rf.reason);
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

    if (info.loaded) {
        if (llama_ridgefill_seq_mark(ctx, id_slot, ranges.data(), ranges.size()) != 0) {
            throw std::runtime_error(
                string_format("failed to mark the rows to fill: %s", llama_ridgefill_last_error()));
        }
        slot.plan     = std::move(ranges);
        slot.p_end    = task.n_tokens();
        slot.p_tail   = std::max(0, slot.p_end - stats.ridgefill.tail);
        slot.counting = true;
        slot.to_heal  = info.heal;

        select_rows(info, ctx, id_slot, task, slot, pos_keep);
    }

    return n_past;
}

void server_ridgefill_slot::reset() {
    const auto kept = last;
    *this           = {};
    last            = kept;
}

void server_ridgefill_slot::restored(const common_params_ridgefill & params) {
    *this   = {};
    to_heal = params.loaded->get()->heal;
}

void server_ridgefill_slot::shift(llama_context * ctx, int32_t id_slot) {
    // not exact: cells are filled, or not all that saw filled ones are healed
    const llama_pos n_past = llama_memory_seq_pos_max(llama_get_memory(ctx), id_slot) + 1;
    drop_cells             = drop_cells || llama_ridgefill_seq_reusable(ctx, id_slot, nullptr, 0, n_past) < n_past;

    // generated rows will get positions that the prompt had
    unmark(ctx, id_slot, *this);
}

void server_ridgefill_slot::count(llama_context *            ctx,
                                  int32_t                    id_slot,
                                  server_slot_stats &        stats,
                                  server_ridgefill_metrics & metrics) {
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

    const uint64_t n_rows   = pos_end - pos_counted;
    const uint64_t n_filled = n_planned(plan, pos_counted, pos_end);

    if (selecting && pos_end >= p_end) {
        // the rows that could be selected and are not filled any more
        const uint64_t n_selected = n_able - llama_ridgefill_seq_n_filled(ctx, id_slot, 0, p_tail);

        metrics.n_selected += n_selected;
        stats.ridgefill.n_selected += n_selected;
        selecting = false;
    }

    metrics.n_requests += n_filled > 0 && stats.ridgefill.n_filled == 0;
    metrics.n_filled += n_filled;
    metrics.n_exact += n_rows - n_filled;

    stats.ridgefill.n_filled += n_filled;

    pos_counted = pos_end;
}

bool server_ridgefill_slot::release(llama_context *           ctx,
                                    int32_t                   id_slot,
                                    const server_task &       task,
                                    const server_slot_stats & stats) {
    const auto & rf = stats.ridgefill;

    if (rf.split >= 0 && !task.is_child()) {
        LOG_INF(
            "slot %12.*s: id %2d | task %d | ridgefill: filled = %d, selected = %d, exact = %d, reused = %d rows, "
            "split = %d, tail = %d%s%s\n",
            12, __func__, id_slot, task.id, (int) rf.n_filled, (int) rf.n_selected,
            (int) (stats.n_prompt_processed - rf.n_filled), (int) stats.n_prompt_cached, rf.split, rf.tail,
            rf.reason.empty() ? "" : ", exact because ", rf.reason.c_str());
    }

    const bool drop = drop_cells;
    const bool heal = to_heal && !drop;

    unmark(ctx, id_slot, *this);
    reset();
    to_heal = heal;

    return drop;
}

bool server_ridgefill_slot::heal(llama_context *            ctx,
                                 int32_t                    id_slot,
                                 server_queue &             queue,
                                 server_ridgefill_metrics & metrics) {
    if (!to_heal) {
        return false;
    }

    // not in yield_to_queue: a signal that ends the server while this thread holds the queue's lock would hang it
    const int32_t n = llama_ridgefill_seq_heal(ctx, id_slot, llama_n_ubatch(ctx));
    llama_synchronize(ctx);

    if (n <= 0) {
        to_heal = false;
        if (n < 0) {
            LOG_WRN("slot %12.*s: id %2d | ridgefill: filled rows stay: %s\n", 12, __func__, id_slot,
                    llama_ridgefill_last_error());
        }
        return false;
    }
    metrics.n_healed += n;

    // tasks that came meanwhile go first
    server_task task(SERVER_TASK_TYPE_NEXT_RESPONSE);
    task.id = queue.get_new_id();
    queue.post(std::move(task));

    return true;
}
