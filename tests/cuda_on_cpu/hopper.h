// CPU emulation of hopper_ptx.cuh by the PTX ISA manual. Asynchronous operations run as late as possible: a TMA load when a
// thread waits for its mbarrier, a wgmma when a thread waits for it. A premature read, or a write of an operand that is
// still in use, therefore gives wrong results. Blocks run concurrently.

#include <deque>

typedef unsigned long long u64;
#define __grid_constant__

// Layout that tests/on_processor.py writes. Pitches are in bytes, sizes in elements.
struct __align__(64) TensorMap {
    const unsigned char* tensor;
    long long element, sizes[3], pitches[2], box[3], is_swizzled, rest[5];
};

static void check(bool condition, const char* error) {
    if (!condition) stop(error);
}

static u32 smem_address(const void* pointer) {
    const std::ptrdiff_t offset = (const unsigned char*)pointer - smem;
    check(offset >= 0 && offset < 1 << 18, "an address outside shared memory");
    return offset;
}
static u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }
static void __syncwarp() { sync_warp(); }

// mbarrier: arrivals and bytes that the current phase still expects, and TMA loads that have not run.
struct MBarrier {
    int arrivals = 0, pending = 0;
    long long bytes = 0;
    bool parity = false;
    std::deque<std::function<void()>> loads;
};
static std::map<u64*, MBarrier> mbarriers;

static MBarrier& mbarrier_of(u64* barrier) {
    const auto found = mbarriers.find(barrier);
    check(found != mbarriers.end(), "an mbarrier without initialization");
    return found->second;
}

static void end_phase_if_done(MBarrier& state) {
    check(state.pending >= 0, "more arrivals than the mbarrier expects");
    if (state.pending || state.bytes) return;
    state.pending = state.arrivals;
    state.parity = !state.parity;
}

static void mbarrier_init(u64* barrier, int arrivals) {
    check(smem_address(barrier) % 8 == 0 && arrivals > 0, "a misaligned mbarrier, or no expected arrival");
    check(mbarriers[barrier].loads.empty(), "a block ended without waiting for a TMA load");
    mbarriers[barrier] = MBarrier{arrivals, arrivals};
}
static void fence_mbarrier_init() {}

static void arrive_and_expect(u64* barrier, u32 bytes) {
    MBarrier& state = mbarrier_of(barrier);
    state.bytes += bytes;
    state.pending--;
    end_phase_if_done(state);
}
static void mbarrier_expect_bytes(u64* barrier, u32 bytes) { arrive_and_expect(barrier, bytes); }
static void mbarrier_arrive_if(u64* barrier, bool condition) {
    if (condition) arrive_and_expect(barrier, 0);
}

static void mbarrier_wait(u64* barrier, int parity) {
    MBarrier& state = mbarrier_of(barrier);
    while (state.parity == bool(parity)) {
        if (state.loads.empty()) {
            wait_until([&state, parity] { return state.parity != bool(parity) || !state.loads.empty(); });
            continue;
        }
        state.loads.front()();
        state.loads.pop_front();
        end_phase_if_done(state);
    }
}

// Queue a load. Until it runs, its destination holds NaN.
static void load_later(void* destination, u32 bytes, u64* barrier, std::function<void()> load) {
    smem_address((unsigned char*)destination + bytes - 1);
    std::memset(destination, 255, bytes);
    MBarrier& state = mbarrier_of(barrier);
    state.loads.push_back([=, &state] { load(), state.bytes -= bytes; });
}

static void tma_load_3d(void* destination, const TensorMap* map_pointer, int x, int y, int z, u64* barrier) {
    const TensorMap map = *map_pointer;
    const u32 start = smem_address(destination), line = map.box[0] * map.element;
    check(start % 128 == 0 && line % 16 == 0, "a misaligned box");
    check((size_t)map.tensor % 16 == 0 && map.pitches[0] % 16 == 0 && map.pitches[1] % 16 == 0, "a misaligned tensor");
    for (int i = 0; i < 3; i++) check(map.box[i] <= 256, "a box over 256 elements");
    check(!map.is_swizzled || (line == 128 && start % 1024 == 0), "a swizzle of lines that are not 128 bytes");
    load_later(destination, line * map.box[1] * map.box[2], barrier, [=] {
        u32 address = start;
        for (long long k = z; k < z + map.box[2]; k++)
            for (long long j = y; j < y + map.box[1]; j++)
                for (long long i = x; i < x + map.box[0]; i++, address += map.element) {
                    unsigned char* to = smem + (map.is_swizzled ? swizzled(address) : address);
                    const bool is_inside = i >= 0 && i < map.sizes[0] && j >= 0 && j < map.sizes[1] && k >= 0 && k < map.sizes[2];
                    const unsigned char* from = map.tensor + i * map.element + j * map.pitches[0] + k * map.pitches[1];
                    is_inside ? std::memcpy(to, from, map.element) : std::memset(to, 0, map.element);
                }
    });
}

template <int COUNT> static void warpgroup_reg_alloc() {}
template <int COUNT> static void warpgroup_reg_dealloc() {}

static u64 wgmma_descriptor(const void* pointer) {
    return (u64)(smem_address(pointer) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// A wgmma that a thread issued. Registers are referred to by address: they are read when the wgmma runs.
struct Wgmma {
    float* d;
    int count;
    const u32* a;
    u64 b;
    bool accumulate;
};
typedef std::vector<Wgmma> WgmmaGroup;
struct WgmmaQueue {
    WgmmaGroup uncommitted;
    bool is_fenced = false;
    std::deque<WgmmaGroup> committed;
};
static std::map<std::pair<int, int>, WgmmaQueue> wgmma_queues;
static WgmmaQueue& wgmma_queue() { return wgmma_queues[{blockIdx.x, threadIdx.x}]; }

// Values of all 16-bit floats.
struct HalfValues {
    std::vector<float> all;
    HalfValues() : all(1 << 16) { for (u32 bits = 0; bits < all.size(); bits++) all[bits] = to_float(bits); }
    float low(u32 pair) const { return all[pair & 0xffff]; }
    float high(u32 pair) const { return all[pair >> 16]; }
};
static const HalfValues half_values;

static void wgmma_fence() { wgmma_queue().is_fenced = true; }
static void wgmma_commit() {
    WgmmaQueue& queue = wgmma_queue();
    queue.committed.push_back(queue.uncommitted);
    queue.uncommitted.clear();
    queue.is_fenced = false;
    named_barrier_sync(200 + threadIdx.x / 128, 128);
}

// Compute a lane's accumulators of a wgmma: rows g and g + 8 of A from the four lanes that hold them, B from shared memory.
static void run_wgmma(const Wgmma& own, size_t index) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float a[2][16];
    for (int from = 0; from < 4; from++) {
        const WgmmaGroup& group = *(const WgmmaGroup*)current_block->wgmma_groups[warp()][4 * g + from];
        check(group.size() > index && group[index].b == own.b && group[index].accumulate == own.accumulate,
              "lanes issued different wgmma");
        for (int i = 0; i < 4; i++) {
            a[i % 2][i / 2 * 8 + 2 * from] = half_values.low(group[index].a[i]);
            a[i % 2][i / 2 * 8 + 2 * from + 1] = half_values.high(group[index].a[i]);
        }
    }
    const u32 start = (own.b & 0x3fff) << 4, pitch = (own.b >> 32 & 0x3fff) << 4;
    check(own.b >> 62 == 1 && !(own.b >> 49 & 7), "a descriptor without the swizzle of 128 bytes");
    for (int column = 0; column < own.count / 2; column++) {
        const int n = column / 2 * 8 + 2 * t + column % 2;
        float sums[2] = {};
        for (u32 k = 0; k < 16; k++) {
            u16 bits;
            std::memcpy(&bits, smem + swizzled(start + n / 8 * pitch + n % 8 * 128 + k * 2), 2);
            for (int row = 0; row < 2; row++) sums[row] += a[row][k] * half_values.low(bits);
        }
        for (int row = 0; row < 2; row++) {
            float& sum = own.d[column / 2 * 4 + 2 * row + column % 2];
            sum = (own.accumulate ? sum : 0) + sums[row];
        }
    }
}

template <int COUNT> static void wgmma_wait() {
    std::deque<WgmmaGroup>& committed = wgmma_queue().committed;
    for (; committed.size() > COUNT; committed.pop_front()) {
        current_block->wgmma_groups[warp()][threadIdx.x % 32] = &committed.front();
        sync_warp();
        for (size_t i = 0; i < committed.front().size(); i++) run_wgmma(committed.front()[i], i);
        sync_warp();
    }
}

template <int COUNT>
static void wgmma(float (&d)[COUNT], const u32 (&a)[4], u64 b, int accumulate) {
    check(wgmma_queue().is_fenced, "wgmma without wgmma_fence");
    wgmma_queue().uncommitted.push_back({d, COUNT, a, b, accumulate != 0});
}

template <int COUNT>
static void wgmma_fence_accumulators(float (&d)[COUNT]) {
    for (const WgmmaGroup& group : wgmma_queue().committed)
        for (const Wgmma& pending : group) check(pending.d != d, "accumulators of a pending wgmma");
}

static void stmatrix_x4_trans(void* destination, u32 first, u32 second, u32 third, u32 fourth) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 pairs[4] = {first, second, third, fourth};
    check(smem_address(destination) % 16 == 0, "a misaligned column");
    auto& addresses = current_block->stmatrix_addresses;
    addresses[warp()][lane] = destination;
    sync_warp();
    for (int i = 0; i < 8; i++) {
        const u16 bits = pairs[i / 2] >> i % 2 * 16;
        std::memcpy((u16*)addresses[warp()][i / 2 * 8 + 2 * t + i % 2] + g, &bits, 2);
    }
    sync_warp();
}

template <u32 SELECTOR>
static u32 byte_perm(u32 first, u32 second) {
    const u64 both = (u64)second << 32 | first;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        const u32 digit = SELECTOR >> 4 * i & 15, byte = both >> digit % 8 * 8 & 255;
        result |= (digit < 8 ? byte : byte >> 7 ? 255u : 0u) << 8 * i;
    }
    return result;
}

static u32 sub_half2(u32 x, u32 y) {
    const HalfValues& of = half_values;
    return pack_half2(of.low(x) - of.low(y), of.high(x) - of.high(y));
}
static u32 mul_half2(u32 x, u32 y) {
    const HalfValues& of = half_values;
    return pack_half2(of.low(x) * of.low(y), of.high(x) * of.high(y));
}

static u32 fma_half2(u32 x, u32 y, u32 z) {
    const HalfValues& of = half_values;
    return pack_half2(of.low(x) * of.low(y) + of.low(z), of.high(x) * of.high(y) + of.high(z));
}

static void counter_increment(int* counter) { ++*counter; }

static void counter_wait(int* counter, int contributors, int readers) {
    const auto arrived = [counter] { return *counter % (1 << 16); };
    if (arrived() != contributors) wait_until([=] { return arrived() >= contributors; });
    check(arrived() == contributors, "more contributors than expected");
    *counter += 1 << 16;
    check(*counter >> 16 <= readers, "more readers than expected");
    if (*counter >> 16 == readers) *counter = 0;
}

static float4 load_partial_sums(const float4* address) { return *address; }
