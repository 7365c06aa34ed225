#include "llama-ridgefill-error.h"

#include "llama-impl.h"
#include "llama-ridgefill.h"

static std::string & last_error() {
    static thread_local std::string msg;
    return msg;
}

void llama_ridgefill_set_error(const std::string & msg, bool log) {
    if (log && !msg.empty()) {
        LLAMA_LOG_ERROR("RidgeFill: %s\n", msg.c_str());
    }
    last_error() = msg;
}

const char * llama_ridgefill_get_error() {
    return last_error().c_str();
}

const char * llama_ridgefill_last_error(void) {
    return llama_ridgefill_get_error();
}
