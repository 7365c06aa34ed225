#include "server-common.h"
#include "server-ridgefill-locate.h"

#include <stdexcept>

static size_t message_index(const server_ridgefill_span & span, size_t n_messages) {
    const int64_t i = span.message < 0 ? span.message + (int64_t) n_messages : span.message;
    if (i < 0 || i >= (int64_t) n_messages) {
        throw std::invalid_argument(
            string_format("message %d does not exist, there are %zu", span.message, n_messages));
    }
    return i;
}

static server_ridgefill_bytes find_span(const server_ridgefill_span &        span,
                                        const server_ridgefill_locator &     locator,
                                        const common_chat_templates_inputs & inputs) {
    if (span.type == server_ridgefill_span::MESSAGE) {
        const size_t i = message_index(span, inputs.messages.size());
        return span.p1 < 0 ? locator.find_message(i, span.lenient) : locator.find_chars(i, span);
    }
    if (span.role == "tools") {
        return locator.find_tools(span.lenient);
    }
    server_ridgefill_bytes res;
    for (size_t i = 0; i < inputs.messages.size(); i++) {
        if (server_ridgefill_has_role(inputs.messages[i], span.role)) {
            const auto bytes = locator.find_message(i, span.lenient);
            res.insert(res.end(), bytes.begin(), bytes.end());
        }
    }
    return res;
}

// messages and roles among the spans of a request, or of the server
static std::vector<server_ridgefill_span> get_spans(const common_params_ridgefill & params, const json & body) {
    const json field = json_value(body, "ridgefill", json(true));
    if (field.is_boolean() && !field.get<bool>()) {
        return {};
    }
    if (!field.is_object() || !field.contains("spans")) {
        return server_ridgefill_default_spans(params);
    }
    try {
        return server_ridgefill_parse_spans(field.at("spans"));
    } catch (const std::invalid_argument &) {
        return {};  // is reported when all fields are read
    }
}

json server_ridgefill_chat(const common_params_ridgefill *      params,
                           const json &                         body,
                           const common_chat_templates *        tmpls,
                           const common_chat_templates_inputs & inputs,
                           const std::string &                  prompt) {
    if (params == nullptr || !params->loaded->get()->loaded) {
        return nullptr;
    }

    const auto spans = get_spans(*params, body);

    server_ridgefill_messages messages;
    bool                      with_tools = false;
    bool                      is_needed  = false;
    for (const auto & span : spans) {
        for (size_t i = 0; i < inputs.messages.size(); i++) {
            const bool is_wanted =
                span.type == server_ridgefill_span::MESSAGE ?
                    span.message == (int64_t) i || span.message + (int64_t) inputs.messages.size() == (int64_t) i :
                    span.type == server_ridgefill_span::ROLE &&
                        server_ridgefill_has_role(inputs.messages[i], span.role);
            if (is_wanted) {
                messages.insert(i);
            }
        }
        with_tools |= span.role == "tools" && !inputs.tools.empty();
        is_needed |= span.type == server_ridgefill_span::MESSAGE || span.type == server_ridgefill_span::ROLE;
    }
    if (!is_needed) {
        return nullptr;
    }

    server_ridgefill_locator locator(tmpls, inputs, prompt);
    std::string              reason;
    try {
        if (with_tools || !messages.empty()) {
            locator.locate(messages);
        }
    } catch (const std::invalid_argument & e) {
        reason = e.what();
    }

    std::set<std::string> roles;

    json res = json::array();
    for (const auto & span : spans) {
        json item = json::array();
        if (span.type == server_ridgefill_span::ROLE && !roles.insert(span.role).second) {
            res.push_back(item);  // an earlier span has its rows
            continue;
        }
        try {
            if (span.type == server_ridgefill_span::MESSAGE || span.type == server_ridgefill_span::ROLE) {
                if (!reason.empty()) {
                    throw std::invalid_argument(reason);
                }
                for (const auto & [first, second] : find_span(span, locator, inputs)) {
                    item.push_back(first);
                    item.push_back(second);
                }
            }
        } catch (const std::invalid_argument & e) {
            item = std::string(e.what());
        }
        res.push_back(item);
    }
    return res;
}
