// W4A16 GEMV of GPTQ's words, with groups of 128 inputs; see gemv_tensor_core.cuh.
//
// words: [INPUTS / 8, outputs], eight consecutive inputs, lowest bits first. scales: [INPUTS / 128, outputs]. zeros, if ZEROED:
// [INPUTS / 128, outputs / 8], zero points of eight outputs, lowest bits first; otherwise all are 8. With SWIGLU the first matrix is the gate's, the second up's, and each may be columns of a larger one with `outputs` columns. Otherwise
// the outputs of up to three matrices are concatenated.
//
// Rows g and g + 8 of A are outputs 2 g and 2 g + 1 of a tile. A lane reads a word of each, four times: a chunk with one
// scale. All columns of B are equal.

#include "gemv_tensor_core.cuh"

constexpr int OUTPUTS = 16, MATRICES = SWIGLU ? 2 : 1;
constexpr int UNITS_OF_ALL = INPUTS / CHUNK;
constexpr bool IS_EVEN = SPLIT * UNITS == UNITS_OF_ALL;

struct Unit {
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

__device__ Unit read_unit(const Matrices& matrices, int first, int unit, int g, int t) {
    Unit result = {};
    if (!IS_EVEN && unit >= UNITS_OF_ALL) return result;
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
            const u32* words = matrix.words + (size_t)(unit * 16 + 4 * j + t) * matrix.outputs + column;
            load_no_allocate(words, result.words[half][j]);
        }
        load_cached(matrix.scales + (size_t)unit * matrix.outputs + column, result.scales[half]);
        if (ZEROED) load_cached(matrix.zeros + ((size_t)unit * matrix.outputs + column) / 8, result.zeros[half]);
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemv_gptq_kernel(const u16* hidden, const u32* words, const u32* zeros, const u16* scales, const u32* words1,
                 const u32* zeros1, const u16* scales1, const u32* words2, const u32* zeros2, const u16* scales2,
                 const u16* gain, const u16* residual, u16* output, int outputs, int outputs1, int outputs2,
                 int outputs_of_all, float epsilon) {
    launch_dependents();
    const auto [group, part, lane, g, t] = own_place();
    const Matrices matrices = {
        {{words, zeros, scales, outputs}, {words1, zeros1, scales1, outputs1}, {words2, zeros2, scales2, outputs2}}};
    const int tiles = outputs_of_all / OUTPUTS, stride = gridDim.x * GROUPS;
    int tile = blockIdx.x * GROUPS + group;
    Unit units[HELD];
    if (tile < tiles)
#pragma unroll
        for (int i = 0; i < HELD; i++) units[i] = read_unit(matrices, tile * OUTPUTS, part * UNITS + i, g, t);
    uint4 gains[EACH];
    read_gain(gain, gains);
    write_table([](int byte) { return pack_half2((byte & 15) - 8.0f, (byte >> 4) - 8.0f); });
    bring_vector(hidden, gains, epsilon, [](int at) { return at * 16; });

    const unsigned char* column = smem + VECTOR + part * UNITS * 256 + t * 16;
    for (int parity = 0; tile < tiles; tile += stride, parity ^= 1) {
        float totals[MATRICES][2] = {};
        for (int done = 0; done < UNITS; done += HELD)
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                const Unit unit = units[i];
                const int at = part * UNITS + done + i;
                if (done + HELD < UNITS)
                    units[i] = read_unit(matrices, tile * OUTPUTS, at + HELD, g, t);
                else if (IS_REPEATED && tile + stride < tiles)
                    units[i] = read_unit(matrices, (tile + stride) * OUTPUTS, part * UNITS + i, g, t);
                if (!IS_EVEN && at >= UNITS_OF_ALL) continue;
                float sums[MATRICES][4] = {}, others[MATRICES][4] = {}, of_inputs[4] = {};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint4 inputs = *(const uint4*)(column + (done + i) * 256 + j * 64);
                    if (ZEROED) add_inputs(of_inputs, inputs.x, inputs.y);
                    if (ZEROED) add_inputs(of_inputs, inputs.z, inputs.w);
#pragma unroll
                    for (int half = 0; half < MATRICES; half++) {
                        const uint2 word = unit.words[half][j];
                        multiply<0>(sums[half], word.x, word.y, lane * 4, inputs.x, inputs.y);
                        multiply<2>(others[half], word.x, word.y, lane * 4, inputs.z, inputs.w);
                    }
                }
                for (int half = 0; half < MATRICES; half++) {
                    float low = sums[half][0] + others[half][0], high = sums[half][2] + others[half][2];
                    if (ZEROED) {
                        const u32 zeros = lookup_zero_points(unit.zeros[half], g, lane * 4);
                        low -= low_of(zeros) * of_inputs[0];
                        high -= high_of(zeros) * of_inputs[0];
                    }
                    totals[half][0] += low_of(unit.scales[half]) * low;
                    totals[half][1] += high_of(unit.scales[half]) * high;
                }
            }
        float* sums = (float*)(smem + SUMS) + (parity * GROUPS + group) * SPLIT * MATRICES * OUTPUTS;
        if (t == 0)
            for (int half = 0; half < MATRICES; half++)
                for (int one = 0; one < 2; one++)
                    sums[(part * MATRICES + half) * OUTPUTS + 2 * g + one] = totals[half][one];
        write_outputs<OUTPUTS, MATRICES>(sums, group, part, tile * OUTPUTS, residual, output);
    }
}
