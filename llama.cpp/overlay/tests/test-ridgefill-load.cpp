// load maps files against a model and print what the loader says, one line each; built with AddressSanitizer
//
//   test-ridgefill-load model.gguf maps.gguf ...

#include "llama-ridgefill.h"
#include "llama.h"

#include <cstdio>

int main(int argc, char ** argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s model.gguf maps.gguf ...\n", argv[0]);
        return 2;
    }

    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();

    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        fprintf(stderr, "failed to load the model '%s'\n", argv[1]);
        return 2;
    }

    for (int i = 2; i < argc; ++i) {
        llama_ridgefill * maps = llama_ridgefill_init(model, argv[i], llama_ridgefill_default_params());
        printf("%s\t%s\n", maps ? "ok" : "refused", maps ? "" : llama_ridgefill_last_error());
        llama_ridgefill_free(maps);
    }

    llama_model_free(model);
    llama_backend_free();
    return 0;
}
