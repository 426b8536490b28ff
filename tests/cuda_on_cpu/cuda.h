// Enough of CUDA to run a block's threads on a processor, in place of tensor_ptx.cuh and the compiler's own. A thread runs
// until it waits for others; then another one does. So a meeting that is missing shows in every run.

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

struct Meeting { int arrived = 0, rounds = 0; };

// What the threads of a block share.
struct Block {
    alignas(1024) unsigned char memory[1 << 18];
    std::map<int, Meeting> meetings;
    float exchanged[32][32];
    u32 operands[32][32][6];
    const void* of_lanes[32][32];
    void* written[32][32];

    Block() { std::memset(memory, 255, sizeof memory); }
};

struct Thread {
    Index thread, block;
    Block* shared;
    std::unique_ptr<char[]> stack;
    ucontext_t context;
    std::function<bool()> may_go_on;
    bool is_done;
};
static Thread* running;
static ucontext_t between_threads;
static std::function<void()> kernel_of_thread;
#define threadIdx running->thread
#define blockIdx running->block
#define own_block running->shared
#define memory own_block->memory

static void stop(const char* why) {
    std::fprintf(stderr, "block %d, thread %d: %s\n", blockIdx.x, threadIdx.x, why);
    std::abort();
}

static void wait_until(std::function<bool()> may_go_on) {
    running->may_go_on = may_go_on;
    swapcontext(&running->context, &between_threads);
}

static void run_thread() {
    kernel_of_thread();
    running->is_done = true;
    swapcontext(&running->context, &between_threads);
}

// Runs blocks side by side, their threads in turns: from the last to the first, then back.
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
    size_t left = all.size();
    for (bool is_forward = false; left; is_forward = !is_forward) {
        bool has_moved = false;
        for (size_t at = 0; at < all.size(); at++) {
            Thread& next = *all[is_forward ? at : all.size() - 1 - at];
            if (next.is_done || (next.may_go_on && !next.may_go_on())) continue;
            running = &next;
            swapcontext(&between_threads, &next.context);
            left -= next.is_done;
            has_moved = true;
        }
        if (!has_moved) stop("it and all others wait without end");
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
static u32 pair_of(float low, float high) { return rounded(low) | rounded(high) << 16; }

template <int BYTE>
static u32 place_of_byte(u32 word, u32 own) { return (word >> 8 * BYTE & 255) << 8 | own; }

static void read_weights(const void* place, uint4& words) { std::memcpy(&words, place, 16); }
static void read_weights(const void* place, uint2& words) { std::memcpy(&words, place, 8); }
static void read_scales(const void* place, float2& scales) { std::memcpy(&scales, place, 8); }
static void read_scales(const void* place, u32& pair) { std::memcpy(&pair, place, 4); }
static void let_the_next_start() {}
static void wait_for_the_last() {}

// A number for each group of threads that meet: 0 is the whole block, then the named ones, then the warps.
static void meet(int number, int threads) {
    Meeting& meeting = own_block->meetings[number];
    const int round = meeting.rounds;
    if (++meeting.arrived < threads) return wait_until([&meeting, round] { return meeting.rounds > round; });
    meeting.arrived = 0;
    meeting.rounds++;
}
static void __syncthreads();
static int warp() { return threadIdx.x / 32; }
static void meet_in_warp() { meet(100 + warp(), 32); }

static float from_lane(float value, int lane) {
    auto& exchanged = own_block->exchanged;
    exchanged[warp()][threadIdx.x % 32] = value;
    meet_in_warp();
    const float result = exchanged[warp()][lane];
    meet_in_warp();
    return result;
}
static float __shfl_xor_sync(u32, float value, int apart) { return from_lane(value, (threadIdx.x % 32) ^ apart); }
static u32 __shfl_xor_sync(u32 all, u32 value, int apart) { return as_bits(__shfl_xor_sync(all, as_float(value), apart)); }
static float __shfl_down_sync(u32, float value, int apart) {
    const int lane = threadIdx.x % 32 + apart;
    return from_lane(value, lane < 32 ? lane : threadIdx.x % 32);
}

// Its blocks run one after another.
static bool arrive(int* arrived, int parts) {
    int before = 0;
    if (threadIdx.x % 32 == 0) {
        before = (*arrived)++;
        if (before == parts - 1) *arrived = 0;
    }
    return int(from_lane(float(before), 0)) == parts - 1;
}
static float read_left(const float* place) { return *place; }

// mma.m16n8k16 as the PTX manual has its fragments.
static float half_of(u32 pair, int at) { return to_float(at ? pair >> 16 : pair & 0xffff); }
static void multiply_and_add(float (&sums)[4], const u32 (&a)[4], u32 first, u32 second) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    auto& all = own_block->operands[warp()];
    for (int at = 0; at < 4; at++) all[lane][at] = a[at];
    all[lane][4] = first;
    all[lane][5] = second;
    meet_in_warp();
    for (int element = 0; element < 4; element++) {
        const int row = element / 2, column = 2 * t + element % 2;
        for (int k = 0; k < 16; k++) {
            const int from = k % 8 / 2, half = k / 8;
            sums[element] += half_of(all[4 * g + from][row + 2 * half], k % 2) * half_of(all[4 * column + from][4 + half], k % 2);
        }
    }
    meet_in_warp();
}
