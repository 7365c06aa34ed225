#include "server-ridgefill-spans.h"

#include "server-common.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

// far more than anybody names; a request must not cost minutes
static constexpr size_t MAX_SPANS = 4096;

//
// parsing
//

int32_t server_ridgefill_get_int(const json & data, const std::string & name, int32_t min) {
    // compared as a double: a number beyond 64 bits must not wrap into the range
    if (!data.is_number_integer() || data.get<double>() < min || data.get<double>() > INT32_MAX) {
        throw std::invalid_argument(string_format("%s must be an integer%s, but got %s", name.c_str(),
                                                  min == INT32_MIN ? "" : string_format(" of at least %d", min).c_str(),
                                                  data.dump_safe().substr(0, 64).c_str()));
    }
    return data.get<int32_t>();
}

static void get_pair(const json & pair, server_ridgefill_span & span, const char * what) {
    if (!pair.is_array() || pair.size() != 2) {
        throw std::invalid_argument(string_format("%s must be a [start, end) pair of %s", span.name.c_str(), what));
    }
    span.p0 = server_ridgefill_get_int(pair.at(0), "the start of " + span.name, 0);
    span.p1 = server_ridgefill_get_int(pair.at(1), "the end of " + span.name, 0);
    if (span.p0 >= span.p1) {
        throw std::invalid_argument(string_format("%s = [%d, %d) is empty", span.name.c_str(), span.p0, span.p1));
    }
}

static std::string get_role(const json & data, const std::string & name) {
    try {
        return common_ridgefill_check_role(data.is_string() ? data.get<std::string>() : data.dump_safe());
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument(string_format("role of %s %s", name.c_str(), e.what()));
    }
}

static server_ridgefill_span parse_span(const json & item, size_t i) {
    server_ridgefill_span span;
    span.name = string_format("spans[%zu]", i);

    if (item.is_array()) {
        get_pair(item, span, "token positions");
        return span;
    }

    const size_t n_keys = item.is_object() ? item.size() : 0;
    const size_t chars  = n_keys > 0 && item.contains("chars");

    if (n_keys == 1 && item.contains("tokens")) {
        get_pair(item.at("tokens"), span, "token positions");
    } else if (n_keys == 1 && chars == 1) {
        span.type = server_ridgefill_span::CHARS;
        get_pair(item.at("chars"), span, "characters");
    } else if (n_keys == 1 && item.contains("role")) {
        span.type = server_ridgefill_span::ROLE;
        span.role = get_role(item.at("role"), span.name);
    } else if (n_keys == 1 + chars && item.contains("message")) {
        span.type    = server_ridgefill_span::MESSAGE;
        span.message = server_ridgefill_get_int(item.at("message"), "message of " + span.name, INT32_MIN);
        if (chars == 1) {
            get_pair(item.at("chars"), span, "characters");
        }
    } else {
        throw std::invalid_argument(string_format(
            "%s must be {\"tokens\": [start, end]} or short [start, end], {\"chars\": [start, end]}, "
            "{\"message\": index}, {\"message\": index, \"chars\": [start, end]} or {\"role\": name}, but got %s",
            span.name.c_str(), item.dump_safe().substr(0, 64).c_str()));
    }
    return span;
}

std::vector<server_ridgefill_span> server_ridgefill_parse_spans(const json & data) {
    if (!data.is_array()) {
        throw std::invalid_argument("spans must be an array, like [{\"role\": \"system\"}, {\"tokens\": [0, 100]}]");
    }
    if (data.size() > MAX_SPANS) {
        throw std::invalid_argument(string_format("spans has %zu entries, the limit is %zu", data.size(), MAX_SPANS));
    }

    std::vector<server_ridgefill_span> spans;
    for (size_t i = 0; i < data.size(); i++) {
        spans.push_back(parse_span(data.at(i), i));
    }
    return spans;
}

std::vector<server_ridgefill_span> server_ridgefill_default_spans(const common_params_ridgefill & params) {
    std::vector<server_ridgefill_span> spans;
    for (const auto & role : params.exact_roles) {
        server_ridgefill_span span;
        span.type    = server_ridgefill_span::ROLE;
        span.role    = role;
        span.name    = "--ridgefill-exact-roles";
        span.lenient = true;
        spans.push_back(span);
    }
    return spans;
}

//
// text
//

server_ridgefill_text::server_ridgefill_text(std::string text) : text(std::move(text)) {
    for (size_t i = 0; i < this->text.size(); i++) {
        if ((this->text[i] & 0xC0) != 0x80) {
            starts.push_back(i);
        }
    }
    starts.push_back(this->text.size());
}

std::pair<size_t, size_t> server_ridgefill_text::bytes(const server_ridgefill_span & span) const {
    if ((size_t) span.p1 >= starts.size()) {
        throw std::invalid_argument(string_format("%s = [%d, %d) ends after the text of %zu characters",
                                                  span.name.c_str(), span.p0, span.p1, starts.size() - 1));
    }
    return { starts[span.p0], starts[span.p1] };
}

// the text that prompt i was tokenized from, none if it has tokens of its own
static std::optional<std::string> find_text(const json & prompt, size_t i_prompt) {
    const json * cur = &prompt;
    if (cur->is_array() && !json_is_array_and_contains_numbers(*cur)) {
        cur = &cur->at(i_prompt);
    }
    if (cur->is_object() && cur->contains("prompt_string")) {
        cur = &cur->at("prompt_string");
    }
    return cur->is_string() ? std::optional<std::string>(cur->get<std::string>()) : std::nullopt;
}

// which bytes of the text each token of a prompt stands for
class token_index {
  public:
    // throws std::invalid_argument
    token_index(const llama_vocab * vocab, const llama_tokens & tokens, const std::string & text) {
        constexpr const char * whitespace = " \t\r\n";

        size_t pos = 0;
        for (size_t i = 0; i < tokens.size(); i++) {
            const std::string piece = common_token_to_piece(vocab, tokens[i], true);

            // as it is; with a space that the tokenizer put before it; behind white space that a special token took away
            const size_t after = std::min(text.find_first_not_of(whitespace, pos), text.size());
            const size_t space = !piece.empty() && piece[0] == ' ';
            const auto   match = [&](size_t start, size_t skip) {
                return text.compare(start, piece.size() - skip, piece, skip) == 0;
            };

            if (match(pos, 0) || match(pos, space)) {
                starts.push_back(pos);
                pos += piece.size() - (match(pos, 0) ? 0 : space);
            } else if (match(after, 0) || match(after, space)) {
                starts.push_back(after);
                pos = after + piece.size() - (match(after, 0) ? 0 : space);
            } else if (llama_vocab_is_control(vocab, tokens[i]) && (i == 0 || i + 1 == tokens.size())) {
                starts.push_back(pos);  // added, not in the text
            } else {
                fail();
            }
            ends.push_back(pos);
        }
        if (text.find_first_not_of(whitespace, pos) != std::string::npos) {
            fail();
        }
    }

    // tokens that are partly inside count
    llama_ridgefill_range rows(size_t first, size_t second) const {
        const auto p0 = std::upper_bound(ends.begin(), ends.end(), first) - ends.begin();
        const auto p1 = std::lower_bound(starts.begin(), starts.end(), second) - starts.begin();
        return { (llama_pos) p0, (llama_pos) std::max(p0, p1) };
    }

  private:
    [[noreturn]] static void fail() {
        throw std::invalid_argument(
            "spans of characters, messages and roles need tokens that spell the text of the prompt, and those of this "
            "model do not (hint: use tokens)");
    }

    std::vector<size_t> starts;
    std::vector<size_t> ends;
};

//
// rows
//

static server_ridgefill_bytes read_bytes(const json & data, const server_ridgefill_span & span) {
    if (data.is_string()) {
        throw std::invalid_argument(span.name + ": " + data.get<std::string>());
    }
    server_ridgefill_bytes res;
    for (size_t i = 0; i + 1 < data.size(); i += 2) {
        res.emplace_back(data.at(i).get<size_t>(), data.at(i + 1).get<size_t>());
    }
    return res;
}

static std::vector<llama_ridgefill_range> merge(std::vector<llama_ridgefill_range> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const auto & a, const auto & b) { return a.p0 < b.p0; });

    std::vector<llama_ridgefill_range> res;
    for (const auto & r : ranges) {
        if (r.p0 == r.p1) {
            continue;
        }
        if (!res.empty() && r.p0 <= res.back().p1) {
            res.back().p1 = std::max(res.back().p1, r.p1);
        } else {
            res.push_back(r);
        }
    }

    // each can end one filled range and start another
    const size_t n_max = LLAMA_RIDGEFILL_MAX_RANGES - 1;
    if (res.size() > n_max) {
        throw std::invalid_argument(
            string_format("spans are %zu separate ranges of rows, the limit is %zu (hint: leave no gaps of a few rows)",
                          res.size(), n_max));
    }
    return res;
}

std::vector<llama_ridgefill_range> server_ridgefill_rows(const std::vector<server_ridgefill_span> & spans,
                                                         const llama_vocab *                        vocab,
                                                         const server_tokens &                      tokens,
                                                         const json &                               data,
                                                         size_t                                     i_prompt,
                                                         bool                                       chat) {
    std::vector<llama_ridgefill_range> rows;

    std::optional<server_ridgefill_text> text;
    std::optional<token_index>           index;

    for (size_t i = 0; i < spans.size(); i++) {
        const auto & span = spans[i];

        if (span.type == server_ridgefill_span::TOKENS) {
            if (span.p1 > (int32_t) tokens.size()) {
                throw std::invalid_argument(string_format("%s = [%d, %d) ends after the prompt of %zu tokens",
                                                          span.name.c_str(), span.p0, span.p1, tokens.size()));
            }
            rows.push_back({ span.p0, span.p1 });
            continue;
        }
        if (span.type != server_ridgefill_span::CHARS && !chat) {
            throw std::invalid_argument(span.name + ": this route has no chat messages (hint: use chars or tokens)");
        }
        if (!index) {
            auto str = find_text(data.at("prompt"), i_prompt);
            if (!str) {
                throw std::invalid_argument(span.name + ": the prompt is not a text (hint: use tokens)");
            }
            text.emplace(std::move(*str));
            index.emplace(vocab, tokens.get_text_tokens(), text->str());  // there is no media
        }

        const auto places = span.type == server_ridgefill_span::CHARS ?
                                server_ridgefill_bytes{ text->bytes(span) } :
                                read_bytes(data.at("ridgefill_chat").at(i), span);
        for (const auto & [first, second] : places) {
            rows.push_back(index->rows(first, second));
        }
    }

    return merge(std::move(rows));
}
