#include "ridgefill-args.h"

#include "arg.h"
#include "common.h"
#include "log.h"
#include "preset.h"
#include "speculative.h"

#include <algorithm>
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
    throw std::invalid_argument(
        string_format("must be none, stride or attention, but got '%s'", name.substr(0, 64).c_str()));
}

double common_ridgefill_check_budget(double budget) {
    if (!(budget > 0.0 && budget <= 1.0)) {
        throw std::invalid_argument(
            string_format("must be a share of the filled rows, above 0 and up to 1, but got %g", budget));
    }
    return budget;
}

std::string common_ridgefill_check_role(const std::string & role) {
    for (const char * name : { "system", "developer", "user", "assistant", "tool", "tools" }) {
        if (role == name) {
            return role;
        }
    }
    throw std::invalid_argument(
        string_format("must be system, developer, user, assistant, tool or tools (their definitions), but got '%s'",
                      role.substr(0, 64).c_str()));
}

static double parse_budget(const std::string & value) {
    char *       end    = nullptr;
    const double budget = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0') {
        throw std::invalid_argument(string_format("must be a number, but got '%s'", value.c_str()));
    }
    return common_ridgefill_check_budget(budget);
}

static void parse_pool(const std::string & value, int32_t & n_before, int32_t & n_after) {
    int n_read = -1;
    if (sscanf(value.c_str(), "%9d,%9d%n", &n_before, &n_after, &n_read) != 2 || n_read != (int) value.size() ||
        n_before < 0 || n_after < 0) {
        throw std::invalid_argument(string_format("must be two numbers of rows like 5,5, but got '%s'", value.c_str()));
    }
}

static std::vector<llama_ridgefill_head> parse_heads(const std::string & value) {
    std::vector<llama_ridgefill_head> heads;
    for (const auto & part : string_split<std::string>(value, ',')) {
        llama_ridgefill_head head;
        int                  n_read = -1;
        if (sscanf(part.c_str(), "%9d.%9d%n", &head.layer, &head.head, &n_read) != 2 || n_read != (int) part.size() ||
            head.layer < 0 || head.head < 0) {
            throw std::invalid_argument(
                string_format("must be a list like 9.6,11.1 (layer.head), but got '%s'", value.c_str()));
        }
        heads.push_back(head);
    }
    return heads;
}

// options that need split states
static void add_select_args(const std::function<void(common_arg)> & add_opt) {
    const std::initializer_list<enum llama_example> examples = { LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI };

    add_opt(common_arg({ "--ridgefill-select" }, "{none,stride,attention}",
                       "filled rows that run through all layers after all, before the tail: none, evenly spread ones, "
                       "or those that retrieval heads of the last rows attend to (default: the maps' choice)",
                       [](common_params & params, const std::string & value) {
                           params.ridgefill.select = common_ridgefill_parse_select(value);
                       })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_SELECT"));
    add_opt(common_arg({ "--ridgefill-budget" }, "N",
                       "selected rows as a share of the filled rows, above 0 and up to 1 (default: the maps' choice)",
                       [](common_params & params, const std::string & value) {
                           params.ridgefill.budget = parse_budget(value);
                       })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_BUDGET"));
    add_opt(common_arg(
                { "--ridgefill-heads" }, "L.H,L.H,...",
                "retrieval heads below the split, layer.head counted from 0 (default: the maps' choice)",
                [](common_params & params, const std::string & value) { params.ridgefill.heads = parse_heads(value); })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_HEADS"));
    add_opt(common_arg({ "--ridgefill-pool" }, "BEFORE,AFTER",
                       "the score of a row counts for the rows around it too, half with every so many rows before and "
                       "after it (default: the maps' choice)",
                       [](common_params & params, const std::string & value) {
                           parse_pool(value, params.ridgefill.n_before, params.ridgefill.n_after);
                       })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_POOL"));
    add_opt(common_arg({ "--ridgefill-queries" }, "N",
                       "number of rows at the end of the prompt whose attention counts (default: the maps' choice)",
                       [](common_params & params, int value) { params.ridgefill.n_query = check_limits(value, 1); })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_QUERIES"));
    add_opt(common_arg({ "--ridgefill-heal" },
                       "while no request runs, replace filled rows by exact ones (default: disabled)",
                       [](common_params & params) { params.ridgefill.heal = true; })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_HEAL"));
}

void common_ridgefill_add_args(const std::function<void(common_arg)> & add_opt) {
    const std::initializer_list<enum llama_example> examples = {
        LLAMA_EXAMPLE_SERVER,
        LLAMA_EXAMPLE_CLI,
        LLAMA_EXAMPLE_COMPLETION,
        LLAMA_EXAMPLE_PERPLEXITY,
    };

    add_opt(common_arg(
                { "--ridgefill-maps" }, "FNAME",
                "path to RidgeFill maps, fills long prompts instead of running them through all layers (default: none)",
                [](common_params & params, const std::string & value) { params.ridgefill.maps = value; })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_MAPS"));
    add_opt(common_arg({ "--ridgefill-split" }, "N",
                       "first layer that filled rows skip, one of the splits in the maps (default: the maps' choice)",
                       [](common_params & params, int value) { params.ridgefill.split = check_limits(value, 0); })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_SPLIT"));
    add_opt(
        common_arg({ "--ridgefill-tail" }, "N",
                   "number of rows at the end of the prompt that run through all layers (default: the maps' choice)",
                   [](common_params & params, int value) { params.ridgefill.tail = check_limits(value, 1); })
            .set_examples(examples)
            .set_env("LLAMA_ARG_RIDGEFILL_TAIL"));
    add_opt(
        common_arg({ "--ridgefill-sink" }, "N",
                   "number of rows at the start of the prompt that run through all layers (default: the maps' choice)",
                   [](common_params & params, int value) { params.ridgefill.sink = check_limits(value, 0); })
            .set_examples(examples)
            .set_env("LLAMA_ARG_RIDGEFILL_SINK"));
    add_opt(common_arg({ "--ridgefill-min-prompt" }, "N",
                       "shorter prompts run through all layers (default: the maps' choice)",
                       [](common_params & params, int value) { params.ridgefill.min_prompt = check_limits(value, 0); })
                .set_examples(examples)
                .set_env("LLAMA_ARG_RIDGEFILL_MIN_PROMPT"));

    add_select_args(add_opt);

    add_opt(common_arg({ "--ridgefill-exact-roles" }, "ROLE,ROLE,...",
                       "chat messages that run through all layers: system, developer, user, assistant, tool, or tools "
                       "for their definitions (default: none)",
                       [](common_params & params, const std::string & value) {
                           params.ridgefill.exact_roles.clear();
                           for (const auto & role : string_split<std::string>(value, ',')) {
                               params.ridgefill.exact_roles.push_back(common_ridgefill_check_role(role));
                           }
                       })
                .set_examples({ LLAMA_EXAMPLE_SERVER })
                .set_env("LLAMA_ARG_RIDGEFILL_EXACT_ROLES"));
}

static void refuse(bool conflict, const char * option, const char * reason) {
    if (conflict) {
        throw std::invalid_argument(string_format("--ridgefill-maps cannot be used with %s: %s", option, reason));
    }
}

static bool has_select_options(const common_params_ridgefill & rf) {
    return rf.budget >= 0.0 || rf.n_before != -1 || rf.n_query != -1 || !rf.heads.empty();
}

static bool has_options(const common_params_ridgefill & rf) {
    return rf.split != -1 || rf.tail != -1 || rf.sink != -1 || rf.min_prompt != -1 || !rf.exact_roles.empty() ||
           rf.select > LLAMA_RIDGEFILL_SELECT_NONE || rf.heal || has_select_options(rf);
}

// this process serves one of a router's models, with settings that may be common to all of them
static bool has_router() {
    return std::getenv("LLAMA_SERVER_ROUTER_PORT") != nullptr;
}

void common_ridgefill_note_config(common_params & params) {
    params.ridgefill.in_config = has_options(params.ridgefill);
}

void common_ridgefill_check_select(const common_params_ridgefill & params, bool keep_states) {
    if (!has_select_options(params) || keep_states) {
        return;
    }
    const std::string reason =
        "--ridgefill-budget, -heads, -pool and -queries have no effect without --ridgefill-select or --ridgefill-heal, "
        "or maps that recommend a selection";
    if (!params.in_config && !has_router()) {
        throw std::invalid_argument(reason);
    }
    LOG_WRN("ridgefill: %s\n", reason.c_str());
}

void common_ridgefill_check(const common_params & params) {
    const auto & rf = params.ridgefill;

    if (rf.select > LLAMA_RIDGEFILL_SELECT_NONE && params.sampling.backend_sampling) {
        throw std::invalid_argument(
            "--ridgefill-select cannot be used with --backend-sampling: the logits of the tail come after the selected "
            "rows");
    }

    refuse(params.embedding, "--embeddings or --reranking",
           "they need the output of every row, and filled rows skip the upper layers");
    refuse(params.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && params.pooling_type != LLAMA_POOLING_TYPE_NONE,
           "--pooling", "it needs the output of every row, and filled rows skip the upper layers");
    refuse(params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL, "--attention non-causal",
           "exact rows would have to attend to rows that are filled later");
    refuse(!params.lora_adapters.empty(), "--lora",
           "the maps predict the model without adapters; merge the adapter into the model and calibrate again");
    refuse(!params.control_vectors.empty(), "--control-vector", "the maps predict the model without control vectors");
    refuse(params.n_cache_reuse > 0, "--cache-reuse",
           "a moved chunk no longer shows which filled rows it was computed from");

    for (const auto type : params.speculative.types) {
        refuse(type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 || type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP ||
                   type == COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH || type == COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK,
               string_format("--spec-type %s", common_speculative_type_name_str({ type }).c_str()).c_str(),
               "this draft reads the hidden states of every prompt row, and filled rows have none above the split");
    }
}

// options without maps: a router hands them on, in a plain program they are a mistake
static void check_without_maps(const common_params & params, int example) {
    if (!has_options(params.ridgefill)) {
        return;
    }

    const bool is_router = example == LLAMA_EXAMPLE_SERVER && params.model.path.empty() && params.model.url.empty() &&
                           params.model.hf_repo.empty() && params.model.docker_repo.empty();

    if (is_router) {
        LOG_INF("ridgefill: the options --ridgefill-* are handed on, they act on models that have --ridgefill-maps\n");
    } else if (params.ridgefill.in_config || has_router()) {
        LOG_WRN("ridgefill: the options --ridgefill-* have no effect on this model, it has no --ridgefill-maps\n");
    } else {
        throw std::invalid_argument("the options --ridgefill-* have no effect without --ridgefill-maps FNAME");
    }
}

static void postprocess(common_params & params, int example) {
    const auto & rf = params.ridgefill;

    if (rf.maps.empty()) {
        check_without_maps(params, example);
        return;
    }

    common_ridgefill_check_select(rf, rf.select != LLAMA_RIDGEFILL_SELECT_NONE || rf.heal);  // -1: the maps will tell
    common_ridgefill_check(params);

    refuse(example == LLAMA_EXAMPLE_PERPLEXITY, "llama-perplexity",
           "it needs the logits of every row, and filled rows have none");

    if (example == LLAMA_EXAMPLE_COMPLETION) {
        params.ridgefill.select = LLAMA_RIDGEFILL_SELECT_NONE;  // it has no selection, whatever the maps recommend

        refuse(!params.path_prompt_cache.empty(), "--prompt-cache",
               "a cached prompt must not hold filled cells for a run without maps");
        refuse(params.ctx_shift, "--context-shift",
               "shifted positions would meet the rows that are marked to be filled");
        refuse(params.grp_attn_n != 1, "--grp-attn-n",
               "changed positions would meet the rows that are marked to be filled");
    }

    std::error_code ec;
    const auto      size = std::filesystem::file_size(params.ridgefill.maps, ec);
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

//
// models in a folder
//

static const std::string maps_suffix = ".ridgefill.gguf";

std::vector<common_file_info> common_ridgefill_skip_maps(std::vector<common_file_info> files) {
    files.erase(std::remove_if(files.begin(), files.end(),
                               [](const common_file_info & file) {
                                   return !file.is_dir && string_ends_with(file.name, maps_suffix);
                               }),
                files.end());
    return files;
}

void common_ridgefill_find_maps(const common_preset_context & ctx, common_preset & preset, const std::string & model) {
    const std::string maps = model.substr(0, model.rfind(".gguf")) + maps_suffix;

    std::error_code ec;
    if (std::filesystem::is_regular_file(maps, ec)) {
        preset.set_option(ctx, "LLAMA_ARG_RIDGEFILL_MAPS", maps);
    }
}
