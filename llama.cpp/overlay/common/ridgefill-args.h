#pragma once

#include "llama-ridgefill.h"

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

    // rows can be run again: a request may select rows, and filled rows can be healed
    bool keep_states = false;
    bool heal        = false;

    llama_ridgefill_select select  = LLAMA_RIDGEFILL_SELECT_NONE;
    double                 budget  = 0.0;

    int32_t n_before = 0;
    int32_t n_after  = 0;
    int32_t n_query  = 0;

    std::vector<llama_ridgefill_head> heads;

    std::vector<std::pair<std::string, std::string>> meta;
};

struct common_params_ridgefill {
    std::string maps; // path of the maps file, empty = off

    // -1 = what the maps file recommends
    int32_t split      = -1;
    int32_t tail       = -1;
    int32_t sink       = -1;
    int32_t min_prompt = -1;

    // server only; -1 or empty = the default
    llama_ridgefill_select select  = LLAMA_RIDGEFILL_SELECT_NONE;
    double                 budget  = -1.0; // at most 1: a share of the filled rows, else rows
    bool                   heal    = false;

    int32_t n_before = -1;
    int32_t n_after  = -1;
    int32_t n_query  = -1;

    std::vector<llama_ridgefill_head> heads;

    common_ridgefill_info info;
};

// none, stride, attention
const char *           common_ridgefill_select_name (llama_ridgefill_select type);
llama_ridgefill_select common_ridgefill_parse_select(const std::string & name); // throws std::invalid_argument

// throws std::invalid_argument
double common_ridgefill_check_budget(double budget);

// --ridgefill-*
void common_ridgefill_add_args(const std::function<void(common_arg)> & add_opt);

// throws std::invalid_argument if the maps cannot serve together with the other options
void common_ridgefill_check(const common_params & params);

// after all options are known: checks them for an example (enum llama_example) and reserves memory for the maps
void common_ridgefill_postprocess(common_params & params, int example);
