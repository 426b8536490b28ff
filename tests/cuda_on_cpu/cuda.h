// CPU emulation of the CUDA features that the kernels use; it replaces tensor_ptx.cuh and the compiler's built-ins. Threads
// of a block are coroutines: a thread runs until it waits at a barrier. A missing barrier therefore fails in every run.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <ucontext.h>
#include <vector>

typedef unsigned int u32;
typedef unsigned short u16;

#define __device__ inline
#define __global__
#define __shared__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Index { int x; };

static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float rsqrtf(float value) { return 1 / std::sqrt(value); }
static float exponential(float value) { return std::exp(value); }
static float silu(float value) { return value / (1 + exponential(-value)); }

static Index gridDim;

struct NamedBarrier { int arrived = 0, phase = 0; };

// State shared by the threads of a block: shared memory, barriers, and buffers of warp-wide instructions.
struct Block {
    alignas(1024) unsigned char smem[1 << 18];
    std::map<int, NamedBarrier> barriers;
    float shuffled[32][32];
    u32 mma_operands[32][32][6];
    const void* wgmma_groups[32][32];
    void* stmatrix_addresses[32][32];

    Block() { std::memset(smem, 255, sizeof smem); }
};

struct Thread {
    Index thread, block;
    Block* shared;
    std::unique_ptr<char[]> stack;
    ucontext_t context;
    std::function<bool()> is_ready;
    bool is_done;
};
static Thread* running;
static ucontext_t scheduler_context;
static std::function<void()> kernel_of_thread;
#define threadIdx running->thread
#define blockIdx running->block
#define current_block running->shared
#define smem current_block->smem

static void stop(const char* reason) {
    std::fprintf(stderr, "block %d, thread %d: %s\n", blockIdx.x, threadIdx.x, reason);
    std::abort();
}

static void wait_until(std::function<bool()> is_ready) {
    running->is_ready = is_ready;
    swapcontext(&running->context, &scheduler_context);
}

static void run_thread() {
    kernel_of_thread();
    running->is_done = true;
    swapcontext(&running->context, &scheduler_context);
}

// Run blocks concurrently. Their threads run in turns, from the last to the first and then in reverse order.
static void run_blocks(int last, int count, int threads, std::function<void()> kernel) {
    const size_t stack_bytes = 1 << 17;
    kernel_of_thread = kernel;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Thread>> all;
    for (int block = last; block > last - count; block--) {
        blocks.push_back(std::make_unique<Block>());
        for (int thread = 0; thread < threads; thread++) {
            all.emplace_back(new Thread{{thread}, {block}, blocks.back().get(), std::unique_ptr<char[]>(new char[stack_bytes])});
            ucontext_t& context = all.back()->context;
            getcontext(&context);
            context.uc_stack.ss_sp = all.back()->stack.get();
            context.uc_stack.ss_size = stack_bytes;
            makecontext(&context, run_thread, 0);
        }
    }
    size_t unfinished = all.size();
    for (bool is_forward = false; unfinished; is_forward = !is_forward) {
        bool has_progress = false;
        for (size_t i = 0; i < all.size(); i++) {
            Thread& next = *all[is_forward ? i : all.size() - 1 - i];
            if (next.is_done || (next.is_ready && !next.is_ready())) continue;
            running = &next;
            swapcontext(&scheduler_context, &next.context);
            unfinished -= next.is_done;
            has_progress = true;
        }
        if (!has_progress) stop("deadlock: all threads wait");
    }
}

static float as_float(u32 bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static u32 as_bits(float value) { u32 bits; std::memcpy(&bits, &value, 4); return bits; }

#if BF16
static float to_float(u32 value) { return as_float(value << 16); }
static u32 rounded(float value) {
    const u32 bits = as_bits(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#else
static float to_float(u32 value) {
    const int exponent = value >> 10 & 31;
    const float size = exponent ? std::ldexp(1024.0f + (value & 1023), exponent - 25) : std::ldexp(float(value & 1023), -24);
    return value & 0x8000 ? -size : size;
}
static u32 rounded(float value) {
    const float size = std::fabs(value);
    const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
    u32 bits = u32(std::nearbyint(std::ldexp(size, 10 - exponent)));  // In half-precision steps, to even.
    bits += exponent > -14 ? u32(exponent + 14) << 10 : 0;
    return bits | (std::signbit(value) ? 0x8000 : 0);
}
#endif
static u32 pack_half2(float low, float high) { return rounded(low) | rounded(high) << 16; }
static u32 subtract_half2(u32 a, u32 b) {
    return pack_half2(to_float(a & 0xffff) - to_float(b & 0xffff), to_float(a >> 16) - to_float(b >> 16));
}

template <int BYTE>
static u32 byte_address(u32 word, u32 lane_offset) { return (word >> 8 * BYTE & 255) << 8 | lane_offset; }

static void load_no_allocate(const void* address, uint4& words) { std::memcpy(&words, address, 16); }
static void load_no_allocate(const void* address, uint2& words) { std::memcpy(&words, address, 8); }
static void load_cached(const void* address, float2& scales) { std::memcpy(&scales, address, 8); }
static void load_cached(const void* address, u32& pair) { std::memcpy(&pair, address, 4); }
static void launch_dependents() {}
static void wait_for_previous_kernel() {}

// Barrier 0 is __syncthreads, 1 to 15 are the kernels' named barriers, 100 + w is warp w, and 200 + w is warp group w.
static void named_barrier_sync(int number, int threads) {
    NamedBarrier& barrier = current_block->barriers[number];
    const int phase = barrier.phase;
    if (++barrier.arrived < threads) return wait_until([&barrier, phase] { return barrier.phase > phase; });
    barrier.arrived = 0;
    barrier.phase++;
}
static void __syncthreads();
static int warp() { return threadIdx.x / 32; }
static void sync_warp() { named_barrier_sync(100 + warp(), 32); }

static float shuffle(float value, int lane) {
    auto& shuffled = current_block->shuffled;
    shuffled[warp()][threadIdx.x % 32] = value;
    sync_warp();
    const float result = shuffled[warp()][lane];
    sync_warp();
    return result;
}
static float __shfl_xor_sync(u32, float value, int mask) { return shuffle(value, (threadIdx.x % 32) ^ mask); }
static u32 __shfl_xor_sync(u32 all, u32 value, int mask) { return as_bits(__shfl_xor_sync(all, as_float(value), mask)); }
static float __shfl_down_sync(u32, float value, int delta) {
    const int lane = threadIdx.x % 32 + delta;
    return shuffle(value, lane < 32 ? lane : threadIdx.x % 32);
}

// Kernels that call it do not wait for other blocks, so their blocks run one after another.
static bool arrive_and_check_last(int* counter, int arrivals) {
    int previous = 0;
    if (threadIdx.x % 32 == 0) {
        previous = (*counter)++;
        if (previous == arrivals - 1) *counter = 0;
    }
    return int(shuffle(float(previous), 0)) == arrivals - 1;
}
static float load_partial_sums(const float* address) { return *address; }

// mma.m16n8k16 with the fragment layouts of the PTX ISA manual.
static float half_of(u32 pair, int index) { return to_float(index ? pair >> 16 : pair & 0xffff); }
static void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    auto& all = current_block->mma_operands[warp()];
    for (int i = 0; i < 4; i++) all[lane][i] = a[i];
    all[lane][4] = b0;
    all[lane][5] = b1;
    sync_warp();
    for (int element = 0; element < 4; element++) {
        const int row = element / 2, column = 2 * t + element % 2;
        for (int k = 0; k < 16; k++) {
            const int from = k % 8 / 2, half = k / 8;
            d[element] += half_of(all[4 * g + from][row + 2 * half], k % 2) * half_of(all[4 * column + from][4 + half], k % 2);
        }
    }
    sync_warp();
}
