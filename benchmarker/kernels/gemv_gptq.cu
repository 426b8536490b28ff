// W4A16 GEMV of GPTQ weights in groups of 128 inputs; gemv_tensor_core.cuh has the algorithm.
//
// words: [INPUTS / 8, outputs], eight consecutive inputs, lowest bits first. scales: [INPUTS / 128, outputs]. zeros, if
// HAS_ZEROS: [INPUTS / 128, outputs / 8], zero points of eight outputs, lowest bits first; otherwise all are 8. With SWIGLU,
// the first matrix is the gate and the second is up; each may be columns of a larger matrix with `outputs` columns.
// Otherwise the outputs of up to three matrices are concatenated.
//
// Rows g and g + 8 of A are outputs 2 g and 2 g + 1 of a tile. A K step is one chunk: a lane loads four words of each output.
// All columns of B are equal.

#include "gemv_tensor_core.cuh"

constexpr int OUTPUTS = 16, MATRICES = SWIGLU ? 2 : 1;
constexpr int ALL_K_STEPS = INPUTS / CHUNK;
constexpr bool IS_K_EVEN = WARPS_PER_TILE * K_STEPS == ALL_K_STEPS;

// Packed weights, scales and zero points of a lane in a K step.
struct Fragment {
    uint2 words[MATRICES][4];
    u32 scales[MATRICES], zeros[MATRICES];
};

struct Matrix {
    const u32 *words, *zeros;
    const u16* scales;
    int outputs;
};

struct Matrices {
    Matrix all[3];
};

__device__ Fragment load_fragment(const Matrices& matrices, int first, int k_step, int g, int t) {
    Fragment result = {};
    if (!IS_K_EVEN && k_step >= ALL_K_STEPS) return result;
#pragma unroll
    for (int half = 0; half < MATRICES; half++) {
        Matrix matrix = matrices.all[half];
        if (!SWIGLU && first >= matrix.outputs) {
            first -= matrix.outputs;
            matrix = matrices.all[1];
            if (first >= matrix.outputs) {
                first -= matrix.outputs;
                matrix = matrices.all[2];
            }
        }
        const int column = first + 2 * g;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32* words = matrix.words + (size_t)(k_step * 16 + 4 * j + t) * matrix.outputs + column;
            load_no_allocate(words, result.words[half][j]);
        }
        load_cached(matrix.scales + (size_t)k_step * matrix.outputs + column, result.scales[half]);
        if (HAS_ZEROS) load_cached(matrix.zeros + ((size_t)k_step * matrix.outputs + column) / 8, result.zeros[half]);
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemv_gptq_kernel(const u16* hidden, const u32* words, const u32* zeros, const u16* scales, const u32* words1,
                 const u32* zeros1, const u16* scales1, const u32* words2, const u32* zeros2, const u16* scales2,
                 const u16* gain, const u16* residual, u16* output, int outputs, int outputs1, int outputs2,
                 int total_outputs, float epsilon) {
    launch_dependents();
    const auto [slot, k_warp, lane, g, t] = thread_coord();
    const Matrices matrices = {
        {{words, zeros, scales, outputs}, {words1, zeros1, scales1, outputs1}, {words2, zeros2, scales2, outputs2}}};
    const int tiles = total_outputs / OUTPUTS, stride = gridDim.x * TILES_PER_BLOCK;
    int tile = blockIdx.x * TILES_PER_BLOCK + slot;
    Fragment fragments[PREFETCH];
    if (tile < tiles)
#pragma unroll
        for (int i = 0; i < PREFETCH; i++) fragments[i] = load_fragment(matrices, tile * OUTPUTS, k_warp * K_STEPS + i, g, t);
    uint4 gains[VECTORS_PER_THREAD];
    load_gain(gain, gains);
    write_table_and_zeros([](int byte) { return pack_half2((byte & 15) - 8.0f, (byte >> 4) - 8.0f); });
    load_input(hidden, gains, epsilon, [](int index) { return index * 16; });

    const unsigned char* column = smem + INPUT_OFFSET + k_warp * K_STEPS * 256 + t * 16;
    for (int parity = 0; tile < tiles; tile += stride, parity ^= 1) {
        float totals[MATRICES][2] = {};
        for (int done = 0; done < K_STEPS; done += PREFETCH)
#pragma unroll
            for (int i = 0; i < PREFETCH; i++) {
                const Fragment fragment = fragments[i];
                const int k_step = k_warp * K_STEPS + done + i;
                if (done + PREFETCH < K_STEPS)
                    fragments[i] = load_fragment(matrices, tile * OUTPUTS, k_step + PREFETCH, g, t);
                else if (IS_PERSISTENT && tile + stride < tiles)
                    fragments[i] = load_fragment(matrices, (tile + stride) * OUTPUTS, k_warp * K_STEPS + i, g, t);
                if (!IS_K_EVEN && k_step >= ALL_K_STEPS) continue;
                // Two independent accumulators per matrix halve the chain of dependent mma.
                float acc0[MATRICES][4] = {}, acc1[MATRICES][4] = {};
                const float input_sum = HAS_ZEROS ? *chunk_sum(k_step) : 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint4 inputs = *(const uint4*)(column + (done + i) * 256 + j * 64);
#pragma unroll
                    for (int half = 0; half < MATRICES; half++) {
                        const uint2 word = fragment.words[half][j];
                        lookup_and_mma<0>(acc0[half], word.x, word.y, lane * 4, inputs.x, inputs.y);
                        lookup_and_mma<2>(acc1[half], word.x, word.y, lane * 4, inputs.z, inputs.w);
                    }
                }
                for (int half = 0; half < MATRICES; half++) {
                    float low = acc0[half][0] + acc1[half][0], high = acc0[half][2] + acc1[half][2];
                    if (HAS_ZEROS) {
                        // A weight is (code - zero) * scale.
                        const u32 zeros = lookup_zero_points(fragment.zeros[half], g, lane * 4);
                        low -= low_float(zeros) * input_sum;
                        high -= high_float(zeros) * input_sum;
                    }
                    totals[half][0] += low_float(fragment.scales[half]) * low;
                    totals[half][1] += high_float(fragment.scales[half]) * high;
                }
            }
        float* sums = (float*)(smem + SUMS_OFFSET) + (parity * TILES_PER_BLOCK + slot) * WARPS_PER_TILE * MATRICES * OUTPUTS;
        if (t == 0)
            for (int half = 0; half < MATRICES; half++)
                for (int i = 0; i < 2; i++)
                    sums[(k_warp * MATRICES + half) * OUTPUTS + 2 * g + i] = totals[half][i];
        reduce_and_write<OUTPUTS, MATRICES>(sums, slot, k_warp, tile * OUTPUTS, residual, output);
    }
}
