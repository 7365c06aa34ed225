#pragma once

#include "ggml-cpp.h"
#include "gguf.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// the header of an untrusted GGUF file; every error names the key or tensor
class llama_ridgefill_gguf {
  public:
    explicit llama_ridgefill_gguf(const char * path);

    std::string get_str(const char * key) const;
    float       get_f32(const char * key, float min, float max) const;

    // optional keys
    int32_t get_i32(const char * key, int32_t value_default, int32_t min, int32_t max) const;
    int32_t get_u32(const char * key, uint32_t value_default, uint32_t min, uint32_t max) const;  // max <= INT32_MAX

    bool has(const char * key) const;

    std::vector<int32_t>     get_arr_i32(const char * key) const;
    std::vector<std::string> get_arr_str(const char * key) const;

    void expect_str(const char * key, const char * expected, const char * hint) const;
    void expect_u32(const char * key, uint32_t expected, const char * hint) const;

    // scalars as strings
    std::vector<std::pair<std::string, std::string>> dump() const;

    size_t        n_tensors() const;
    ggml_tensor * first_tensor() const;
    ggml_tensor * next_tensor(ggml_tensor * t) const;
    size_t        tensor_offset(const char * name) const;   // in the file
    void          check_data(const ggml_tensor * t) const;  // not empty, and inside the file

  private:
    int64_t find(const char * key, gguf_type type) const;

    size_t file_size = 0;

    gguf_context_ptr ctx_gguf;
    ggml_context_ptr ctx;
};
