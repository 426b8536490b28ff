// Dequantization of 4-bit weights by a lookup table in shared memory, for mma.m16n8k16.
//
// A byte has two codes. The table has, for each byte, both values as half2, replicated for each lane, so that a lookup never
// has a bank conflict: one instruction (prmt) computes the address, one loads, and the result is a register of operand A.
// That is 1.2 instructions per weight, instead of 3 to 5 for mask, magic exponent and multiplication. An H100 can issue about
// that many while it reads the weights from memory.

#include "tensor_ptx.cuh"

constexpr int WARP = 32;
constexpr int ENTRY_BYTES = 256;                   // Bytes per entry, of which half are used.
constexpr int TABLE_BYTES = 256 * ENTRY_BYTES;

extern __shared__ __align__(1024) unsigned char smem[];

// Fill the table. `pair_of_byte(byte)` returns the half2 of a byte, with the earlier input's value in the lower half.
template <int THREADS, class PairOfByte>
__device__ void write_pair_table(PairOfByte pair_of_byte) {
    for (int i = threadIdx.x; i < 256 * 8; i += THREADS) {
        const u32 pair = pair_of_byte(i / 8);
        *(uint4*)(smem + i / 8 * ENTRY_BYTES + i % 8 * 16) = make_uint4(pair, pair, pair, pair);
    }
}

// Return the two weights of one byte of a word. lane_offset: 4 * lane.
template <int BYTE>
__device__ u32 lookup(u32 word, u32 lane_offset) {
    return *(const u32*)(smem + byte_address<BYTE>(word, lane_offset));
}

// Return the zero points of outputs 2 g and 2 g + 1 of a word of eight, minus 8 like the weights in GPTQ's table, as half2.
__device__ u32 lookup_zero_points(u32 word, int g, u32 lane_offset) { return lookup<0>(word >> 8 * (g % 4), lane_offset); }
