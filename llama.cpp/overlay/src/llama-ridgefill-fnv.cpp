#include "llama-ridgefill-maps.h"

void llama_ridgefill_fnv::add(const void * data, size_t size) {
    const auto * bytes = (const uint8_t *) data;
    for (size_t i = 0; i < size; ++i) {
        value = (value ^ bytes[i]) * 0x100000001b3ull;
    }
}

void llama_ridgefill_fnv::add(const std::string & str) {
    add(str.c_str(), str.size() + 1);
}
