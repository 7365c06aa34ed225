#pragma once

// where chat messages are in the rendered prompt
//
// A message's text may occur elsewhere in the prompt, and a template may trim, move, repeat or drop it. So the prompt is
// rendered once more, with marks around each message's text. Without the marks it must be the same prompt.

#include "chat.h"
#include "server-ridgefill-spans.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

// indices
using server_ridgefill_messages = std::set<size_t>;

bool server_ridgefill_has_role(const common_chat_msg & msg, const std::string & role);

class server_ridgefill_locator {
  public:
    server_ridgefill_locator(const common_chat_templates *        tmpls,
                             const common_chat_templates_inputs & inputs,
                             const std::string &                  prompt);

    // throws std::invalid_argument
    void locate(const server_ridgefill_messages & messages);

    // of a message's text, empty if the template leaves it out
    server_ridgefill_bytes find_text(size_t i) const;

    // of all that the template makes of a message, throws std::invalid_argument
    server_ridgefill_bytes find_message(size_t i, bool lenient) const;

    // throws std::invalid_argument
    server_ridgefill_bytes find_chars(size_t i, const server_ridgefill_span & span) const;

    // throws std::invalid_argument
    server_ridgefill_bytes find_tools(bool lenient) const;

  private:
    // a place in the text without marks
    struct mark {
        size_t pos;
        size_t message;
        bool   end;
    };

    struct rendered {
        std::string       text;  // without marks
        std::vector<mark> marks;
    };

    rendered render(const common_chat_templates_inputs & source, const server_ridgefill_messages & messages) const;
    std::optional<rendered> render_same(const server_ridgefill_messages & messages) const;

    server_ridgefill_messages with_neighbours(const server_ridgefill_messages & messages) const;

    const common_chat_templates *        tmpls;
    const common_chat_templates_inputs & inputs;
    const std::string &                  prompt;

    std::string word;  // of which marks are made, not in the prompt

    server_ridgefill_messages marked;
    rendered                  found;

    mutable std::map<size_t, server_ridgefill_text> texts;  // of messages with spans inside
};
