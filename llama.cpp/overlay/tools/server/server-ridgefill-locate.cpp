#include "server-ridgefill-locate.h"

#include "server-common.h"

#include <algorithm>
#include <stdexcept>

static constexpr const char * WHITESPACE = " \t\n\r\v\f";

bool server_ridgefill_has_role(const common_chat_msg & msg, const std::string & role) {
    return msg.role == role || (msg.role == "developer" && role == "system");
}

static std::string message_text(const common_chat_msg & msg) {
    return msg.render_content("\n");
}

static bool has_text(const common_chat_msg & msg) {
    return message_text(msg).find_first_not_of(WHITESPACE) != std::string::npos;
}

// is more than its text
static bool has_parts(const common_chat_msg & msg) {
    return !msg.tool_calls.empty() || !msg.reasoning_content.empty();
}

static std::string describe(const common_chat_templates_inputs & inputs, size_t i) {
    return string_format("message %zu (%s)", i, inputs.messages[i].role.substr(0, 64).c_str());
}

server_ridgefill_locator::server_ridgefill_locator(const common_chat_templates *        tmpls,
                                                   const common_chat_templates_inputs & inputs,
                                                   const std::string &                  prompt) :
    tmpls(tmpls),
    inputs(inputs),
    prompt(prompt) {
    for (int i = 0; word.empty() || prompt.find(word) != std::string::npos; i++) {
        word = string_format("ridgefill%dm", i);
    }
}

static void put_mark(std::string & text, const std::string & mark, bool end) {
    if (end) {
        text.insert(text.find_last_not_of(WHITESPACE) + 1, mark);
    } else {
        text.insert(text.find_first_not_of(WHITESPACE), mark);
    }
}

// inside of the white space around it, which templates trim
static void put_marks(common_chat_msg & msg, const std::string & start, const std::string & end) {
    std::vector<std::string *> texts;
    if (!msg.content.empty()) {
        texts.push_back(&msg.content);
    }
    for (auto & part : msg.content_parts) {
        if (part.type == "text" && part.text.find_first_not_of(WHITESPACE) != std::string::npos) {
            texts.push_back(&part.text);
        }
    }
    put_mark(*texts.back(), end, true);
    put_mark(*texts.front(), start, false);
}

server_ridgefill_locator::rendered server_ridgefill_locator::render(const common_chat_templates_inputs & source,
                                                                    const server_ridgefill_messages & messages) const {
    auto copy = source;
    for (const size_t i : messages) {
        const auto base = word + std::to_string(i);
        put_marks(copy.messages[i], base + "a", base + "z");
    }
    const auto text = common_chat_templates_apply(tmpls, copy).prompt;

    rendered res;
    size_t   pos = 0;
    for (size_t next; (next = text.find(word, pos)) != std::string::npos;) {
        res.text += text.substr(pos, next - pos);

        char *       kind;
        const size_t i = strtoul(text.c_str() + next + word.size(), &kind, 10);
        if ((*kind != 'a' && *kind != 'z') || messages.count(i) == 0) {
            throw std::runtime_error("the chat template changes the marks");
        }
        res.marks.push_back({ res.text.size(), i, *kind == 'z' });
        pos = kind + 1 - text.c_str();
    }
    res.text += text.substr(pos);
    return res;
}

std::optional<server_ridgefill_locator::rendered> server_ridgefill_locator::render_same(
    const server_ridgefill_messages & messages) const {
    try {
        auto res = render(inputs, messages);
        return res.text == prompt ? std::make_optional(std::move(res)) : std::nullopt;
    } catch (const std::exception &) {
        return std::nullopt;  // the template refuses what the marks make of the messages
    }
}

// what has parts ends where its neighbours start
server_ridgefill_messages server_ridgefill_locator::with_neighbours(const server_ridgefill_messages & messages) const {
    server_ridgefill_messages res;
    const auto                has_text_at = [&](size_t i) {
        return has_text(inputs.messages[i]);
    };
    for (const size_t i : messages) {
        if (has_text_at(i)) {
            res.insert(i);
        }
        if (!has_parts(inputs.messages[i])) {
            continue;
        }
        for (size_t j = i; j-- > 0;) {
            if (has_text_at(j)) {
                res.insert(j);
                break;
            }
        }
        for (size_t j = i + 1; j < inputs.messages.size(); j++) {
            if (has_text_at(j)) {
                res.insert(j);
                break;
            }
        }
    }
    return res;
}

void server_ridgefill_locator::locate(const server_ridgefill_messages & messages) {
    marked = with_neighbours(messages);

    // more marks tell more: where a message ends whose own mark is cut off, and what is written because of tools
    // but templates may parse what tools have returned
    auto more = marked;
    for (size_t i = 0; i < inputs.messages.size(); i++) {
        if (has_text(inputs.messages[i]) && inputs.messages[i].role != "tool") {
            more.insert(i);
        }
    }
    if (auto res = render_same(more)) {
        marked = more;
        found  = std::move(*res);
        return;
    }
    if (auto res = render_same(marked)) {
        found = std::move(*res);
        return;
    }

    if (!render_same({})) {
        throw std::invalid_argument(
            "the chat template does not render the same prompt twice, so that messages cannot be found in it (hint: "
            "use chars or tokens)");
    }

    // the first message whose marks change the prompt
    const std::vector<size_t> order(marked.begin(), marked.end());
    size_t                    n_good = 0;
    size_t                    n_bad  = order.size();
    while (n_good + 1 < n_bad) {
        const size_t n = (n_good + n_bad) / 2;
        (render_same(server_ridgefill_messages(order.begin(), order.begin() + n)) ? n_good : n_bad) = n;
    }
    throw std::invalid_argument(
        describe(inputs, order[n_bad - 1]) +
        ": the chat template changes its text, so that it cannot be found in the prompt (hint: use chars or tokens)");
}

server_ridgefill_bytes server_ridgefill_locator::find_text(size_t i) const {
    server_ridgefill_bytes res;

    const auto & marks = found.marks;
    for (size_t k = 0; k < marks.size(); k++) {
        if (marks[k].message != i) {
            continue;
        }
        if (marks[k].end) {
            // the template has cut the start off: it is somewhere behind the mark before
            res.emplace_back(k > 0 ? marks[k - 1].pos : 0, marks[k].pos);
        } else {
            const size_t end = k + 1 < marks.size() ? marks[k + 1].pos : prompt.size();
            res.emplace_back(marks[k].pos, end);
            k += k + 1 < marks.size() && marks[k + 1].message == i && marks[k + 1].end;
        }
    }
    return res;
}

server_ridgefill_bytes server_ridgefill_locator::find_message(size_t i, bool lenient) const {
    auto res = find_text(i);
    if (!lenient && res.empty() && has_text(inputs.messages[i])) {
        throw std::invalid_argument(describe(inputs, i) + ": the chat template leaves it out");
    }
    if (has_parts(inputs.messages[i])) {
        size_t first  = 0;
        size_t second = prompt.size();
        for (const auto & cur : found.marks) {
            if (cur.message < i) {
                first = std::max(first, cur.pos);
            }
            if (cur.message > i) {
                second = std::min(second, cur.pos);
            }
        }
        if (first < second) {
            res.emplace_back(first, second);
        }
    }
    return res;
}

server_ridgefill_bytes server_ridgefill_locator::find_chars(size_t i, const server_ridgefill_span & span) const {
    auto it = texts.find(i);
    if (it == texts.end()) {
        it = texts.emplace(i, message_text(inputs.messages[i])).first;
    }
    const auto & text  = it->second;
    const auto   bytes = text.bytes(span);
    const auto & str   = text.str();

    server_ridgefill_bytes res;
    if (!has_text(inputs.messages[i])) {
        return res;
    }
    if (find_text(i).empty()) {
        throw std::invalid_argument(describe(inputs, i) + ": the chat template leaves it out");
    }
    const size_t start = str.find_first_not_of(WHITESPACE);
    const size_t end   = str.find_last_not_of(WHITESPACE) + 1;
    for (const auto & [first, second] : find_text(i)) {
        if (prompt.compare(first, second - first, str, start, end - start) != 0) {
            throw std::invalid_argument(describe(inputs, i) +
                                        ": the chat template changes its text, so that characters cannot be found in "
                                        "it (hint: name the whole message)");
        }
        // the white space around it is there if the template keeps it
        const bool   kept = first >= start && prompt.compare(first - start, start, str, 0, start) == 0;
        const size_t after =
            prompt.compare(second, str.size() - end, str, end, std::string::npos) == 0 ? str.size() : end;
        const size_t b0 = std::max(bytes.first, kept ? 0 : start);
        const size_t b1 = std::min(bytes.second, after);
        if (b0 < b1) {
            res.emplace_back(first + b0 - start, first + b1 - start);
        }
    }
    return res;
}

// what differs between two texts: [first, second) in the second one
static std::pair<size_t, size_t> difference(const std::string & without, const std::string & with) {
    const size_t n_min = std::min(without.size(), with.size());

    size_t n_first = 0;
    while (n_first < n_min && without[n_first] == with[n_first]) {
        n_first++;
    }
    size_t n_last = 0;
    while (n_last < n_min - n_first && without[without.size() - 1 - n_last] == with[with.size() - 1 - n_last]) {
        n_last++;
    }
    return { n_first, with.size() - n_last };
}

// what the template renders for them: compares the prompt with the one without tools, between the marks
server_ridgefill_bytes server_ridgefill_locator::find_tools(bool lenient) const {
    if (inputs.tools.empty()) {
        return {};
    }
    auto source = inputs;
    source.tools.clear();
    source.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO;

    rendered without;
    try {
        without = render(source, marked);
    } catch (const std::exception &) {
        throw std::invalid_argument(
            "the chat template fails without tools, so that their definitions cannot be found (hint: use chars or "
            "tokens)");
    }

    auto       marks = found.marks;
    const bool same =
        std::equal(marks.begin(), marks.end(), without.marks.begin(), without.marks.end(),
                   [](const mark & a, const mark & b) { return a.message == b.message && a.end == b.end; });
    if (!same) {
        marks.clear();
        without.marks.clear();
    }

    server_ridgefill_bytes res;
    size_t                 pos_with    = 0;
    size_t                 pos_without = 0;
    for (size_t k = 0; k <= marks.size(); k++) {
        const size_t end_with    = k < marks.size() ? marks[k].pos : prompt.size();
        const size_t end_without = k < marks.size() ? without.marks[k].pos : without.text.size();

        const auto [first, second] = difference(without.text.substr(pos_without, end_without - pos_without),
                                                prompt.substr(pos_with, end_with - pos_with));
        if (first < second) {
            res.emplace_back(pos_with + first, pos_with + second);
        }
        pos_with    = end_with;
        pos_without = end_without;
    }
    if (!lenient && res.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE) {
        throw std::invalid_argument("tools: the chat template leaves their definitions out");
    }
    return res;
}
