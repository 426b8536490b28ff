// In place of hopper_ptx.cuh, by the PTX manual. What runs beside the threads is done as late as it may be: copies when
// their barrier is waited for, products when they are. So who reads too early, or writes what is still needed, gets
// wrong results. Blocks run side by side.

#include <deque>

typedef unsigned long long u64;
#define __grid_constant__

// As tests/on_processor.py describes a tensor and its box. Pitches are in bytes, sizes in numbers.
struct __align__(64) TensorMap {
    const unsigned char* tensor;
    long long element, sizes[3], pitches[2], box[3], is_swizzled, rest[5];
};

static void demand(bool is_so, const char* why) {
    if (!is_so) stop(why);
}

static u32 address(const void* place) {
    const std::ptrdiff_t at = (const unsigned char*)place - memory;
    demand(at >= 0 && at < 1 << 18, "a place that is not in shared memory");
    return at;
}
static u32 swizzled(u32 at) { return at ^ (at >> 7 & 7) << 4; }
static void __syncwarp() { meet_in_warp(); }

// Barriers: arrivals and bytes that the phase still lacks, and copies that have not been made.
struct Phases {
    int arrivals = 0, pending = 0;
    long long bytes = 0;
    bool parity = false;
    std::deque<std::function<void()>> copies;
};
static std::map<u64*, Phases> all_phases;

static Phases& phases_of(u64* barrier) {
    const auto found = all_phases.find(barrier);
    demand(found != all_phases.end(), "a barrier that nobody made");
    return found->second;
}

static void end_phase_if_done(Phases& phases) {
    demand(phases.pending >= 0, "more arrivals than a barrier expects");
    if (phases.pending || phases.bytes) return;
    phases.pending = phases.arrivals;
    phases.parity = !phases.parity;
}

static void make_barrier(u64* barrier, int arrivals) {
    demand(address(barrier) % 8 == 0 && arrivals > 0, "a barrier off its place, or of nobody");
    demand(all_phases[barrier].copies.empty(), "the block before ended without waiting for a copy");
    all_phases[barrier] = Phases{arrivals, arrivals};
}
static void show_barriers() {}

static void arrive_and_expect(u64* barrier, u32 bytes) {
    Phases& phases = phases_of(barrier);
    phases.bytes += bytes;
    phases.pending--;
    end_phase_if_done(phases);
}
static void announce(u64* barrier, u32 bytes) { arrive_and_expect(barrier, bytes); }
static void arrive_if(u64* barrier, bool is_so) {
    if (is_so) arrive_and_expect(barrier, 0);
}

static void wait_for(u64* barrier, int parity) {
    Phases& phases = phases_of(barrier);
    while (phases.parity == bool(parity)) {
        if (phases.copies.empty()) {
            wait_until([&phases, parity] { return phases.parity != bool(parity) || !phases.copies.empty(); });
            continue;
        }
        phases.copies.front()();
        phases.copies.pop_front();
        end_phase_if_done(phases);
    }
}

// Until a copy is made, its place holds nothing of use.
static void copy_later(void* to, u32 bytes, u64* barrier, std::function<void()> copy) {
    address((unsigned char*)to + bytes - 1);
    std::memset(to, 255, bytes);
    Phases& phases = phases_of(barrier);
    phases.copies.push_back([=, &phases] { copy(), phases.bytes -= bytes; });
}

static void copy_box(void* to, const TensorMap* map, int x, int y, int z, u64* barrier) {
    const TensorMap of = *map;
    const u32 start = address(to), line = of.box[0] * of.element;
    demand(start % 128 == 0 && line % 16 == 0, "a box off its place");
    demand((size_t)of.tensor % 16 == 0 && of.pitches[0] % 16 == 0 && of.pitches[1] % 16 == 0, "a tensor off its place");
    for (int i = 0; i < 3; i++) demand(of.box[i] <= 256, "a box too large");
    demand(!of.is_swizzled || (line == 128 && start % 1024 == 0), "a swizzle of other lines than 128 bytes");
    copy_later(to, line * of.box[1] * of.box[2], barrier, [=] {
        u32 at = start;
        for (long long k = z; k < z + of.box[2]; k++)
            for (long long j = y; j < y + of.box[1]; j++)
                for (long long i = x; i < x + of.box[0]; i++, at += of.element) {
                    unsigned char* place = memory + (of.is_swizzled ? swizzled(at) : at);
                    const bool is_inside = i >= 0 && i < of.sizes[0] && j >= 0 && j < of.sizes[1] && k >= 0 && k < of.sizes[2];
                    const unsigned char* from = of.tensor + i * of.element + j * of.pitches[0] + k * of.pitches[1];
                    is_inside ? std::memcpy(place, from, of.element) : std::memset(place, 0, of.element);
                }
    });
}

template <int COUNT> static void take_registers() {}
template <int COUNT> static void give_registers() {}

static u64 rows_at(const void* place) {
    return (u64)(address(place) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Products that a thread asked for: of registers, where they are.
struct Product {
    float* sums;
    int count;
    const u32* a;
    u64 rows;
    bool is_added;
};
typedef std::vector<Product> Products;
struct Asked {
    Products begun;
    bool may_begin = false;
    std::deque<Products> under_way;
};
static std::map<std::pair<int, int>, Asked> asked_by;
static Asked& own_asked() { return asked_by[{blockIdx.x, threadIdx.x}]; }

// The numbers that 16 bits stand for.
struct Numbers {
    std::vector<float> all;
    Numbers() : all(1 << 16) { for (u32 bits = 0; bits < all.size(); bits++) all[bits] = to_float(bits); }
    float low(u32 pair) const { return all[pair & 0xffff]; }
    float high(u32 pair) const { return all[pair >> 16]; }
};
static const Numbers sixteen_bits;

static void begin_products() { own_asked().may_begin = true; }
static void end_products() {
    Asked& asked = own_asked();
    asked.under_way.push_back(asked.begun);
    asked.begun.clear();
    asked.may_begin = false;
    meet(200 + threadIdx.x / 128, 128);
}

// A lane's part of a product: A by rows g and g + 8 from the four lanes that share them, B from shared memory.
static void multiply(const Product& own, size_t at) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float a[2][16];
    for (int from = 0; from < 4; from++) {
        const Products& others = *(const Products*)own_block->of_lanes[warp()][4 * g + from];
        demand(others.size() > at && others[at].rows == own.rows && others[at].is_added == own.is_added,
               "lanes that ask for different products");
        for (int i = 0; i < 4; i++) {
            a[i % 2][i / 2 * 8 + 2 * from] = sixteen_bits.low(others[at].a[i]);
            a[i % 2][i / 2 * 8 + 2 * from + 1] = sixteen_bits.high(others[at].a[i]);
        }
    }
    const u32 start = (own.rows & 0x3fff) << 4, pitch = (own.rows >> 32 & 0x3fff) << 4;
    demand(own.rows >> 62 == 1 && !(own.rows >> 49 & 7), "rows of another swizzle");
    for (int column = 0; column < own.count / 2; column++) {
        const int n = column / 2 * 8 + 2 * t + column % 2;
        float sums[2] = {};
        for (u32 k = 0; k < 16; k++) {
            u16 bits;
            std::memcpy(&bits, memory + swizzled(start + n / 8 * pitch + n % 8 * 128 + k * 2), 2);
            for (int row = 0; row < 2; row++) sums[row] += a[row][k] * sixteen_bits.low(bits);
        }
        for (int row = 0; row < 2; row++) {
            float& sum = own.sums[column / 2 * 4 + 2 * row + column % 2];
            sum = (own.is_added ? sum : 0) + sums[row];
        }
    }
}

template <int COUNT> static void wait_for_products() {
    std::deque<Products>& under_way = own_asked().under_way;
    for (; under_way.size() > COUNT; under_way.pop_front()) {
        own_block->of_lanes[warp()][threadIdx.x % 32] = &under_way.front();
        meet_in_warp();
        for (size_t at = 0; at < under_way.front().size(); at++) multiply(under_way.front()[at], at);
        meet_in_warp();
    }
}

template <int COUNT>
static void multiply_rows(float (&sums)[COUNT], const u32 (&a)[4], u64 rows, int is_added) {
    demand(own_asked().may_begin, "products without begin_products");
    own_asked().begun.push_back({sums, COUNT, a, rows, is_added != 0});
}

template <int COUNT>
static void settle(float (&sums)[COUNT]) {
    for (const Products& products : own_asked().under_way)
        for (const Product& product : products) demand(product.sums != sums, "sums that are not there yet");
}

static void write_turned(void* to, u32 first, u32 second, u32 third, u32 fourth) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 pairs[4] = {first, second, third, fourth};
    demand(address(to) % 16 == 0, "a column off its place");
    auto& written = own_block->written;
    written[warp()][lane] = to;
    meet_in_warp();
    for (int i = 0; i < 8; i++) {
        const u16 bits = pairs[i / 2] >> i % 2 * 16;
        std::memcpy((u16*)written[warp()][i / 2 * 8 + 2 * t + i % 2] + g, &bits, 2);
    }
    meet_in_warp();
}

template <u32 WHICH>
static u32 bytes_of(u32 first, u32 second) {
    const u64 both = (u64)second << 32 | first;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        const u32 digit = WHICH >> 4 * i & 15, byte = both >> digit % 8 * 8 & 255;
        result |= (digit < 8 ? byte : byte >> 7 ? 255u : 0u) << 8 * i;
    }
    return result;
}

static u32 less(u32 pair, u32 other) {
    const Numbers& in = sixteen_bits;
    return pair_of(in.low(pair) - in.low(other), in.high(pair) - in.high(other));
}
static u32 times(u32 pair, u32 other) {
    const Numbers& in = sixteen_bits;
    return pair_of(in.low(pair) * in.low(other), in.high(pair) * in.high(other));
}

static u32 times_plus(u32 pair, u32 other, u32 more) {
    const Numbers& in = sixteen_bits;
    return pair_of(in.low(pair) * in.low(other) + in.low(more), in.high(pair) * in.high(other) + in.high(more));
}

static void count_up(int* count) { ++*count; }

static void await_count(int* count, int makers, int readers) {
    const auto made = [count] { return *count % (1 << 16); };
    if (made() != makers) wait_until([=] { return made() >= makers; });
    demand(made() == makers, "more makers than are awaited");
    *count += 1 << 16;
    demand(*count >> 16 <= readers, "more readers than were told");
    if (*count >> 16 == readers) *count = 0;
}

static float4 read_left(const float4* place) { return *place; }
