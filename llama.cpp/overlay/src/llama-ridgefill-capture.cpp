#include "llama-ridgefill-capture.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill.h"

#include <stdexcept>

void llama_ridgefill_capture_state::on_build(const llama_model & model, llm_graph_result & res) {
    std::vector<llama_ridgefill_site> found;
    try {
        found = llama_ridgefill_find_sites(model, res, layer_first);
    } catch (const std::exception & err) {
        error = err.what();
        return;
    }

    auto & cur = tensors[&res];
    cur.clear();
    for (const auto & it : found) {
        ggml_set_output(it.tensor);
        cur.push_back(it.tensor);
    }

    if (sites.empty()) {
        for (const auto & it : found) {
            sites.push_back({ it.name, it.layer, (int32_t) it.tensor->ne[0], nullptr, {} });
        }
    }
    GGML_ASSERT(sites.size() == cur.size());
}

// decode only starts the computation: nothing is read here
void llama_ridgefill_capture_state::on_done(const llm_graph_result * res) {
    last = res ? &tensors.at(res) : nullptr;
    for (auto & site : sites) {
        site.data = nullptr;
    }
}

const float * llama_ridgefill_capture_state::read(int32_t i_site) {
    auto & site = sites.at(i_site);
    if (!site.data && last) {
        const auto * t = last->at(i_site);
        if (ggml_backend_buffer_is_host(t->buffer)) {
            site.data = (const float *) t->data;
        } else {
            site.host.resize(ggml_nelements(t));
            ggml_backend_tensor_get(t, site.host.data(), 0, ggml_nbytes(t));
            site.data = site.host.data();
        }
    }
    return site.data;
}

void llama_ridgefill_context::set_capture(int32_t layer_first) {
    ctx.cparams.ridgefill.capture = nullptr;
    capture.reset();

    if (layer_first < 0) {
        return;
    }
    if (layer_first >= (int32_t) ctx.model.hparams.n_layer()) {
        throw std::runtime_error(
            format("expected a first layer in [0, %d), found %d", (int) ctx.model.hparams.n_layer(), layer_first));
    }
    if (!ctx.memory) {
        throw std::runtime_error(
            format("architecture '%s' cannot be captured: the context keeps no memory", llm_arch_name(ctx.model.arch)));
    }

    capture = std::make_unique<llama_ridgefill_capture_state>(layer_first);

    // find the sites
    ctx.synchronize();
    ctx.sched_reserve();
    const auto mctx = ctx.memory->init_full();
    if (!mctx) {
        throw std::runtime_error("failed to initialize the memory module");
    }
    ctx.cparams.ridgefill.capture = capture.get();
    ctx.graph_reserve(std::min<uint32_t>(ctx.cparams.n_ubatch, 2 * ctx.cparams.n_seq_max), ctx.cparams.n_seq_max, 1,
                      mctx.get(), true);
    ctx.sched_need_reserve = true;

    if (!capture->error.empty()) {
        const std::string error       = capture->error;
        ctx.cparams.ridgefill.capture = nullptr;
        capture.reset();
        throw std::runtime_error(error);
    }
}

//
// C API
//

int32_t llama_ridgefill_capture(llama_context * ctx, int32_t layer_first) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        ctx->ridgefill.set_capture(layer_first);
        return 0;
    });
}

int32_t llama_ridgefill_n_sites(const llama_context * ctx) {
    const auto & capture = ctx->ridgefill.capture;
    return capture ? capture->sites.size() : 0;
}

static const llama_ridgefill_capture_state::site * get_site(const llama_context * ctx, int32_t i) {
    return i < 0 || i >= llama_ridgefill_n_sites(ctx) ? nullptr : &ctx->ridgefill.capture->sites[i];
}

const char * llama_ridgefill_site_name(const llama_context * ctx, int32_t i) {
    const auto * site = get_site(ctx, i);
    return site ? site->name.c_str() : nullptr;
}

int32_t llama_ridgefill_site_layer(const llama_context * ctx, int32_t i) {
    const auto * site = get_site(ctx, i);
    return site ? site->layer : -1;
}

int32_t llama_ridgefill_site_width(const llama_context * ctx, int32_t i) {
    const auto * site = get_site(ctx, i);
    return site ? site->width : -1;
}

const float * llama_ridgefill_site_data(llama_context * ctx, int32_t i) {
    if (!get_site(ctx, i)) {
        return nullptr;
    }
    ctx->synchronize();
    return ctx->ridgefill.capture->read(i);
}
