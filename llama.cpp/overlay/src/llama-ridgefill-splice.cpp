// splice tests: a sequence gets parts of what another one's memory holds, to see which part of a fill does harm

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "llama-ridgefill-error.h"
#include "llama-ridgefill-lab.h"
#include "llama-ridgefill-marks.h"
#include "llama-ridgefill-states.h"

#include <algorithm>
#include <stdexcept>

static constexpr size_t SPLICE_CHUNK = 1 << 20;  // bytes on the host at a time

// the parts of a memory that hold cells
struct splice_memory {
    llama_ridgefill_cells    kvs  = llama_ridgefill_cells(nullptr);
    llama_memory_recurrent * recr = nullptr;

    explicit splice_memory(const llama_context & ctx) : hparams(ctx.get_model().hparams) {
        auto * memory = ctx.get_memory();
        if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
            kvs  = llama_ridgefill_cells(hybrid->get_mem_attn());
            recr = hybrid->get_mem_recr();
        } else if (auto * hybrid_iswa = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
            kvs  = llama_ridgefill_cells(hybrid_iswa->get_mem_attn());
            recr = hybrid_iswa->get_mem_recr();
        } else {
            kvs  = llama_ridgefill_cells(memory);
            recr = dynamic_cast<llama_memory_recurrent *>(memory);
        }
        if (!kvs.base && !recr) {
            throw std::runtime_error(format(
                "architecture '%s' cannot be spliced: its memory is neither an attention cache nor a recurrent state",
                llm_arch_name(ctx.get_model().arch)));
        }
    }

    std::vector<llama_kv_cache *> caches() const {
        std::vector<llama_kv_cache *> res;
        for (auto * kv : { kvs.base, kvs.swa }) {
            if (kv) {
                res.push_back(kv);
            }
        }
        return res;
    }

    // layers that read the cells of an earlier one have none
    int32_t components(int32_t il) const {
        if (il < 0 || il >= (int32_t) hparams.n_layer()) {
            throw std::runtime_error(format("there is no layer %d, expected one in [0, %u)", il, hparams.n_layer()));
        }
        int32_t res = 0;
        for (const auto * kv : caches()) {
            const auto ids = kv->get_layer_ids();
            if (std::find(ids.begin(), ids.end(), (uint32_t) il) != ids.end()) {
                res |= LLAMA_RIDGEFILL_COMPONENT_K | (hparams.is_mla() ? 0 : LLAMA_RIDGEFILL_COMPONENT_V);
            }
        }
        if (recr && (recr->r_l[il] || recr->s_l[il])) {
            res |= LLAMA_RIDGEFILL_COMPONENT_STATE;
        }
        return res;
    }

    const llama_hparams & hparams;
};

// n consecutive cells, counted over all streams
struct splice_run {
    size_t src;
    size_t dst;
    size_t n;
};

static int32_t splice_find(const llama_kv_cache & kv, llama_seq_id seq_id, llama_pos pos) {
    const int32_t cell = llama_ridgefill_cells::find(kv, seq_id, pos);

    const auto & cells = kv.get_cells(seq_id).seq_pos_get(seq_id);
    if (const auto next = cells.upper_bound({ pos, cell % kv.get_size() });
        cell >= 0 && next != cells.end() && next->first == pos) {
        throw std::runtime_error(
            format("sequence %d has several cells at position %d (hint: splice prompts of text only)", seq_id, pos));
    }
    return cell;
}

// what no later row can attend to need not be there
static std::vector<splice_run> splice_runs(const llama_kv_cache &                 kv,
                                           llama_seq_id                           seq_id_src,
                                           llama_seq_id                           seq_id_dst,
                                           llama_pos                              p0,
                                           llama_pos                              p1,
                                           const std::function<bool(llama_pos)> & is_left) {
    std::vector<splice_run> res;
    for (llama_pos pos = p0; pos < p1; ++pos) {
        const int32_t src = splice_find(kv, seq_id_src, pos);
        const int32_t dst = splice_find(kv, seq_id_dst, pos);
        if (src < 0 || dst < 0) {
            if (is_left(pos)) {
                continue;
            }
            throw std::runtime_error(
                format("position %d of sequence %d is not in the cache (hint: sliding windows drop old cells unless "
                       "they are kept in full)",
                       pos, src < 0 ? seq_id_src : seq_id_dst));
        }
        if (kv.get_cells(seq_id_dst).seq_count(dst % kv.get_size()) > 1) {
            throw std::runtime_error(
                format("position %d of sequence %d shares its cell with another sequence (hint: give the sequences "
                       "prefills of their own)",
                       pos, seq_id_dst));
        }
        if (!res.empty() && res.back().src + res.back().n == (size_t) src &&
            res.back().dst + res.back().n == (size_t) dst) {
            res.back().n++;
        } else {
            res.push_back({ (size_t) src, (size_t) dst, 1 });
        }
    }
    return res;
}

// n_rows pieces of `size` bytes, `stride` bytes apart, from one place in a tensor to another
static void splice_copy(ggml_tensor * t,
                        size_t        offs_src,
                        size_t        offs_dst,
                        size_t        size,
                        size_t        n_rows = 1,
                        size_t        stride = 0) {
    const size_t n_max = std::max<size_t>(1, SPLICE_CHUNK / size);

    std::vector<uint8_t> buf(std::min(n_rows, n_max) * size);
    for (size_t i = 0; i < n_rows; i += n_max) {
        const size_t n = std::min(n_max, n_rows - i);
        ggml_backend_tensor_get_2d(t, buf.data(), offs_src + i * stride, size, n, stride, size);
        ggml_backend_tensor_set_2d(t, buf.data(), offs_dst + i * stride, size, n, stride, size);
    }
}

static void splice_k(const llama_kv_cache & kv, int32_t il, const splice_run & run) {
    auto * k = kv.get_k_storage(il);
    splice_copy(k, run.src * k->nb[1], run.dst * k->nb[1], k->nb[1], run.n, k->nb[1]);
}

static void splice_v(const llama_kv_cache & kv, int32_t il, const splice_run & run) {
    // the cache shows its V only as the view that a graph reads
    ggml_context_ptr          ctx(ggml_init({ ggml_tensor_overhead(), nullptr, true }));
    llama_kv_cache::slot_info sinfo = {};
    const auto *              view  = kv.get_v(ctx.get(), il, 1, sinfo);
    auto *                    v     = view->view_src;

    if (view->nb[1] <= view->nb[2]) {
        splice_copy(v, run.src * v->nb[1], run.dst * v->nb[1], v->nb[1], run.n, v->nb[1]);
        return;
    }
    // transposed: the values of one dimension lie together
    const size_t size_el = ggml_element_size(v);
    const size_t kv_size = kv.get_size();
    const auto   offs    = [&](size_t cell) {
        return cell / kv_size * v->nb[2] + cell % kv_size * size_el;
    };
    splice_copy(v, offs(run.src), offs(run.dst), run.n * size_el, v->ne[0], kv_size * size_el);
}

// the cell of a sequence's recurrent state after the row before p1
static int32_t splice_find_state(const llama_memory_recurrent & recr, llama_seq_id seq_id, llama_pos p1) {
    const int32_t cell = (uint32_t) seq_id < recr.size ? recr.cells[seq_id].tail : -1;
    if (cell < 0) {
        throw std::runtime_error(format("sequence %d has no recurrent state", seq_id));
    }
    if (recr.cells[cell].pos + 1 != p1) {
        throw std::runtime_error(
            format("the recurrent state of sequence %d is that after position %d, expected %d (hint: a state is "
                   "replaced as a whole, at the end of both sequences)",
                   seq_id, recr.cells[cell].pos, p1 - 1));
    }
    return cell;
}

static void splice_state(llama_memory_recurrent & recr, int32_t il, int32_t src, int32_t dst) {
    const auto row = [&](int32_t cell) {
        return recr.cells[cell].src < 0 ? cell : recr.cells[cell].src;
    };
    for (auto * t : { recr.r_l[il], recr.s_l[il], recr.p_l[il] }) {
        if (t && t->nb[1] > 0) {
            splice_copy(t, row(src) * t->nb[1], row(dst) * t->nb[1], t->nb[1]);
        }
    }
}

static void splice(llama_context & ctx,
                   llama_seq_id    seq_id_src,
                   llama_seq_id    seq_id_dst,
                   llama_pos       p0,
                   llama_pos       p1,
                   int32_t         layer_first,
                   int32_t         layer_last,
                   int32_t         components) {
    llama_ridgefill_check_seq(&ctx, seq_id_src);
    llama_ridgefill_check_seq(&ctx, seq_id_dst);
    if (seq_id_src == seq_id_dst) {
        throw std::runtime_error(format("expected two sequences, found %d twice", seq_id_src));
    }

    constexpr int32_t all = LLAMA_RIDGEFILL_COMPONENT_K | LLAMA_RIDGEFILL_COMPONENT_V | LLAMA_RIDGEFILL_COMPONENT_STATE;
    if (components == 0 || (components & ~all)) {
        throw std::runtime_error(format("expected components from 1 to %d, found %d", all, components));
    }

    const splice_memory mem(ctx);
    if (layer_first < 0 || layer_first > layer_last || layer_last >= (int32_t) mem.hparams.n_layer()) {
        throw std::runtime_error(format("expected layers from 0 to %u in ascending order, found %d to %d",
                                        mem.hparams.n_layer() - 1, layer_first, layer_last));
    }
    int32_t found = 0;
    for (int32_t il = layer_first; il <= layer_last; ++il) {
        found |= mem.components(il);
    }
    for (const auto & [component, name] :
         { std::make_pair(LLAMA_RIDGEFILL_COMPONENT_K, "K"), std::make_pair(LLAMA_RIDGEFILL_COMPONENT_V, "V"),
           std::make_pair(LLAMA_RIDGEFILL_COMPONENT_STATE, "recurrent state") }) {
        if (components & ~found & component) {
            throw std::runtime_error(
                format("no layer from %d to %d has a %s of its own (hint: llama_ridgefill_layer_components)",
                       layer_first, layer_last, name));
        }
    }

    // shifts and copies that wait for the next batch
    ctx.sched_reserve();
    ctx.memory_update(false);
    ctx.ridgefill.update();
    ctx.synchronize();

    auto & marks = ctx.get_memory()->ridgefill;

    const llama_pos end = ctx.get_memory()->seq_pos_max(seq_id_dst) + 1;
    p0                  = p0 < 0 ? 0 : p0;
    p1                  = p1 < 0 ? end : p1;
    if (p0 >= p1 || p1 > end) {
        throw std::runtime_error(
            format("expected ascending positions in [0, %d) of sequence %d, found [%d, %d)", end, seq_id_dst, p0, p1));
    }
    for (const llama_seq_id seq_id : { seq_id_src, seq_id_dst }) {
        if (marks.has_pending(seq_id, p0, p1)) {
            throw std::runtime_error(
                format("rows of sequence %d wait for the end of their prompt (hint: splice after its last batch, or "
                       "without selected rows)",
                       seq_id));
        }
    }

    std::vector<std::pair<llama_kv_cache *, std::vector<splice_run>>> runs;
    if (components & (LLAMA_RIDGEFILL_COMPONENT_K | LLAMA_RIDGEFILL_COMPONENT_V)) {
        for (auto * kv : mem.caches()) {
            const auto is_left = [&](llama_pos pos) {
                return kv == mem.kvs.swa &&
                       llama_hparams::is_masked_swa(mem.hparams.n_swa, mem.hparams.swa_type, pos, end);
            };
            runs.emplace_back(kv, splice_runs(*kv, seq_id_src, seq_id_dst, p0, p1, is_left));
        }
    }
    int32_t src = -1;
    int32_t dst = -1;
    if (components & LLAMA_RIDGEFILL_COMPONENT_STATE) {
        if (mem.recr->n_rs_seq > 0) {
            throw std::runtime_error("the context keeps snapshots for the rollback of recurrent state");
        }
        src = splice_find_state(*mem.recr, seq_id_src, p1);
        dst = splice_find_state(*mem.recr, seq_id_dst, p1);
        if (mem.recr->cells[dst].seq_id.size() > 1) {
            throw std::runtime_error(
                format("sequence %d shares its recurrent state with another sequence (hint: give the sequences "
                       "prefills of their own)",
                       seq_id_dst));
        }
    }

    // nothing fails from here on
    for (const auto & [kv, cur] : runs) {
        for (const uint32_t il : kv->get_layer_ids()) {
            if ((int32_t) il < layer_first || (int32_t) il > layer_last) {
                continue;
            }
            for (const auto & run : cur) {
                if (components & LLAMA_RIDGEFILL_COMPONENT_K) {
                    splice_k(*kv, il, run);
                }
                if (components & ~(mem.hparams.is_mla() ? all : 0) & LLAMA_RIDGEFILL_COMPONENT_V) {
                    splice_v(*kv, il, run);
                }
            }
        }
    }
    if (dst >= 0) {
        // the state of the other layers stays where it is
        for (int32_t il = layer_first; il <= layer_last; ++il) {
            splice_state(*mem.recr, il, src, dst);
        }
    }
    marks.splice(seq_id_dst, p0, p1);
}

int32_t llama_ridgefill_layer_components(const llama_context * ctx, int32_t layer) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() { return splice_memory(*ctx).components(layer); });
}

int32_t llama_ridgefill_seq_splice(llama_context * ctx,
                                   llama_seq_id    seq_id_src,
                                   llama_seq_id    seq_id_dst,
                                   llama_pos       p0,
                                   llama_pos       p1,
                                   int32_t         layer_first,
                                   int32_t         layer_last,
                                   int32_t         components) {
    return llama_ridgefill_guarded<int32_t>(-1, [&]() {
        splice(*ctx, seq_id_src, seq_id_dst, p0, p1, layer_first, layer_last, components);
        return 0;
    });
}
