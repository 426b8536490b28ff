// W4A16 GEMV of bitsandbytes' NF4 or FP4 weights in blocks of 64 inputs; gemv_tensor_core.cuh has the algorithm.
//
// codes: [outputs, INPUTS / 2], two per byte, the earlier input in the upper four bits. scales: [outputs, INPUTS / 64].
// codebook: [16]. With SWIGLU, the first half of the rows is the gate and the second half is up.
//
// With SWIGLU, row g of A is row g of the gate and row g + 8 is row g of up, and a K step is one chunk. Otherwise, rows g and
// g + 8 are the same output in two consecutive chunks, and a K step is both. A lane loads 16 bytes of each row, 32 inputs. A
// chunk has the inputs of four lanes and two scales.
//
// A scale must be applied before sums of two blocks are added. So columns of B differ: even columns have the chunk's first 64
// inputs and odd columns its last 64, with zeros elsewhere. With two chunks, columns 2 and 3 of four have the second chunk.

#include "gemv_tensor_core.cuh"

constexpr int OUTPUTS = 8, MATRICES = SWIGLU ? 2 : 1, CHUNKS_PER_K_STEP = SWIGLU ? 1 : 2;
constexpr int CHUNKS = INPUTS / CHUNK, ALL_K_STEPS = (CHUNKS + CHUNKS_PER_K_STEP - 1) / CHUNKS_PER_K_STEP;
constexpr bool IS_K_EVEN = WARPS_PER_TILE * K_STEPS == ALL_K_STEPS;

// Packed weights and scales of a lane in a K step.
struct Fragment {
    uint4 codes[2];
    float2 scales[MATRICES];
};

struct Matrix {
    const uint4* codes;
    const float* scales;
    int up;  // Number of rows from the gate's first row to up's first row.
};

__device__ Fragment load_fragment(const Matrix& matrix, int row, int k_step, int t) {
    Fragment result = {};
    if (!IS_K_EVEN && k_step >= ALL_K_STEPS) return result;
    for (int half = 0; half < 2; half++) {
        const int chunk = k_step * CHUNKS_PER_K_STEP + (SWIGLU ? 0 : half);
        // If the number of chunks is odd, the last K step has one chunk; the other half stays 0.
        if (CHUNKS % CHUNKS_PER_K_STEP && chunk >= CHUNKS) continue;
        const size_t index = (size_t)(row + (SWIGLU ? half * matrix.up : 0)) * CHUNKS + chunk;
        load_no_allocate(matrix.codes + index * 4 + t, result.codes[half]);
        // A lane needs the scales of only one of two chunks: the chunk whose sums it receives.
        if (!SWIGLU && half != t % 2) continue;
        load_cached(matrix.scales + index * 2, result.scales[SWIGLU ? half : 0]);
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemv_nf4_kernel(const u16* hidden, const uint4* codes, const float* scales, const float* codebook, const u16* gain,
                const u16* residual, u16* output, int outputs, float epsilon) {
    launch_dependents();
    const auto [slot, k_warp, lane, g, t] = thread_coord();
    const Matrix matrix = {codes, scales, outputs};
    const int tiles = outputs / OUTPUTS, stride = gridDim.x * TILES_PER_BLOCK;
    int tile = blockIdx.x * TILES_PER_BLOCK + slot;
    Fragment fragments[PREFETCH];
    if (tile < tiles)
#pragma unroll
        for (int i = 0; i < PREFETCH; i++) fragments[i] = load_fragment(matrix, tile * OUTPUTS + g, k_warp * K_STEPS + i, t);
    uint4 gains[VECTORS_PER_THREAD];
    load_gain(gain, gains);
    write_table_and_zeros([=](int byte) { return pack_half2(codebook[byte >> 4], codebook[byte & 15]); });
    // Vector j of lane t in a chunk is at 64 j + 16 t, so that the four lanes read from different banks.
    load_input(hidden, gains, epsilon, [](int index) { return index / 16 * 256 + index % 4 * 64 + index / 4 % 4 * 16; });

    const bool is_used = t / 2 == g % 2;
    const int chunk = k_warp * K_STEPS * CHUNKS_PER_K_STEP + (SWIGLU ? 0 : g / 2 % 2);
    const unsigned char* column = smem + (is_used ? INPUT_OFFSET + chunk * 256 + t * 16 : ZEROS_OFFSET);
    const int k_step_bytes = is_used ? CHUNKS_PER_K_STEP * 256 : 0;
    for (int parity = 0; tile < tiles; tile += stride, parity ^= 1) {
        float totals[MATRICES] = {};
        for (int done = 0; done < K_STEPS; done += PREFETCH)
#pragma unroll
            for (int i = 0; i < PREFETCH; i++) {
                const Fragment fragment = fragments[i];
                const int k_step = k_warp * K_STEPS + done + i;
                if (done + PREFETCH < K_STEPS)
                    fragments[i] = load_fragment(matrix, tile * OUTPUTS + g, k_step + PREFETCH, t);
                else if (IS_PERSISTENT && tile + stride < tiles)
                    fragments[i] = load_fragment(matrix, (tile + stride) * OUTPUTS + g, k_warp * K_STEPS + i, t);
                if (!IS_K_EVEN && k_step >= ALL_K_STEPS) continue;
                // Two independent accumulators halve the chain of dependent mma.
                float acc0[4] = {}, acc1[4] = {};
                const auto& codes = fragment.codes;
                const u32 words[2][4] = {{codes[0].x, codes[0].y, codes[0].z, codes[0].w},
                                         {codes[1].x, codes[1].y, codes[1].z, codes[1].w}};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint4 inputs = *(const uint4*)(column + (done + i) * k_step_bytes + j * 64);
                    lookup_and_mma<0>(acc0, words[0][j], words[1][j], lane * 4, inputs.x, inputs.y);
                    lookup_and_mma<2>(acc1, words[0][j], words[1][j], lane * 4, inputs.z, inputs.w);
                }
                for (int k = 0; k < 4; k++) acc0[k] += acc1[k];
                const auto& scales = fragment.scales;
                if (SWIGLU) {
                    totals[0] += scales[0].x * acc0[0] + scales[0].y * acc0[1];
                    totals[MATRICES - 1] += scales[MATRICES - 1].x * acc0[2] + scales[MATRICES - 1].y * acc0[3];
                } else {
                    totals[0] += t % 2 ? scales[0].x * acc0[2] + scales[0].y * acc0[3]
                                       : scales[0].x * acc0[0] + scales[0].y * acc0[1];
                }
            }
        if (!SWIGLU) totals[0] += __shfl_xor_sync(~0u, totals[0], 1);
        float* sums = (float*)(smem + SUMS_OFFSET) + (parity * TILES_PER_BLOCK + slot) * WARPS_PER_TILE * MATRICES * OUTPUTS;
        if (t == 0)
            for (int half = 0; half < MATRICES; half++) sums[(k_warp * MATRICES + half) * OUTPUTS + g] = totals[half];
        reduce_and_write<OUTPUTS, MATRICES>(sums, slot, k_warp, tile * OUTPUTS, residual, output);
    }
}
