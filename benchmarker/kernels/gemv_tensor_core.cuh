// Common part of the W4A16 GEMVs on tensor cores (gemv_gptq.cu, gemv_nf4.cu).
//
// Weights are operand A of mma.m16n8k16, looked up as in pair_table.cuh; the vector is operand B. Accumulation is in float32.
// g and t are groupID and threadID_in_group of lane 4 g + t in the PTX ISA's fragment layouts: a lane has rows g and g + 8 of
// A, column g of B, and columns 2 t and 2 t + 1 of those rows of D. K may be in any order that A and B share: a lane takes
// eight consecutive inputs in two mma.
//
// A block computes TILES_PER_BLOCK tiles of outputs at a time, each by WARPS_PER_TILE warps that divide K (sliced K). A warp
// has K_STEPS steps, PREFETCH of them in flight in registers. The first are loaded before the previous kernel ends; then the
// kernel waits for that kernel's output, the vector (programmatic dependent launch).
//
// Macros: INPUTS, WARPS_PER_TILE, TILES_PER_BLOCK, K_STEPS, PREFETCH, IS_PERSISTENT (a block computes further tiles),
// HAS_NORM (RMS norm of the vector), SWIGLU (silu(gate) * up of two matrices), HAS_RESIDUAL, HAS_ZEROS (zero points other
// than 8), BF16.

#include "pair_table.cuh"

constexpr int THREADS = WARP * WARPS_PER_TILE * TILES_PER_BLOCK;

__device__ float low_float(u32 pair) { return to_float(pair & 0xffff); }
__device__ float high_float(u32 pair) { return to_float(pair >> 16); }

constexpr int CHUNK = 128;                         // Inputs of eight mma; a scale covers a chunk (GPTQ) or half of one.
constexpr int VECTORS = INPUTS / 8;                // The input is loaded in vectors of eight halves, 16 bytes.
constexpr int PADDED_VECTORS = (INPUTS + 2 * CHUNK - 1) / (2 * CHUNK) * (2 * CHUNK / 8);  // Zero-padded to two chunks.
constexpr int VECTORS_PER_THREAD = (PADDED_VECTORS + THREADS - 1) / THREADS;

// Byte offsets in shared memory.
constexpr int ZEROS_OFFSET = TABLE_BYTES + 64;     // 256 bytes of zeros; 64 puts them in other banks than the input.
constexpr int INPUT_OFFSET = TABLE_BYTES + 512;
constexpr int SUMS_OFFSET = INPUT_OFFSET + 16 * PADDED_VECTORS;  // Sums of each warp, double-buffered by tile.

// Indices of a thread. slot: the block's tile that the warp computes. k_warp: the warp's slice of K.
struct ThreadCoord {
    int slot, k_warp, lane, g, t;
};

__device__ ThreadCoord thread_coord() {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    return {warp / WARPS_PER_TILE, warp % WARPS_PER_TILE, lane, lane / 4, lane % 4};
}

// Fill the lookup table, see `write_pair_table`, and the zeros.
template <class PairOfByte>
__device__ void write_table_and_zeros(PairOfByte pair_of_byte) {
    write_pair_table<THREADS>(pair_of_byte);
    if (threadIdx.x < 16) *(uint4*)(smem + ZEROS_OFFSET + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
}

// D += A * B for the weights of bytes FIRST and FIRST + 1 of two words: `word` is from row g of A, `word8` from row g + 8.
template <int FIRST>
__device__ void lookup_and_mma(float (&d)[4], u32 word, u32 word8, u32 lane_offset, u32 b0, u32 b1) {
    const u32 a[4] = {lookup<FIRST>(word, lane_offset), lookup<FIRST>(word8, lane_offset),
                      lookup<FIRST + 1>(word, lane_offset), lookup<FIRST + 1>(word8, lane_offset)};
    mma_m16n8k16(d, a, b0, b1);
}

__device__ void load_gain(const u16* gain, uint4 (&gains)[VECTORS_PER_THREAD]) {
    for (int i = 0; i < VECTORS_PER_THREAD; i++) {
        const int index = threadIdx.x + i * THREADS;
        gains[i] = HAS_NORM && index < VECTORS ? ((const uint4*)gain)[index] : make_uint4(0, 0, 0, 0);
    }
}

__device__ u32 normalize(u32 pair, u32 gain, float factor) {
    const u32 unit = pack_half2(low_float(pair) * factor, high_float(pair) * factor);  // Rounded here, as in the models.
    return pack_half2(low_float(unit) * low_float(gain), high_float(unit) * high_float(gain));
}

__device__ float block_sum(float value) {
    float* sums = (float*)(smem + SUMS_OFFSET);
    for (int mask = WARP / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(~0u, value, mask);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    value = threadIdx.x % WARP < THREADS / WARP ? sums[threadIdx.x % WARP] : 0;
    for (int mask = WARP / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(~0u, value, mask);
    return value;
}

// Sum of a chunk's inputs, in the unused half of an entry of the table.
__device__ float* chunk_sum(int chunk) { return (float*)(smem + chunk * ENTRY_BYTES + ENTRY_BYTES / 2); }

// Wait for the previous kernel, and copy the normalized input to shared memory, with the sums of its chunks if HAS_ZEROS.
// layout: function from the index of a vector of eight inputs to its byte offset.
template <class Layout>
__device__ void load_input(const u16* hidden, const uint4 (&gains)[VECTORS_PER_THREAD], float epsilon, Layout layout) {
    wait_for_previous_kernel();
    uint4 vectors[VECTORS_PER_THREAD];
    float squares = 0;
    for (int i = 0; i < VECTORS_PER_THREAD; i++) {
        const int index = threadIdx.x + i * THREADS;
        vectors[i] = index < VECTORS ? ((const uint4*)hidden)[index] : make_uint4(0, 0, 0, 0);
        if (HAS_NORM)
            for (u32 pair : {vectors[i].x, vectors[i].y, vectors[i].z, vectors[i].w})
                squares += low_float(pair) * low_float(pair) + high_float(pair) * high_float(pair);
    }
    if (HAS_NORM) {
        const float factor = rsqrtf(block_sum(squares) / INPUTS + epsilon);
        for (int i = 0; i < VECTORS_PER_THREAD; i++)
            vectors[i] =
                make_uint4(normalize(vectors[i].x, gains[i].x, factor), normalize(vectors[i].y, gains[i].y, factor),
                           normalize(vectors[i].z, gains[i].z, factor), normalize(vectors[i].w, gains[i].w, factor));
    }
    for (int i = 0; i < VECTORS_PER_THREAD; i++) {
        const int index = threadIdx.x + i * THREADS;
        if (index < PADDED_VECTORS) *(uint4*)(smem + INPUT_OFFSET + layout(index)) = vectors[i];
        if (HAS_ZEROS) {
            float sum = 0;
            for (u32 pair : {vectors[i].x, vectors[i].y, vectors[i].z, vectors[i].w}) sum += low_float(pair) + high_float(pair);
            for (int mask = 1; mask < CHUNK / 8; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
            if (index % (CHUNK / 8) == 0 && index < VECTORS) *chunk_sum(index / (CHUNK / 8)) = sum;
        }
    }
    __syncthreads();
}

// Reduce the sums of a tile's warps, [WARPS_PER_TILE, MATRICES * OUTPUTS], and write the tile from output `first` on.
template <int OUTPUTS, int MATRICES>
__device__ void reduce_and_write(const float* sums, int slot, int k_warp, int first, const u16* residual, u16* output) {
    named_barrier_sync(slot + 1, WARPS_PER_TILE * WARP);
    if (k_warp != 0) return;
    constexpr int ALL = MATRICES * OUTPUTS;
    const int lane = threadIdx.x % WARP;
    float result = 0;
    for (int i = 0; i < WARPS_PER_TILE; i++) result += sums[i * ALL + lane % ALL];
    if (SWIGLU) {
        const float up = __shfl_down_sync(~0u, result, OUTPUTS);
        result = silu(result) * up;
    }
    if (lane < OUTPUTS) {
        if (HAS_RESIDUAL) result += to_float(residual[first + lane]);
        output[first + lane] = (u16)pack_half2(result, 0);
    }
}
