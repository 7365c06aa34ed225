#pragma once

// spans: rows of a prompt that the caller names, by tokens, characters, messages or roles

#include "json.h"
#include "llama-ridgefill.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

struct common_chat_templates;
struct common_chat_templates_inputs;
struct common_params_ridgefill;
struct server_tokens;

struct server_ridgefill_span {
    enum span_type {
        TOKENS,   // [p0, p1) in the tokens of the prompt
        CHARS,    // [p0, p1) in the code points of the prompt's text
        MESSAGE,  // a chat message, or [p0, p1) in the code points of its text
        ROLE,     // all messages of a role, or "tools"
    };

    span_type   type    = TOKENS;
    int32_t     p0      = 0;
    int32_t     p1      = -1;     // -1 = all
    int32_t     message = 0;      // negative = from the end
    std::string role;
    bool        lenient = false;  // a message that the chat template leaves out has no rows, instead of an error
    std::string name;             // for errors
};

// [first, second) in bytes
using server_ridgefill_bytes = std::vector<std::pair<size_t, size_t>>;

// a number of a request, throws std::invalid_argument
int32_t server_ridgefill_get_int(const common_json & data, const std::string & name, int32_t min);

// the "spans" of a request, throws std::invalid_argument
std::vector<server_ridgefill_span> server_ridgefill_parse_spans(const common_json & data);

// --ridgefill-exact-roles
std::vector<server_ridgefill_span> server_ridgefill_default_spans(const common_params_ridgefill & params);

// text with an index of its code points
class server_ridgefill_text {
  public:
    explicit server_ridgefill_text(std::string text);

    const std::string & str() const { return text; }

    // throws std::invalid_argument if the span ends after the text
    std::pair<size_t, size_t> bytes(const server_ridgefill_span & span) const;

  private:
    std::string         text;
    std::vector<size_t> starts;  // of code points, and the end
};

// call after the chat template is applied: where the messages and roles of the spans are in the prompt
// the result belongs into data["ridgefill_chat"] for server_ridgefill_rows: for each span the bytes or why there are none,
// null if no span needs it
common_json server_ridgefill_chat(const common_params_ridgefill *      params,
                                  const common_json &                  body,
                                  const common_chat_templates *        tmpls,
                                  const common_chat_templates_inputs & inputs,
                                  const std::string &                  prompt);

// the rows of all spans, ascending and disjoint
// chat: the route has messages; data: the parameters of the request, prompt i of which has these tokens
// throws std::invalid_argument
std::vector<llama_ridgefill_range> server_ridgefill_rows(const std::vector<server_ridgefill_span> & spans,
                                                         const llama_vocab *                        vocab,
                                                         const server_tokens &                      tokens,
                                                         const common_json &                        data,
                                                         size_t                                     i_prompt,
                                                         bool                                       chat);
