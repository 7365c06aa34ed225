#include "ridgefill-args.h"

#include "arg.h"
#include "common.h"
#include "speculative.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

static int32_t check_limits(int value, int min) {
    if (value < min) {
        throw std::invalid_argument(string_format("must be at least %d, but got %d", min, value));
    }
    return value;
}

static constexpr const char * select_names[] = { "none", "stride", "attention" };

const char * common_ridgefill_select_name(llama_ridgefill_select type) {
    return select_names[type];
}

llama_ridgefill_select common_ridgefill_parse_select(const std::string & name) {
    for (int i = LLAMA_RIDGEFILL_SELECT_NONE; i <= LLAMA_RIDGEFILL_SELECT_ATTENTION; i++) {
        if (name == select_names[i]) {
            return (llama_ridgefill_select) i;
        }
    }
    throw std::invalid_argument(string_format("must be none, stride or attention, but got '%s'", name.substr(0, 64).c_str()));
}

double common_ridgefill_check_budget(double budget) {
    const bool is_share = budget > 0.0 && budget <= 1.0;
    const bool is_rows  = budget > 1.0 && budget <= INT32_MAX && budget == std::floor(budget);
    if (!is_share && !is_rows) {
        throw std::invalid_argument(string_format("must be a share above 0 and up to 1, or a whole number of rows from 2 on, but got %g", budget));
    }
    return budget;
}

std::string common_ridgefill_check_role(const std::string & role) {
    for (const char * name : { "system", "developer", "user", "assistant", "tool", "tools" }) {
        if (role == name) {
            return role;
        }
    }
    throw std::invalid_argument(string_format("must be system, developer, user, assistant, tool or tools (their definitions), but got '%s'", role.substr(0, 64).c_str()));
}

static double parse_budget(const std::string & value) {
    char * end = nullptr;
    const double budget = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0') {
        throw std::invalid_argument(string_format("must be a number, but got '%s'", value.c_str()));
    }
    return common_ridgefill_check_budget(budget);
}

static void parse_pool(const std::string & value, int32_t & n_before, int32_t & n_after) {
    int n_read = -1;
    if (sscanf(value.c_str(), "%9d,%9d%n", &n_before, &n_after, &n_read) != 2 || n_read != (int) value.size() || n_before < 0 || n_after < 0) {
        throw std::invalid_argument(string_format("must be two numbers of rows like 5,5, but got '%s'", value.c_str()));
    }
}

static std::vector<llama_ridgefill_head> parse_heads(const std::string & value) {
    std::vector<llama_ridgefill_head> heads;
    for (const auto & part : string_split<std::string>(value, ',')) {
        llama_ridgefill_head head;
        int n_read = -1;
        if (sscanf(part.c_str(), "%9d.%9d%n", &head.layer, &head.head, &n_read) != 2 || n_read != (int) part.size() || head.layer < 0 || head.head < 0) {
            throw std::invalid_argument(string_format("must be a list like 9.6,11.1 (layer.head), but got '%s'", value.c_str()));
        }
        heads.push_back(head);
    }
    return heads;
}

// options that need split states
static void add_select_args(const std::function<void(common_arg)> & add_opt) {
    const std::initializer_list<enum llama_example> examples = { LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI };

    add_opt(common_arg(
        {"--ridgefill-select"}, "{none,stride,attention}",
        "filled rows that run through all layers after all, before the tail: none, evenly spread ones, or those that retrieval heads of the last rows attend to (default: the maps' choice)",
        [](common_params & params, const std::string & value) {
            params.ridgefill.select = common_ridgefill_parse_select(value);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_SELECT"));
    add_opt(common_arg(
        {"--ridgefill-budget"}, "N",
        "selected rows: a share of the filled rows up to 1, or a number of rows from 2 on (default: the maps' choice)",
        [](common_params & params, const std::string & value) {
            params.ridgefill.budget = parse_budget(value);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_BUDGET"));
    add_opt(common_arg(
        {"--ridgefill-heads"}, "L.H,L.H,...",
        "retrieval heads below the split, layer.head counted from 0 (default: the maps' choice)",
        [](common_params & params, const std::string & value) {
            params.ridgefill.heads = parse_heads(value);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_HEADS"));
    add_opt(common_arg(
        {"--ridgefill-pool"}, "BEFORE,AFTER",
        "the score of a row counts for the rows around it too, half with every so many rows before and after it (default: the maps' choice)",
        [](common_params & params, const std::string & value) {
            parse_pool(value, params.ridgefill.n_before, params.ridgefill.n_after);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_POOL"));
    add_opt(common_arg(
        {"--ridgefill-queries"}, "N",
        "number of rows at the end of the prompt whose attention counts (default: the maps' choice)",
        [](common_params & params, int value) {
            params.ridgefill.n_query = check_limits(value, 1);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_QUERIES"));
    add_opt(common_arg(
        {"--ridgefill-heal"},
        "while no request runs, replace filled rows by exact ones (default: disabled)",
        [](common_params & params) {
            params.ridgefill.heal = true;
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_HEAL"));
}

void common_ridgefill_add_args(const std::function<void(common_arg)> & add_opt) {
    const std::initializer_list<enum llama_example> examples = {
        LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI, LLAMA_EXAMPLE_COMPLETION, LLAMA_EXAMPLE_PERPLEXITY,
    };

    add_opt(common_arg(
        {"--ridgefill-maps"}, "FNAME",
        "path to RidgeFill maps, fills long prompts instead of running them through all layers (default: none)",
        [](common_params & params, const std::string & value) {
            params.ridgefill.maps = value;
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_MAPS"));
    add_opt(common_arg(
        {"--ridgefill-split"}, "N",
        "first layer that filled rows skip, one of the splits in the maps (default: the maps' choice)",
        [](common_params & params, int value) {
            params.ridgefill.split = check_limits(value, 0);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_SPLIT"));
    add_opt(common_arg(
        {"--ridgefill-tail"}, "N",
        "number of rows at the end of the prompt that run through all layers (default: the maps' choice)",
        [](common_params & params, int value) {
            params.ridgefill.tail = check_limits(value, 1);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_TAIL"));
    add_opt(common_arg(
        {"--ridgefill-sink"}, "N",
        "number of rows at the start of the prompt that run through all layers (default: the maps' choice)",
        [](common_params & params, int value) {
            params.ridgefill.sink = check_limits(value, 0);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_SINK"));
    add_opt(common_arg(
        {"--ridgefill-min-prompt"}, "N",
        "shorter prompts run through all layers (default: the maps' choice)",
        [](common_params & params, int value) {
            params.ridgefill.min_prompt = check_limits(value, 0);
        }
    ).set_examples(examples).set_env("LLAMA_ARG_RIDGEFILL_MIN_PROMPT"));

    add_select_args(add_opt);

    add_opt(common_arg(
        {"--ridgefill-exact-roles"}, "ROLE,ROLE,...",
        "chat messages that run through all layers: system, developer, user, assistant, tool, or tools for their definitions (default: none)",
        [](common_params & params, const std::string & value) {
            params.ridgefill.exact_roles.clear();
            for (const auto & role : string_split<std::string>(value, ',')) {
                params.ridgefill.exact_roles.push_back(common_ridgefill_check_role(role));
            }
        }
    ).set_examples({ LLAMA_EXAMPLE_SERVER }).set_env("LLAMA_ARG_RIDGEFILL_EXACT_ROLES"));
}

static void refuse(bool conflict, const char * option, const char * reason) {
    if (conflict) {
        throw std::invalid_argument(string_format(
            "--ridgefill-maps cannot be used with %s: %s", option, reason));
    }
}

void common_ridgefill_check(const common_params & params) {
    const auto & rf = params.ridgefill;

    const bool keep_states = rf.select > LLAMA_RIDGEFILL_SELECT_NONE || rf.heal;
    const bool is_select   = rf.budget >= 0.0 || rf.n_before != -1 || rf.n_query != -1 || !rf.heads.empty();

    if (rf.maps.empty()) {
        if (rf.split != -1 || rf.tail != -1 || rf.sink != -1 || rf.min_prompt != -1 || keep_states || is_select || !rf.exact_roles.empty()) {
            throw std::invalid_argument("the options --ridgefill-* have no effect without --ridgefill-maps FNAME");
        }
        return;
    }

    if (is_select && rf.select == LLAMA_RIDGEFILL_SELECT_NONE && !keep_states) {
        throw std::invalid_argument(
            "--ridgefill-budget, -heads, -pool and -queries have no effect without --ridgefill-select or --ridgefill-heal");
    }
    if (rf.select > LLAMA_RIDGEFILL_SELECT_NONE && params.sampling.backend_sampling) {
        throw std::invalid_argument(
            "--ridgefill-select cannot be used with --backend-sampling: the logits of the tail come after the selected rows");
    }

    refuse(params.embedding, "--embeddings or --reranking",
        "they need the output of every row, and filled rows skip the upper layers");
    refuse(params.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && params.pooling_type != LLAMA_POOLING_TYPE_NONE, "--pooling",
        "it needs the output of every row, and filled rows skip the upper layers");
    refuse(params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL, "--attention non-causal",
        "exact rows would have to attend to rows that are filled later");
    refuse(!params.lora_adapters.empty(), "--lora",
        "the maps predict the model without adapters; merge the adapter into the model and calibrate again");
    refuse(!params.control_vectors.empty(), "--control-vector",
        "the maps predict the model without control vectors");
    refuse(params.n_cache_reuse > 0, "--cache-reuse",
        "a moved chunk no longer shows which filled rows it was computed from");

    for (const auto type : params.speculative.types) {
        refuse(type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 || type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP ||
               type == COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH || type == COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK,
            string_format("--spec-type %s", common_speculative_type_name_str({ type }).c_str()).c_str(),
            "this draft reads the hidden states of every prompt row, and filled rows have none above the split");
    }
}

static void postprocess(common_params & params, int example) {
    common_ridgefill_check(params);

    if (params.ridgefill.maps.empty()) {
        return;
    }

    refuse(example == LLAMA_EXAMPLE_PERPLEXITY, "llama-perplexity",
        "it needs the logits of every row, and filled rows have none");

    if (example == LLAMA_EXAMPLE_COMPLETION) {
        params.ridgefill.select = LLAMA_RIDGEFILL_SELECT_NONE; // it has no selection, whatever the maps recommend

        refuse(!params.path_prompt_cache.empty(), "--prompt-cache",
            "a cached prompt must not hold filled cells for a run without maps");
        refuse(params.ctx_shift, "--context-shift",
            "shifted positions would meet the rows that are marked to be filled");
        refuse(params.grp_attn_n != 1, "--grp-attn-n",
            "changed positions would meet the rows that are marked to be filled");
    }

    std::error_code ec;
    const auto size = std::filesystem::file_size(params.ridgefill.maps, ec);
    if (ec) {
        throw std::invalid_argument(string_format("--ridgefill-maps: cannot read '%s': %s",
            params.ridgefill.maps.c_str(), ec.message().c_str()));
    }

    // the maps are loaded after the model: keep room for them, on every device because their layers are not known yet
    for (auto & margin : params.fit_params_target) {
        margin += size;
    }
}

void common_ridgefill_postprocess(common_params & params, int example) {
    try {
        postprocess(params, example);
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument(string_format("error: %s", e.what()));
    }
}
