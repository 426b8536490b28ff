// Pairs of 4-bit weights as tensor core operands, from a table in shared memory with one copy per lane.
//
// A byte has two codes. The table has both numbers of each byte as a pair of 16-bit floats, once per lane, so that lanes
// never conflict in a bank: one instruction computes the address, one reads, and the pair is an operand of mma.m16n8k16. A
// weight takes 1.2 instructions instead of 3 to 5 for masking and multiplying, which is about the limit of an H100.

#include "tensor_ptx.cuh"

constexpr int WARP = 32;
constexpr int ENTRY = 256;                         // Bytes per entry; half of them are used.
constexpr int TABLE = 256 * ENTRY;                 // Bytes of the table.

extern __shared__ __align__(1024) unsigned char smem[];

// Write the table: `numbers(byte)` is the pair of a byte, the earlier input's number in the lower half.
template <int THREADS, class Numbers>
__device__ void write_pairs(Numbers numbers) {
    for (int at = threadIdx.x; at < 256 * 8; at += THREADS) {
        const u32 pair = numbers(at / 8);
        *(uint4*)(smem + at / 8 * ENTRY + at % 8 * 16) = make_uint4(pair, pair, pair, pair);
    }
}

// Look up the two weights of one byte of a word. own: 4 * lane.
template <int BYTE>
__device__ u32 looked_up(u32 word, u32 own) {
    return *(const u32*)(smem + byte_address<BYTE>(word, own));
}

// Add the sum of each column of B (mma.m16n8k16) to `sums`. A weight is (number - zero) * scale, and zero * (sum of inputs) is
// subtracted once per group of inputs: with A of ones, tensor cores compute that sum while the lookups limit the time.
__device__ void add_inputs(float (&sums)[4], u32 first, u32 second) {
    constexpr u32 ONES = BF16 ? 0x3f803f80 : 0x3c003c00;
    const u32 a[4] = {ONES, ONES, ONES, ONES};
    mma_m16n8k16(sums, a, first, second);
}

// Return the zero points of outputs 2 g and 2 g + 1 of eight, as a pair, minus 8 as in the table of GPTQ's numbers.
__device__ u32 lookup_zero_points(u32 word, int g, u32 own) { return looked_up<0>(word >> 8 * (g % 4), own); }
