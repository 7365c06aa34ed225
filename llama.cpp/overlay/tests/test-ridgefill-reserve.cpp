// prompts with selected rows, and healing, in a context that keeps split states: compute buffers must have been reserved
//
//   test-ridgefill-reserve model.gguf maps.gguf n_seq
//
// prints the bytes of the compute buffers before and after

#include "llama-ext.h"
#include "llama-ridgefill.h"
#include "llama.h"

#include <cstdio>
#include <cstdlib>

static constexpr int32_t N_PROMPT = 700;
static constexpr int32_t N_TAIL   = 300;

static size_t compute_size(const llama_context * ctx) {
    size_t res = 0;
    for (const auto & it : llama_get_memory_breakdown(ctx)) {
        res += it.second.compute;
    }
    return res;
}

static bool run(llama_context * ctx, const llama_ridgefill * maps, int32_t n_seq) {
    auto select   = llama_ridgefill_default_select_params(maps, -1);
    select.type   = LLAMA_RIDGEFILL_SELECT_ATTENTION;
    select.budget = 50;

    const llama_ridgefill_range range = { 4, N_PROMPT - N_TAIL };

    llama_batch batch = llama_batch_init(n_seq * N_PROMPT, 0, 1);
    for (llama_seq_id seq_id = 0; seq_id < n_seq; ++seq_id) {
        if (llama_ridgefill_seq_mark(ctx, seq_id, &range, 1) != 0 ||
            llama_ridgefill_seq_select(ctx, seq_id, N_PROMPT, N_TAIL, select) != 0) {
            return false;
        }
        for (int32_t i = 0; i < N_PROMPT; ++i) {
            const int32_t k    = batch.n_tokens++;
            batch.token[k]     = (7 * i + seq_id) % 100;
            batch.pos[k]       = i;
            batch.n_seq_id[k]  = 1;
            batch.seq_id[k][0] = seq_id;
            batch.logits[k]    = i == N_PROMPT - 1;
        }
    }
    bool ok = llama_decode(ctx, batch) == 0 && llama_ridgefill_n_selected(ctx) == 50;
    llama_batch_free(batch);

    int32_t n = 1;
    while (ok && n > 0) {
        n  = llama_ridgefill_seq_heal(ctx, -1, 512);
        ok = n >= 0;
    }
    return ok;
}

int main(int argc, char ** argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s model.gguf maps.gguf n_seq\n", argv[0]);
        return 2;
    }
    const int32_t n_seq = atoi(argv[3]);

    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                fputs(text, stderr);
            }
        },
        nullptr);
    llama_backend_init();

    llama_model *     model = llama_model_load_from_file(argv[1], llama_model_default_params());
    llama_ridgefill * maps  = model ? llama_ridgefill_init(model, argv[2], llama_ridgefill_default_params()) : nullptr;
    if (!maps) {
        return 1;
    }

    bool ok = true;
    for (const bool flash : { false, true }) {
        for (const bool unified : { false, true }) {
            auto params            = llama_context_default_params();
            params.n_ctx           = n_seq * 1024;
            params.n_batch         = n_seq * N_PROMPT;
            params.n_ubatch        = 128;
            params.n_seq_max       = n_seq;
            params.kv_unified      = unified;
            params.swa_full        = true;
            params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
            params.n_threads       = 1;
            params.n_threads_batch = 1;
            llama_context * ctx    = llama_init_from_model(model, params);

            auto ridgefill        = llama_ridgefill_default_context_params();
            ridgefill.keep_states = true;
            ok                    = ok && ctx && llama_set_ridgefill(ctx, maps, ridgefill) == 0;
            if (ok) {
                const size_t before = compute_size(ctx);
                ok                  = run(ctx, maps, n_seq);
                printf("%zu %zu\n", before, compute_size(ctx));
            }
            llama_free(ctx);
        }
    }

    llama_ridgefill_free(maps);
    llama_model_free(model);
    llama_backend_free();
    return ok ? 0 : 1;
}
