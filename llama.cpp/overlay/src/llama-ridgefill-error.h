#pragma once

#include <exception>
#include <string>

// what llama_ridgefill_last_error returns on this thread
// logged unless empty: llama_decode has no other way to tell the reason to programs that do not know RidgeFill
void         llama_ridgefill_set_error(const std::string & msg, bool log = true);
const char * llama_ridgefill_get_error();

// run `fn`, return `failed` and keep the message if it throws; the caller reports it
template <typename T, typename F> T llama_ridgefill_guarded(T failed, const F & fn) {
    llama_ridgefill_set_error("");
    try {
        return fn();
    } catch (const std::exception & err) {
        llama_ridgefill_set_error(err.what(), false);
        return failed;
    }
}
