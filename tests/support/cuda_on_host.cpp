// Runs the kernels of engines/cuda/rules.cu on the CPU: block by block, each thread a coroutine that yields where it
// waits for the others. Compiled by cuda_on_host.py.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

struct Dim {
    unsigned x, y;
};
static Dim threadIdx, blockIdx, gridDim;

static ucontext_t scheduler;
static std::vector<ucontext_t> contexts;

#define __device__
#define __global__
#define __shared__ static
#define __syncthreads() swapcontext(&contexts[threadIdx.x], &scheduler)
using std::max;
using std::min;
static unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

#include RULES

using Work = void (*)(const u64*);
static Work work;
static const u64* given;
static unsigned running;

static void thread() {
    work(given);
    --running;
    // ends here: uc_link returns to the scheduler
}

template <class... Arguments>
struct Call {
    void (*kernel)(Arguments...);
};

template <class Argument>
static Argument argument(u64 value) {
    Argument made;
    std::memcpy(&made, &value, sizeof made);
    return made;
}

template <auto Kernel, class... Arguments, std::size_t... Places>
static void call(void (*)(Arguments...), std::index_sequence<Places...>, const u64* values) {
    Kernel(argument<Arguments>(values[Places])...);
}

template <auto Kernel, class... Arguments>
static constexpr std::size_t count(void (*)(Arguments...)) {
    return sizeof...(Arguments);
}

template <auto Kernel>
static void run(const u64* values) {
    call<Kernel>(Kernel, std::make_index_sequence<count<Kernel>(Kernel)>(), values);
}

static const struct {
    const char* name;
    Work work;
} KERNELS[] = {
    {"extremes", run<extremes>},       {"search", run<search>},           {"weigh", run<weigh>},
    {"leave", run<leave>},             {"select_drawn", run<select_drawn>}, {"select_best", run<select_best>},
    {"accept_drawn", run<accept_drawn>}, {"accept_best", run<accept_best>},
};

// 0, or 1 if there is no such kernel.
extern "C" int launch(const char* name, unsigned columns, unsigned rows, unsigned threads, const u64* arguments) {
    const auto* found = std::find_if(std::begin(KERNELS), std::end(KERNELS), [name](const auto& kernel) { return !std::strcmp(kernel.name, name); });
    if (found == std::end(KERNELS)) return 1;
    static std::vector<char> stacks;
    const std::size_t size = 1 << 16;
    stacks.resize(size * threads);
    contexts.resize(threads);
    work = found->work, given = arguments, gridDim = {columns, rows};
    for (unsigned row = 0; row < rows; ++row) {
        for (unsigned column = 0; column < columns; ++column) {
            blockIdx = {column, row};
            std::vector<bool> ended(threads);
            running = threads;
            for (unsigned index = 0; index < threads; ++index) {
                getcontext(&contexts[index]);
                contexts[index].uc_stack.ss_sp = &stacks[size * index];
                contexts[index].uc_stack.ss_size = size;
                contexts[index].uc_link = &scheduler;
                makecontext(&contexts[index], thread, 0);
            }
            while (running) {
                for (unsigned index = 0; index < threads; ++index) {
                    if (ended[index]) continue;
                    threadIdx = {index, 0};
                    const unsigned before = running;
                    swapcontext(&scheduler, &contexts[index]);
                    ended[index] = running < before;
                }
            }
        }
    }
    return 0;
}
