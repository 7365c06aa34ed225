#include "llama-ridgefill-maps.h"

#include "llama-impl.h"
#include "llama-mmap.h"
#include "llama-model.h"
#include "llama-ridgefill-gguf.h"

#include <algorithm>
#include <cinttypes>
#include <stdexcept>

static constexpr uint32_t RIDGEFILL_FORMAT_VERSION = 1;
static constexpr size_t   RIDGEFILL_MAX_SPLITS     = 64;

// the file is read in pieces of this size where the device memory cannot be written directly
static constexpr size_t RIDGEFILL_READ_SIZE = 4u * 1024 * 1024;

//
// fingerprint
//

// the layer in "blk.<l>.<rest>", -1 if the name has no such form
static int32_t parse_layer(const std::string & name, std::string & rest) {
    int32_t il = -1;
    int     n  = 0;
    if (sscanf(name.c_str(), "blk.%9d.%n", &il, &n) != 1 || n == 0 || il < 0 ||
        name != format("blk.%d.", il) + name.substr(n)) {
        return -1;
    }
    rest = name.substr(n);
    return il;
}

static bool ends_with(const std::string & str, const std::string & suffix) {
    return str.size() >= suffix.size() && str.compare(str.size() - suffix.size(), suffix.size(), suffix) == 0;
}

llama_ridgefill_fingerprint llama_ridgefill_fingerprint_of(const llama_model & model) {
    if (model.vocab.get_type() == LLAMA_VOCAB_TYPE_NONE) {
        throw std::runtime_error(
            "the model has no vocabulary (hint: maps are made and checked for the tokens of a model)");
    }

    llama_ridgefill_fnv vocab;
    for (uint32_t i = 0; i < model.vocab.n_tokens(); ++i) {
        vocab.add(std::string(model.vocab.token_get_text(i)));
    }

    std::map<std::string, const ggml_tensor *> norms;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        std::string rest;
        if (!ends_with(name, "norm.weight") || tensor->type != GGML_TYPE_F32 || tensor->buffer == nullptr) {
            continue;
        }
        if (parse_layer(name, rest) < (int32_t) model.hparams.n_layer()) {
            norms[name] = tensor;
        }
    }

    llama_ridgefill_fnv weights;
    for (const auto & [name, tensor] : norms) {
        uint8_t      data[256];
        const size_t size = std::min(sizeof(data), ggml_nbytes(tensor));
        ggml_backend_tensor_get(tensor, data, 0, size);
        weights.add(name);
        weights.add(data, size);
    }

    llama_ridgefill_fingerprint res;
    snprintf(res.vocab, sizeof(res.vocab), "%016" PRIx64, vocab.value);
    snprintf(res.weights, sizeof(res.weights), "%016" PRIx64, weights.value);
    return res;
}

//
// llama_ridgefill
//

int64_t llama_ridgefill_map::width() const {
    return w ? w->ne[1] : b->ne[1];
}

size_t llama_ridgefill::size() const {
    size_t res = 0;
    for (const auto & buf : bufs) {
        res += ggml_backend_buffer_get_size(buf.get());
    }
    return res;
}

static void check_base(const llama_ridgefill_gguf &   gguf,
                       const llama_model &            model,
                       const llama_ridgefill_params & params) {
    gguf.expect_str("general.type", "adapter", "this is not an adapter, is it a model?");
    gguf.expect_str("adapter.type", "ridgefill", "this is another kind of adapter");
    gguf.expect_str("general.architecture", llm_arch_name(model.arch), "the maps were made for another model");

    gguf.expect_u32("ridgefill.format_version", RIDGEFILL_FORMAT_VERSION,
                    "make the maps again with this version of pyridgefill");
    gguf.expect_u32("ridgefill.base.block_count", model.hparams.n_layer(), "the maps were made for another model");
    gguf.expect_u32("ridgefill.base.embedding_length", model.hparams.n_embd, "the maps were made for another model");
    gguf.expect_u32("ridgefill.base.vocab_size", model.vocab.n_tokens(), "the maps were made for another model");

    // the keys must be there even if their values are not compared
    const auto vocab   = gguf.get_str("ridgefill.base.vocab_hash");
    const auto weights = gguf.get_str("ridgefill.base.weights_hash");

    if (!params.skip_fingerprint) {
        const auto   fp   = llama_ridgefill_fingerprint_of(model);
        const char * hint = "the maps were made for another model of the same shape; skip_fingerprint accepts them";
        if (vocab != fp.vocab) {
            throw std::runtime_error(format("ridgefill.base.vocab_hash: expected '%s', found '%s' (hint: %s)", fp.vocab,
                                            vocab.c_str(), hint));
        }
        if (weights != fp.weights) {
            throw std::runtime_error(format("ridgefill.base.weights_hash: expected '%s', found '%s' (hint: %s)",
                                            fp.weights, weights.c_str(), hint));
        }
    }
}

static void read_splits(const llama_ridgefill_gguf & gguf, llama_ridgefill & maps) {
    const int32_t n_layer = maps.model.hparams.n_layer();

    const auto splits  = gguf.get_arr_i32("ridgefill.splits");
    const auto targets = gguf.get_arr_str("ridgefill.targets");
    const auto ranks   = gguf.get_arr_i32("ridgefill.ranks");

    if (splits.empty() || splits.size() > RIDGEFILL_MAX_SPLITS) {
        throw std::runtime_error(
            format("ridgefill.splits: expected 1 to %zu entries, found %zu", RIDGEFILL_MAX_SPLITS, splits.size()));
    }
    if (targets.size() != splits.size() || ranks.size() != splits.size()) {
        throw std::runtime_error(
            format("ridgefill.targets, ridgefill.ranks: expected %zu entries as in ridgefill.splits, found %zu and %zu",
                   splits.size(), targets.size(), ranks.size()));
    }

    for (size_t i = 0; i < splits.size(); ++i) {
        if (splits[i] < 0 || splits[i] > n_layer - 2 || (i > 0 && splits[i] <= splits[i - 1])) {
            throw std::runtime_error(
                format("ridgefill.splits: expected ascending values in [0, %d], found %d (hint: there must be a layer "
                       "above the split)",
                       n_layer - 2, splits[i]));
        }
        if (ranks[i] < 0) {
            throw std::runtime_error(format("ridgefill.ranks: expected values of at least 0, found %d", ranks[i]));
        }
        auto & cur = maps.splits[splits[i]];
        cur.rank   = ranks[i];
        if (targets[i] == "input") {
            cur.target = LLAMA_RIDGEFILL_TARGET_INPUT;
        } else if (targets[i] == "proj") {
            cur.target = LLAMA_RIDGEFILL_TARGET_PROJ;
        } else {
            throw std::runtime_error(
                format("ridgefill.targets: expected 'input' or 'proj', found '%s'", targets[i].c_str()));
        }
    }

    const auto norm = gguf.get_str("ridgefill.feature_norm");
    if (norm != "rms" && norm != "none") {
        throw std::runtime_error(format("ridgefill.feature_norm: expected 'rms' or 'none', found '%s'", norm.c_str()));
    }
    maps.feature_norm = norm == "rms";
    if (maps.feature_norm) {
        maps.feature_norm_eps = gguf.get_f32("ridgefill.feature_norm_eps", 0.0f, 1.0f);
    }

    maps.recommended_split = gguf.get_i32("ridgefill.recommended.split", splits.back(), -1, n_layer);
    maps.recommended_sink  = gguf.get_i32("ridgefill.recommended.sink", maps.recommended_sink, 0, INT32_MAX);
    maps.recommended_tail  = gguf.get_i32("ridgefill.recommended.tail", maps.recommended_tail, 1, INT32_MAX);
    maps.recommended_min_prompt =
        gguf.get_i32("ridgefill.recommended.min_prompt", maps.recommended_min_prompt, 0, INT32_MAX);

    if (maps.splits.count(maps.recommended_split) == 0) {
        throw std::runtime_error(
            format("ridgefill.recommended.split: expected one of ridgefill.splits, found %d", maps.recommended_split));
    }
}

// "ridgefill.<split>.blk.<l>.<site>.<part>" -> the place where the tensor belongs
static ggml_tensor ** find_place(llama_ridgefill & maps, const std::string & name, int32_t & il) {
    int32_t split = -1;
    int     n     = 0;
    if (sscanf(name.c_str(), "ridgefill.%9d.%n", &split, &n) != 1 || n == 0 ||
        name != format("ridgefill.%d.", split) + name.substr(n)) {
        throw std::runtime_error(format(
            "tensor '%s': expected a name of the form ridgefill.<split>.blk.<layer>.<site>.<part>", name.c_str()));
    }

    const auto it = maps.splits.find(split);
    if (it == maps.splits.end()) {
        throw std::runtime_error(format("tensor '%s': split %d is not in ridgefill.splits", name.c_str(), split));
    }

    const std::string blk = name.substr(n);
    std::string       rest;
    il = parse_layer(blk, rest);
    if (il <= split || il >= (int32_t) maps.model.hparams.n_layer()) {
        throw std::runtime_error(format("tensor '%s': expected a layer in (%d, %d), found %d", name.c_str(), split,
                                        (int) maps.model.hparams.n_layer(), il));
    }

    const auto        dot  = blk.rfind('.');
    const std::string part = blk.substr(dot + 1);
    if (dot == std::string::npos || blk.size() - rest.size() >= dot) {
        throw std::runtime_error(format("tensor '%s': the name has no site", name.c_str()));
    }
    const std::string site = blk.substr(0, dot);

    if (it->second.target == LLAMA_RIDGEFILL_TARGET_INPUT && site != format("blk.%d.input", il)) {
        throw std::runtime_error(
            format("tensor '%s': expected the site 'input', which is the target of split %d", name.c_str(), split));
    }

    auto &         map   = it->second.sites[site];
    ggml_tensor ** place = part == "weight"   ? &map.w :
                           part == "weight_a" ? &map.a :
                           part == "weight_b" ? &map.b :
                           part == "bias"     ? &map.bias :
                                                nullptr;
    if (place == nullptr) {
        throw std::runtime_error(
            format("tensor '%s': expected it to end in .weight, .weight_a, .weight_b or .bias", name.c_str()));
    }
    if (*place != nullptr) {
        throw std::runtime_error(format("tensor '%s': is in the file twice", name.c_str()));
    }
    return place;
}

static void check_shape(const ggml_tensor * t, int64_t ne0, int64_t ne1) {
    if ((ne0 >= 0 && t->ne[0] != ne0) || (ne1 >= 0 && t->ne[1] != ne1) || t->ne[2] != 1 || t->ne[3] != 1) {
        const auto dim = [](int64_t ne) {
            return ne < 0 ? std::string("any") : std::to_string(ne);
        };
        throw std::runtime_error(
            format("tensor '%s': expected shape [%s, %s], found [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
                   t->name, dim(ne0).c_str(), dim(ne1).c_str(), t->ne[0], t->ne[1], t->ne[2], t->ne[3]));
    }
}

static void check_map(const std::string &                site,
                      const llama_ridgefill_map &        map,
                      int32_t                            split,
                      const llama_ridgefill_split_maps & maps,
                      int64_t                            n_embd) {
    if (map.w ? (map.a || map.b) : !(map.a && map.b)) {
        throw std::runtime_error(format(
            "map 'ridgefill.%d.%s': expected either .weight or both of .weight_a and .weight_b", split, site.c_str()));
    }

    const int64_t rank = map.w ? 0 : map.a->ne[1];
    if (rank != maps.rank) {
        throw std::runtime_error(format("map 'ridgefill.%d.%s': expected rank %d as in ridgefill.ranks, found %d",
                                        split, site.c_str(), maps.rank, (int) rank));
    }

    const int64_t width = maps.target == LLAMA_RIDGEFILL_TARGET_INPUT ? n_embd : -1;
    if (map.w) {
        check_shape(map.w, n_embd, width);
    } else {
        check_shape(map.a, n_embd, -1);
        check_shape(map.b, map.a->ne[1], width);
    }
    if (map.bias) {
        check_shape(map.bias, map.width(), 1);
    }

    // Q8_1 and Q8_K only hold activations
    const auto is_weight = [](ggml_type type) {
        return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
               (ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
    };
    for (const auto * t : { map.w, map.a, map.b }) {
        if (t && !is_weight(t->type)) {
            throw std::runtime_error(format("tensor '%s': expected type f32, f16, bf16 or a quantized type, found %s",
                                            t->name, ggml_type_name(t->type)));
        }
    }
    if (map.bias && map.bias->type != GGML_TYPE_F32) {
        throw std::runtime_error(
            format("tensor '%s': expected type f32, found %s", map.bias->name, ggml_type_name(map.bias->type)));
    }
}

// read the data of a tensor into device memory, piece by piece
static void read_tensor(llama_file &                 file,
                        const llama_ridgefill_gguf & gguf,
                        ggml_tensor *                t,
                        llama_ridgefill_fnv &        hash,
                        std::vector<uint8_t> &       buf) {
    const size_t size = ggml_nbytes(t);
    const size_t row  = ggml_row_size(t->type, t->ne[0]);
    const size_t step = std::max(row, RIDGEFILL_READ_SIZE / row * row);

    file.seek(gguf.tensor_offset(t->name), SEEK_SET);
    hash.add(std::string(t->name));

    for (size_t offs = 0; offs < size; offs += step) {
        const size_t n = std::min(step, size - offs);

        uint8_t * dst = ggml_backend_buffer_is_host(t->buffer) ? (uint8_t *) t->data + offs : nullptr;
        if (!dst) {
            buf.resize(n);
        }
        uint8_t * data = dst ? dst : buf.data();

        file.read_raw(data, n);
        if (!ggml_validate_row_data(t->type, data, n)) {
            throw std::runtime_error(
                format("tensor '%s': holds values that are not finite (hint: make the maps again)", t->name));
        }
        hash.add(data, n);
        if (!dst) {
            ggml_backend_tensor_set(t, data, offs, n);
        }
    }
}

void llama_ridgefill::load(const char * path, const llama_ridgefill_params & params) {
    llama_ridgefill_gguf gguf(path);

    check_base(gguf, model, params);
    read_splits(gguf, *this);
    load_heads(gguf);
    gguf_kv = gguf.dump();

    // where each tensor goes
    std::map<ggml_backend_buffer_type_t, ggml_context *> ctx_map;
    std::vector<ggml_tensor *>                           tensors;

    const size_t n_tensors = gguf.n_tensors();
    for (ggml_tensor * cur = gguf.first_tensor(); cur; cur = gguf.next_tensor(cur)) {
        gguf.check_data(cur);

        int32_t        il    = -1;
        ggml_tensor ** place = find_place(*this, cur->name, il);

        // plain memory of the layer's device, never a buffer type that repacks its tensors
        auto * buft = model.select_buft(il);

        auto & ctx = ctx_map[buft];
        if (!ctx) {
            ctx = ggml_init({ n_tensors * ggml_tensor_overhead(), nullptr, true });
            if (!ctx) {
                throw std::runtime_error("out of memory");
            }
            ctxs.emplace_back(ctx);
        }

        *place = ggml_dup_tensor(ctx, cur);
        ggml_set_name(*place, cur->name);
        tensors.push_back(*place);
    }

    for (const auto & [split, cur] : splits) {
        if (cur.sites.empty()) {
            throw std::runtime_error(format("ridgefill.splits: there are no tensors for split %d", split));
        }
        for (const auto & [site, map] : cur.sites) {
            check_map(site, map, split, cur, model.hparams.n_embd);
        }
    }

    for (const auto & [buft, ctx] : ctx_map) {
        ggml_backend_buffer_ptr buf{ ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft) };
        if (!buf) {
            throw std::runtime_error(format("failed to allocate the maps in %s memory", ggml_backend_buft_name(buft)));
        }
        ggml_backend_buffer_set_usage(buf.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        LLAMA_LOG_INFO("%s: %10s RidgeFill maps buffer size = %8.2f MiB\n", __func__,
                       ggml_backend_buffer_name(buf.get()), ggml_backend_buffer_get_size(buf.get()) / 1024.0 / 1024.0);
        bufs.emplace_back(std::move(buf));
    }

    llama_ridgefill_fnv  fnv;
    llama_file           file(path, "rb");
    std::vector<uint8_t> buf;
    for (auto * t : tensors) {
        read_tensor(file, gguf, t, fnv, buf);
    }
    fnv.add(&feature_norm, sizeof(feature_norm));
    fnv.add(&feature_norm_eps, sizeof(feature_norm_eps));
    hash = fnv.value;
}
