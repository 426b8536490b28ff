// Common part of the W4A16 GEMVs on tensor cores: a matrix of codes times one vector.
//
// Pairs of weights come from the table in pair_table.cuh. Products are summed in 32 bits.
//
// mma multiplies A (16 x 16, weights) by B (16 x 8, vector). Lane 4 g + t of a warp holds rows g and g + 8 of A, column g of
// B, and columns 2 t and 2 t + 1 of the same rows of the result, with four of the 16 terms of each. The assignment of inputs
// to terms is free if A and B agree: a lane takes eight consecutive inputs in two products.
//
// A block has GROUPS groups of SPLIT warps. A group takes a tile of outputs, then others; each warp takes UNITS parts of the
// inputs, HELD of them in flight, also before the previous kernel ends, whose output, the vector, is awaited afterwards
// (programmatic dependent launch).
//
// Macros: INPUTS, SPLIT, GROUPS, UNITS, HELD, IS_REPEATED (more tiles than groups), NORMED (RMS norm of the vector), SWIGLU
// (silu(gate) * up of two matrices), ADDED (residual), ZEROED (zero points other than 8), BF16.

#include "pair_table.cuh"

constexpr int THREADS = WARP * SPLIT * GROUPS;

__device__ float low_of(u32 pair) { return to_float(pair & 0xffff); }
__device__ float high_of(u32 pair) { return to_float(pair >> 16); }

constexpr int CHUNK = 128;                         // Inputs whose numbers a warp multiplies by in eight products.
constexpr int VECTORS = INPUTS / 8;                // The vector is read in parts of eight numbers.
constexpr int PADDED = (INPUTS + 2 * CHUNK - 1) / (2 * CHUNK) * (2 * CHUNK / 8);  // With zeros to two whole chunks.
constexpr int EACH = (PADDED + THREADS - 1) / THREADS;
constexpr int ZEROS = TABLE + 64;                  // 256 bytes of zeros, 64 off the banks of the vector.
constexpr int VECTOR = TABLE + 512;
constexpr int SUMS = VECTOR + 16 * PADDED;         // Each warp's sums, twice: of a tile, and of the one before it.

// Indices of a thread; g and t as above. `part` is the index of its warp in the group.
struct Place {
    int group, part, lane, g, t;
};

__device__ Place own_place() {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    return {warp / SPLIT, warp % SPLIT, lane, lane / 4, lane % 4};
}

// Write the table, see `write_pairs`, and the zeros.
template <class Numbers>
__device__ void write_table(Numbers numbers) {
    write_pairs<THREADS>(numbers);
    if (threadIdx.x < 16) *(uint4*)(smem + ZEROS + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
}

// sums += A * B for the weights of bytes FIRST and FIRST + 1: `word` is from row g of A, `other` from row g + 8.
template <int FIRST>
__device__ void multiply(float (&sums)[4], u32 word, u32 other, u32 own, u32 first, u32 second) {
    const u32 a[4] = {looked_up<FIRST>(word, own), looked_up<FIRST>(other, own), looked_up<FIRST + 1>(word, own),
                      looked_up<FIRST + 1>(other, own)};
    mma_m16n8k16(sums, a, first, second);
}

__device__ void read_gain(const u16* gain, uint4 (&gains)[EACH]) {
    for (int i = 0; i < EACH; i++) {
        const int at = threadIdx.x + i * THREADS;
        gains[i] = NORMED && at < VECTORS ? ((const uint4*)gain)[at] : make_uint4(0, 0, 0, 0);
    }
}

__device__ u32 normed(u32 pair, u32 gain, float factor) {
    const u32 unit = pack_half2(low_of(pair) * factor, high_of(pair) * factor);  // Rounded here, as in the models.
    return pack_half2(low_of(unit) * low_of(gain), high_of(unit) * high_of(gain));
}

__device__ float sum_of_block(float value) {
    float* sums = (float*)(smem + SUMS);
    for (int apart = WARP / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    value = threadIdx.x % WARP < THREADS / WARP ? sums[threadIdx.x % WARP] : 0;
    for (int apart = WARP / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    return value;
}

// Wait for the previous kernel, and copy the normed vector to shared memory: numbers from 8 at on to VECTOR + place(at).
template <class Place>
__device__ void bring_vector(const u16* hidden, const uint4 (&gains)[EACH], float epsilon, Place place) {
    wait_for_previous_kernel();
    uint4 vector[EACH];
    float squares = 0;
    for (int i = 0; i < EACH; i++) {
        const int at = threadIdx.x + i * THREADS;
        vector[i] = at < VECTORS ? ((const uint4*)hidden)[at] : make_uint4(0, 0, 0, 0);
        if (NORMED)
            for (u32 pair : {vector[i].x, vector[i].y, vector[i].z, vector[i].w})
                squares += low_of(pair) * low_of(pair) + high_of(pair) * high_of(pair);
    }
    if (NORMED) {
        const float factor = rsqrtf(sum_of_block(squares) / INPUTS + epsilon);
        for (int i = 0; i < EACH; i++)
            vector[i] = make_uint4(normed(vector[i].x, gains[i].x, factor), normed(vector[i].y, gains[i].y, factor),
                                   normed(vector[i].z, gains[i].z, factor), normed(vector[i].w, gains[i].w, factor));
    }
    for (int i = 0; i < EACH; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (at < PADDED) *(uint4*)(smem + VECTOR + place(at)) = vector[i];
    }
    __syncthreads();
}

// Add the sums of the group's warps, [SPLIT, MATRICES * OUTPUTS], and write the tile's outputs.
template <int OUTPUTS, int MATRICES>
__device__ void write_outputs(const float* sums, int group, int part, int first, const u16* residual, u16* output) {
    named_barrier_sync(group + 1, SPLIT * WARP);
    if (part != 0) return;
    constexpr int ALL = MATRICES * OUTPUTS;
    const int lane = threadIdx.x % WARP;
    float result = 0;
    for (int i = 0; i < SPLIT; i++) result += sums[i * ALL + lane % ALL];
    if (SWIGLU) {
        const float up = __shfl_down_sync(~0u, result, OUTPUTS);
        result = silu(result) * up;
    }
    if (lane < OUTPUTS) {
        if (ADDED) result += to_float(residual[first + lane]);
        output[first + lane] = (u16)pack_half2(result, 0);
    }
}
