#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

struct common_arg;
struct common_params;

// what is known once the maps are loaded
struct common_ridgefill_info {
    bool        loaded = false;
    std::string file;  // name without folders
    uint64_t    hash = 0;
    size_t      size = 0; // bytes on all devices

    std::vector<int32_t> splits;

    // the settings in use
    int32_t split      = -1;
    int32_t tail       = 0;
    int32_t sink       = 0;
    int32_t min_prompt = 0;

    std::vector<std::pair<std::string, std::string>> meta;
};

struct common_params_ridgefill {
    std::string maps; // path of the maps file, empty = off

    // -1 = what the maps file recommends
    int32_t split      = -1;
    int32_t tail       = -1;
    int32_t sink       = -1;
    int32_t min_prompt = -1;

    common_ridgefill_info info;
};

// --ridgefill-*
void common_ridgefill_add_args(const std::function<void(common_arg)> & add_opt);

// throws std::invalid_argument if the maps cannot serve together with the other options
void common_ridgefill_check(const common_params & params);

// after all options are known: checks them for an example (enum llama_example) and reserves memory for the maps
void common_ridgefill_postprocess(common_params & params, int example);
