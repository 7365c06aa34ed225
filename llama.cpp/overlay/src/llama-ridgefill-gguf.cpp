#include "llama-ridgefill-gguf.h"

#include "llama-impl.h"
#include "llama-mmap.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

// the file, as the GGUF reader sees it: the reader only logs what is wrong, so where it stopped is remembered here
struct gguf_source {
    llama_file  file;
    size_t      pos = 0;  // behind the last byte that was read
    std::string name;     // the last name of a key or tensor that was read, or a value that looks like one

    explicit gguf_source(const char * path) : file(path, "rb") {}

    static size_t read(void * user_data, void * output, uint64_t offset, size_t len) {
        auto *       self = (gguf_source *) user_data;
        const size_t size = self->file.size();
        if (offset >= size) {
            return 0;
        }
        const size_t n = std::min<size_t>(len, size - offset);
        try {
            if (offset != self->pos) {
                self->file.seek(offset, SEEK_SET);
            }
            self->file.read_raw(output, n);
        } catch (const std::exception &) {
            return 0;
        }
        self->pos = offset + n;

        const char * text = (const char *) output;
        if (n == len && n > 8 && n <= 256 && std::all_of(text, text + n, is_name_char)) {
            self->name.assign(text, n);
        }
        return n;
    }

    static bool is_name_char(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
               c == '-';
    }

    std::string where() const {
        return name.empty() ? format("byte %zu of %zu", pos, file.size()) :
                              format("byte %zu of %zu, behind '%s'", pos, file.size(), name.c_str());
    }
};

static std::unique_ptr<gguf_source> open_source(const char * path) {
    try {
        return std::make_unique<gguf_source>(path);
    } catch (const std::exception & err) {
        throw std::runtime_error(format("cannot read '%s': %s", path, err.what()));
    }
}

llama_ridgefill_gguf::llama_ridgefill_gguf(const char * path) {
    const auto source = open_source(path);

    file_size = source->file.size();

    ggml_context * ctx_init = nullptr;
    ctx_gguf.reset(gguf_init_from_callback(gguf_source::read, source.get(), 0, file_size,
                                           { /*.no_alloc =*/true, /*.ctx =*/&ctx_init }));
    if (!ctx_gguf) {
        throw std::runtime_error(format("not a valid GGUF file: it is damaged at %s (hint: the log says what is wrong)",
                                        source->where().c_str()));
    }
    ctx.reset(ctx_init);

    if (gguf_find_key(ctx_gguf.get(), "split.count") >= 0) {
        throw std::runtime_error(
            "key 'split.count': the file is one of several shards (hint: merge them with llama-gguf-split)");
    }
}

int64_t llama_ridgefill_gguf::find(const char * key, gguf_type type) const {
    const int64_t id = gguf_find_key(ctx_gguf.get(), key);
    if (id < 0) {
        throw std::runtime_error(format("key '%s' is missing (hint: is this a RidgeFill maps file?)", key));
    }
    const gguf_type found = gguf_get_kv_type(ctx_gguf.get(), id);
    if (found != type) {
        throw std::runtime_error(
            format("key '%s': expected type %s, found %s", key, gguf_type_name(type), gguf_type_name(found)));
    }
    return id;
}

bool llama_ridgefill_gguf::has(const char * key) const {
    return gguf_find_key(ctx_gguf.get(), key) >= 0;
}

std::string llama_ridgefill_gguf::get_str(const char * key) const {
    return gguf_get_val_str(ctx_gguf.get(), find(key, GGUF_TYPE_STRING));
}

float llama_ridgefill_gguf::get_f32(const char * key, float min, float max) const {
    const float val = gguf_get_val_f32(ctx_gguf.get(), find(key, GGUF_TYPE_FLOAT32));
    if (!(val >= min && val <= max)) {
        throw std::runtime_error(format("key '%s': expected a value in [%g, %g], found %g", key, min, max, val));
    }
    return val;
}

int32_t llama_ridgefill_gguf::get_i32(const char * key, int32_t value_default, int32_t min, int32_t max) const {
    if (!has(key)) {
        return value_default;
    }
    const int32_t val = gguf_get_val_i32(ctx_gguf.get(), find(key, GGUF_TYPE_INT32));
    if (val < min || val > max) {
        throw std::runtime_error(format("key '%s': expected a value in [%d, %d], found %d", key, min, max, val));
    }
    return val;
}

int32_t llama_ridgefill_gguf::get_u32(const char * key, uint32_t value_default, uint32_t min, uint32_t max) const {
    if (!has(key)) {
        return value_default;
    }
    const uint32_t val = gguf_get_val_u32(ctx_gguf.get(), find(key, GGUF_TYPE_UINT32));
    if (val < min || val > max) {
        throw std::runtime_error(format("key '%s': expected a value in [%u, %u], found %u", key, min, max, val));
    }
    return val;
}

static void check_arr_type(const gguf_context * ctx, int64_t id, const char * key, gguf_type type) {
    const gguf_type found = gguf_get_arr_type(ctx, id);
    if (found != type) {
        throw std::runtime_error(format("key '%s': expected an array of %s, found one of %s", key, gguf_type_name(type),
                                        gguf_type_name(found)));
    }
}

std::vector<int32_t> llama_ridgefill_gguf::get_arr_i32(const char * key) const {
    const int64_t id = find(key, GGUF_TYPE_ARRAY);
    check_arr_type(ctx_gguf.get(), id, key, GGUF_TYPE_INT32);

    const auto * data = (const int32_t *) gguf_get_arr_data(ctx_gguf.get(), id);
    return std::vector<int32_t>(data, data + gguf_get_arr_n(ctx_gguf.get(), id));
}

std::vector<std::string> llama_ridgefill_gguf::get_arr_str(const char * key) const {
    const int64_t id = find(key, GGUF_TYPE_ARRAY);
    check_arr_type(ctx_gguf.get(), id, key, GGUF_TYPE_STRING);

    std::vector<std::string> res;
    for (size_t i = 0; i < gguf_get_arr_n(ctx_gguf.get(), id); ++i) {
        res.emplace_back(gguf_get_arr_str(ctx_gguf.get(), id, i));
    }
    return res;
}

void llama_ridgefill_gguf::expect_str(const char * key, const char * expected, const char * hint) const {
    const std::string found = get_str(key);
    if (found != expected) {
        throw std::runtime_error(
            format("key '%s': expected '%s', found '%s' (hint: %s)", key, expected, found.c_str(), hint));
    }
}

void llama_ridgefill_gguf::expect_u32(const char * key, uint32_t expected, const char * hint) const {
    const uint32_t found = gguf_get_val_u32(ctx_gguf.get(), find(key, GGUF_TYPE_UINT32));
    if (found != expected) {
        throw std::runtime_error(format("key '%s': expected %u, found %u (hint: %s)", key, expected, found, hint));
    }
}

std::vector<std::pair<std::string, std::string>> llama_ridgefill_gguf::dump() const {
    std::vector<std::pair<std::string, std::string>> res;
    for (int64_t i = 0; i < gguf_get_n_kv(ctx_gguf.get()); ++i) {
        if (gguf_get_kv_type(ctx_gguf.get(), i) != GGUF_TYPE_ARRAY) {
            res.emplace_back(gguf_get_key(ctx_gguf.get(), i), gguf_kv_to_str(ctx_gguf.get(), i));
        }
    }
    return res;
}

size_t llama_ridgefill_gguf::n_tensors() const {
    return gguf_get_n_tensors(ctx_gguf.get());
}

ggml_tensor * llama_ridgefill_gguf::first_tensor() const {
    return ggml_get_first_tensor(ctx.get());
}

ggml_tensor * llama_ridgefill_gguf::next_tensor(ggml_tensor * t) const {
    return ggml_get_next_tensor(ctx.get(), t);
}

size_t llama_ridgefill_gguf::tensor_offset(const char * name) const {
    return gguf_get_data_offset(ctx_gguf.get()) +
           gguf_get_tensor_offset(ctx_gguf.get(), gguf_find_tensor(ctx_gguf.get(), name));
}

void llama_ridgefill_gguf::check_data(const ggml_tensor * t) const {
    const size_t offs = tensor_offset(t->name);
    const size_t size = ggml_nbytes(t);
    if (ggml_nelements(t) == 0) {
        throw std::runtime_error(format("tensor '%s': is empty", t->name));
    }
    if (offs + size < offs || offs + size > file_size) {
        throw std::runtime_error(
            format("tensor '%s': expected %zu bytes at offset %zu, the file ends at %zu (hint: it is incomplete)",
                   t->name, size, offs, file_size));
    }
}
