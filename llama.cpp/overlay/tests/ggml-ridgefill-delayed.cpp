// a device for tests that computes on the CPU, but late, and that orders no more than CUDA does
//
// a graph is queued and runs on a thread of the device after a delay; only synchronize and the asynchronous copies wait
// for it, the plain copies of a buffer do not: a caller that reads a tensor too early gets what was there before
//
// loaded with ggml_backend_load, never linked

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <queue>
#include <thread>
#include <unordered_map>
#include <vector>

static constexpr size_t ALIGNMENT = 64;
static constexpr auto   DELAY     = std::chrono::milliseconds(2);

static ggml_backend_dev_t delayed_device(void);

//
// buffers: device memory, which the host reads through copies alone
//

static void buffer_free(ggml_backend_buffer_t buffer) {
    ::operator delete(buffer->context, std::align_val_t(ALIGNMENT));
}

static void * buffer_base(ggml_backend_buffer_t buffer) {
    return buffer->context;
}

static void buffer_memset(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    memset((char *) tensor->data + offset, value, size);
}

static void buffer_set(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    memcpy((char *) tensor->data + offset, data, size);
}

static void buffer_get(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    memcpy(data, (const char *) tensor->data + offset, size);
}

static void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
}

static const ggml_backend_buffer_i buffer_interface = {
    /* .free_buffer   = */ buffer_free,
    /* .get_base      = */ buffer_base,
    /* .init_tensor   = */ nullptr,
    /* .memset_tensor = */ buffer_memset,
    /* .set_tensor    = */ buffer_set,
    /* .get_tensor    = */ buffer_get,
    /* .set_tensor_2d = */ nullptr,
    /* .get_tensor_2d = */ nullptr,
    /* .cpy_tensor    = */ nullptr,
    /* .clear         = */ buffer_clear,
    /* .reset         = */ nullptr,
};

static const char * buffer_type_name(ggml_backend_buffer_type_t) {
    return "DELAYED";
}

static ggml_backend_buffer_t buffer_type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    auto * data = ::operator new(std::max(size, ALIGNMENT), std::align_val_t(ALIGNMENT), std::nothrow);
    if (!data) {
        return nullptr;
    }
    memset(data, 0xFF, std::max(size, ALIGNMENT));  // NaN: what nobody has written shows
    return ggml_backend_buffer_init(buft, buffer_interface, data, size);
}

static size_t buffer_type_alignment(ggml_backend_buffer_type_t) {
    return ALIGNMENT;
}

static ggml_backend_buffer_type_t delayed_buffer_type(void) {
    static ggml_backend_buffer_type type = {
        /* .iface   = */ { buffer_type_name, buffer_type_alloc, buffer_type_alignment, nullptr, nullptr, nullptr },
        /* .device  = */
        delayed_device(),
        /* .context = */ nullptr,
    };
    return &type;
}

//
// backend: a queue and the thread that works it off
//

// the caller may build its next graph in the same memory before this one has run, so the thread works on a copy
struct graph_copy {
    explicit graph_copy(ggml_cgraph * source) {
        const size_t n_nodes = ggml_graph_n_nodes(source);
        ctx.reset(ggml_init({ ggml_graph_overhead_custom(8 * n_nodes + 64, false), nullptr, true }));
        graph = ggml_new_graph_custom(ctx.get(), 8 * n_nodes + 64, false);

        for (size_t i = 0; i < n_nodes; ++i) {
            add(ggml_graph_node(source, i), ggml_graph_node(source, i)->op);
        }
        for (size_t i = 0; i < n_nodes; ++i) {
            auto * node = copies.at(ggml_graph_node(source, i)).get();
            for (auto *& src : node->src) {
                src = src ? add(src, GGML_OP_NONE) : nullptr;  // what other graphs computed is data
            }
            ggml_build_forward_expand(graph, node);
        }
    }

    ggml_tensor * add(const ggml_tensor * tensor, ggml_op op) {
        auto & copy = copies[tensor];
        if (!copy) {
            copy           = std::make_unique<ggml_tensor>(*tensor);
            copy->op       = op;
            copy->view_src = nullptr;
            if (op == GGML_OP_NONE) {
                std::fill(std::begin(copy->src), std::end(copy->src), nullptr);
            }
        }
        return copy.get();
    }

    ggml_context_ptr ctx;
    ggml_cgraph *    graph;

    std::unordered_map<const ggml_tensor *, std::unique_ptr<ggml_tensor>> copies;
};

struct delayed_queue {
    delayed_queue() :
        cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)),
        thread([this]() { work(); }) {}

    ~delayed_queue() {
        push(nullptr);
        thread.join();
    }

    void push(std::function<void()> job) {
        std::lock_guard<std::mutex> lock(mutex);
        jobs.push(std::move(job));
        changed.notify_all();
    }

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this]() { return jobs.empty(); });
    }

    // an empty job ends the thread; a job stays in the queue until it is done
    void work() {
        for (;;) {
            std::function<void()> * job;
            {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [this]() { return !jobs.empty(); });
                job = &jobs.front();
            }
            const bool last = !*job;
            if (!last) {
                (*job)();
            }
            std::lock_guard<std::mutex> lock(mutex);
            jobs.pop();
            changed.notify_all();
            if (last) {
                return;
            }
        }
    }

    ggml_backend_ptr cpu;

    std::mutex                        mutex;
    std::condition_variable           changed;
    std::queue<std::function<void()>> jobs;
    std::thread                       thread;
};

static delayed_queue & queue_of(ggml_backend_t backend) {
    return *(delayed_queue *) backend->context;
}

static const char * backend_name(ggml_backend_t) {
    return "DELAYED";
}

static void backend_free(ggml_backend_t backend) {
    delete (delayed_queue *) backend->context;
    delete backend;
}

static void backend_set_async(ggml_backend_t backend,
                              ggml_tensor *  tensor,
                              const void *   data,
                              size_t         offset,
                              size_t         size) {
    auto * dst = (char *) tensor->data + offset;
    queue_of(backend).push([dst, copy = std::vector<char>((const char *) data, (const char *) data + size)]() {
        memcpy(dst, copy.data(), copy.size());
    });
}

static void backend_get_async(ggml_backend_t      backend,
                              const ggml_tensor * tensor,
                              void *              data,
                              size_t              offset,
                              size_t              size) {
    const auto * src = (const char *) tensor->data + offset;
    queue_of(backend).push([=]() { memcpy(data, src, size); });
}

static void backend_synchronize(ggml_backend_t backend) {
    queue_of(backend).wait();
}

static ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    auto & queue = queue_of(backend);
    queue.push([&queue, copy = std::make_shared<graph_copy>(graph)]() {
        std::this_thread::sleep_for(DELAY);
        GGML_ASSERT(ggml_backend_graph_compute(queue.cpu.get(), copy->graph) == GGML_STATUS_SUCCESS);
    });
    return GGML_STATUS_SUCCESS;
}

static ggml_guid_t backend_guid(void) {
    static ggml_guid guid = { 0x52, 0x69, 0x64, 0x67, 0x65, 0x46, 0x69, 0x6c,
                              0x6c, 0x44, 0x65, 0x6c, 0x61, 0x79, 0x65, 0x64 };
    return &guid;
}

static ggml_backend_t device_init_backend(ggml_backend_dev_t dev, const char *) {
    ggml_backend_i interface   = {};
    interface.get_name         = backend_name;
    interface.free             = backend_free;
    interface.set_tensor_async = backend_set_async;
    interface.get_tensor_async = backend_get_async;
    interface.synchronize      = backend_synchronize;
    interface.graph_compute    = backend_compute;
    return new ggml_backend{ backend_guid(), interface, dev, new delayed_queue() };
}

//
// device
//

static const char * device_name(ggml_backend_dev_t) {
    return "DELAYED0";
}

static const char * device_description(ggml_backend_dev_t) {
    return "the CPU, late";
}

static void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = (size_t) 64 << 30;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props             = {};
    props->name        = device_name(dev);
    props->description = device_description(dev);
    props->type        = device_type(dev);
    props->caps.async  = true;
    device_memory(dev, &props->memory_free, &props->memory_total);
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
    return delayed_buffer_type();
}

static bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}

static bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t buft) {
    return buft == delayed_buffer_type();
}

static const char * reg_name(ggml_backend_reg_t) {
    return "DELAYED";
}

static size_t reg_device_count(ggml_backend_reg_t) {
    return 1;
}

static ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t) {
    return delayed_device();
}

static ggml_backend_reg delayed_reg = {
    /* .api_version = */ GGML_BACKEND_API_VERSION,
    /* .iface       = */ { reg_name, reg_device_count, reg_device, nullptr },
    /* .context     = */
    nullptr,
};

static ggml_backend_dev_t delayed_device(void) {
    static ggml_backend_device device = []() {
        ggml_backend_device res   = {};
        res.iface.get_name        = device_name;
        res.iface.get_description = device_description;
        res.iface.get_memory      = device_memory;
        res.iface.get_type        = device_type;
        res.iface.get_props       = device_props;
        res.iface.init_backend    = device_init_backend;
        res.iface.get_buffer_type = device_buffer_type;
        res.iface.supports_op     = device_supports_op;
        res.iface.supports_buft   = device_supports_buft;
        res.reg                   = &delayed_reg;
        return res;
    }();
    return &device;
}

// the name that ggml_backend_load looks for
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_reg_t ggml_backend_init(void) {
    return &delayed_reg;
}
