#pragma once

#include <string>

// what llama_ridgefill_last_error returns on this thread; logged unless empty
void         llama_ridgefill_set_error(const std::string & msg);
const char * llama_ridgefill_get_error();
