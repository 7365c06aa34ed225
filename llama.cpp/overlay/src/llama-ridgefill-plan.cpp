// which rows of a prompt are filled

#include "llama-impl.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-maps.h"
#include "llama-ridgefill-marks.h"
#include "llama-ridgefill.h"

#include <stdexcept>

llama_ridgefill_plan_params llama_ridgefill_default_plan_params(const llama_ridgefill * maps) {
    return {
        /*.sink       =*/maps->recommended_sink,
        /*.tail       =*/maps->recommended_tail,
        /*.min_prompt =*/maps->recommended_min_prompt,
        /*.exact      =*/nullptr,
        /*.n_exact    =*/0,
    };
}

int32_t llama_ridgefill_plan(llama_ridgefill_plan_params params,
                             int32_t                     n_prompt,
                             llama_ridgefill_range *     ranges,
                             int32_t                     n_max) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        if (params.sink < 0 || params.tail < 1 || params.min_prompt < 0 || n_prompt < 0) {
            throw std::runtime_error(
                format("expected sink >= 0, tail >= 1, min_prompt >= 0 and a prompt length >= 0, found %d, %d, %d and "
                       "%d (hint: the last row of a prompt needs its logits)",
                       params.sink, params.tail, params.min_prompt, n_prompt));
        }

        llama_ridgefill_ranges plan;
        if (n_prompt >= params.min_prompt && n_prompt > params.tail) {
            plan.add(params.sink, n_prompt - params.tail, 0);
        }
        for (size_t i = 0; i < params.n_exact; ++i) {
            const auto & r = params.exact[i];
            if (r.p0 < 0 || r.p0 > r.p1) {
                throw std::runtime_error(
                    format("expected ascending positions of an exact span, found [%d, %d)", r.p0, r.p1));
            }
            plan.erase(r.p0, r.p1);
        }

        const auto & res = plan.get();
        if ((int32_t) res.size() > n_max) {
            throw std::runtime_error(
                format("the plan has %zu ranges, expected at most %d (hint: join exact spans)", res.size(), n_max));
        }
        for (size_t i = 0; i < res.size(); ++i) {
            ranges[i] = { res[i].p0, res[i].p1 };
        }
        return (int32_t) res.size();
    });
}
