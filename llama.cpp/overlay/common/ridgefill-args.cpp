#include "ridgefill-args.h"

#include "arg.h"
#include "common.h"
#include "speculative.h"

#include <filesystem>
#include <stdexcept>

static int32_t check_limits(int value, int min) {
    if (value < min) {
        throw std::invalid_argument(string_format("must be at least %d, but got %d", min, value));
    }
    return value;
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
}

static void refuse(bool conflict, const char * option, const char * reason) {
    if (conflict) {
        throw std::invalid_argument(string_format(
            "--ridgefill-maps cannot be used with %s: %s", option, reason));
    }
}

void common_ridgefill_check(const common_params & params) {
    const auto & rf = params.ridgefill;

    if (rf.maps.empty()) {
        if (rf.split != -1 || rf.tail != -1 || rf.sink != -1 || rf.min_prompt != -1) {
            throw std::invalid_argument(
                "--ridgefill-split, -tail, -sink and -min-prompt have no effect without --ridgefill-maps FNAME");
        }
        return;
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
