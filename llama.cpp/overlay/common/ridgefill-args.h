#pragma once

#include "llama-ridgefill.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

struct common_arg;
struct common_file_info;
struct common_params;
struct common_preset;
struct common_preset_context;

// what is known once the maps are loaded
struct common_ridgefill_info {
    bool        loaded = false;
    std::string file;      // name without folders
    uint64_t    hash = 0;
    size_t      size = 0;  // bytes on all devices

    std::vector<int32_t> splits;

    // the settings in use
    int32_t split      = -1;
    int32_t tail       = 0;
    int32_t sink       = 0;
    int32_t min_prompt = 0;

    // rows can be run again: a request may select rows, and filled rows can be healed
    bool keep_states = false;
    bool heal        = false;

    std::string no_states;  // why the recommended selection is not possible

    llama_ridgefill_select select = LLAMA_RIDGEFILL_SELECT_NONE;
    double                 budget = 0.0;

    int32_t n_before = 0;
    int32_t n_after  = 0;
    int32_t n_query  = 0;

    std::vector<llama_ridgefill_head> heads;

    std::vector<std::pair<std::string, std::string>> meta;
};

using common_ridgefill_info_ptr = std::shared_ptr<const common_ridgefill_info>;

// the one place that says what is loaded: copies of the params share it, so that all threads of a server see the maps
// that the last load has brought, also those whose copy of the params is older
class common_ridgefill_loaded {
  public:
    // never null, stays valid when other maps are loaded
    common_ridgefill_info_ptr get() const {
        std::lock_guard<std::mutex> lock(mutex);
        return info;
    }

    void set(common_ridgefill_info value) {
        auto                        next = std::make_shared<const common_ridgefill_info>(std::move(value));
        std::lock_guard<std::mutex> lock(mutex);
        info = std::move(next);
    }

  private:
    mutable std::mutex        mutex;
    common_ridgefill_info_ptr info = std::make_shared<const common_ridgefill_info>();
};

struct common_params_ridgefill {
    std::string maps;        // path of the maps file, empty = off

    bool in_config = false;  // a config file, which all programs and models share, has settings

    // -1 = what the maps file recommends
    int32_t split      = -1;
    int32_t tail       = -1;
    int32_t sink       = -1;
    int32_t min_prompt = -1;

    // server only; -1 or empty = what the maps file recommends
    int32_t select = -1;    // llama_ridgefill_select
    double  budget = -1.0;  // share of the filled rows
    bool    heal   = false;

    int32_t n_before = -1;
    int32_t n_after  = -1;
    int32_t n_query  = -1;

    std::vector<llama_ridgefill_head> heads;

    std::vector<std::string> exact_roles;  // of chat messages whose rows run exact

    std::shared_ptr<common_ridgefill_loaded> loaded = std::make_shared<common_ridgefill_loaded>();
};

// none, stride, attention
const char *           common_ridgefill_select_name(llama_ridgefill_select type);
llama_ridgefill_select common_ridgefill_parse_select(const std::string & name);  // throws std::invalid_argument

// throws std::invalid_argument
double common_ridgefill_check_budget(double budget);

// system, developer, user, assistant, tool, and tools: their definitions
// throws std::invalid_argument
std::string common_ridgefill_check_role(const std::string & role);

// --ridgefill-*
void common_ridgefill_add_args(const std::function<void(common_arg)> & add_opt);

// throws std::invalid_argument if the maps cannot serve together with the other options
void common_ridgefill_check(const common_params & params);

// throws std::invalid_argument if options for selected rows are set although no rows can be selected; warns where all
// models share them
void common_ridgefill_check_select(const common_params_ridgefill & params, bool keep_states);

// call after the config files are read
void common_ridgefill_note_config(common_params & params);

// after all options are known: checks them for an example (enum llama_example) and reserves memory for the maps
void common_ridgefill_postprocess(common_params & params, int example);

//
// models in a folder (--models-dir): MODEL.ridgefill.gguf beside MODEL.gguf has its maps
//

// the files that are no maps
std::vector<common_file_info> common_ridgefill_skip_maps(std::vector<common_file_info> files);

// adds the maps beside a model, if any, to its options
void common_ridgefill_find_maps(const common_preset_context & ctx, common_preset & preset, const std::string & model);
