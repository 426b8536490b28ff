// W4A16 GEMV of bitsandbytes' NF4 or FP4 codes; see gemv_tensor_core.cuh.
//
// codes: [outputs, INPUTS / 2], two per byte, the earlier input in the upper four bits. scales: [outputs, INPUTS / 64].
// numbers: [16]. With SWIGLU the first half of the outputs are the gate's, the other half up's.
//
// Rows g and g + 8 of A are the gate's and up's row g of a tile, or one output's numbers in two consecutive chunks. A lane
// reads 16 bytes of each: 32 inputs; a chunk has four lanes' inputs and two scales.
//
// Scales must be applied before the sum. So columns of B differ: even ones have a chunk's first 64 inputs, odd ones its
// last, and zeros elsewhere. With two chunks, the third and fourth of four columns are the second chunk's.

#include "gemv_tensor_core.cuh"

constexpr int OUTPUTS = 8, MATRICES = SWIGLU ? 2 : 1, CHUNKS = SWIGLU ? 1 : 2;
constexpr int CHUNKS_OF_ALL = INPUTS / CHUNK, UNITS_OF_ALL = (CHUNKS_OF_ALL + CHUNKS - 1) / CHUNKS;
constexpr bool IS_EVEN = SPLIT * UNITS == UNITS_OF_ALL;

struct Unit {
    uint4 codes[2];
    float2 scales[MATRICES];
};

struct Matrix {
    const uint4* codes;
    const float* scales;
    int up;  // Number of rows from the gate's first row to up's first row.
};

__device__ Unit read_unit(const Matrix& matrix, int row, int unit, int t) {
    Unit result = {};
    if (!IS_EVEN && unit >= UNITS_OF_ALL) return result;
    for (int half = 0; half < 2; half++) {
        const int chunk = unit * CHUNKS + (SWIGLU ? 0 : half);
        // If the number of chunks is odd, the last chunk has no partner, whose sums stay 0.
        if (CHUNKS_OF_ALL % CHUNKS && chunk >= CHUNKS_OF_ALL) continue;
        const size_t place = (size_t)(row + (SWIGLU ? half * matrix.up : 0)) * CHUNKS_OF_ALL + chunk;
        load_no_allocate(matrix.codes + place * 4 + t, result.codes[half]);
        // A lane reads the scales of only one of two chunks, the chunk whose sums it receives.
        if (!SWIGLU && half != t % 2) continue;
        load_cached(matrix.scales + place * 2, result.scales[SWIGLU ? half : 0]);
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemv_nf4_kernel(const u16* hidden, const uint4* codes, const float* scales, const float* numbers, const u16* gain,
                const u16* residual, u16* output, int outputs, float epsilon) {
    launch_dependents();
    const auto [group, part, lane, g, t] = own_place();
    const Matrix matrix = {codes, scales, outputs};
    const int tiles = outputs / OUTPUTS, stride = gridDim.x * GROUPS;
    int tile = blockIdx.x * GROUPS + group;
    Unit units[HELD];
    if (tile < tiles)
#pragma unroll
        for (int i = 0; i < HELD; i++) units[i] = read_unit(matrix, tile * OUTPUTS + g, part * UNITS + i, t);
    uint4 gains[EACH];
    read_gain(gain, gains);
    write_table([=](int byte) { return pack_half2(numbers[byte >> 4], numbers[byte & 15]); });
    // Of each chunk, lane t's part j is at 64 j + 16 t: four lanes read from all banks.
    bring_vector(hidden, gains, epsilon, [](int at) { return at / 16 * 256 + at % 4 * 64 + at / 4 % 4 * 16; });

    const bool is_used = t / 2 == g % 2;
    const int chunk = part * UNITS * CHUNKS + (SWIGLU ? 0 : g / 2 % 2);
    const unsigned char* column = smem + (is_used ? VECTOR + chunk * 256 + t * 16 : ZEROS);
    const int unit_bytes = is_used ? CHUNKS * 256 : 0;
    for (int parity = 0; tile < tiles; tile += stride, parity ^= 1) {
        float totals[MATRICES] = {};
        for (int done = 0; done < UNITS; done += HELD)
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                const Unit unit = units[i];
                const int at = part * UNITS + done + i;
                if (done + HELD < UNITS)
                    units[i] = read_unit(matrix, tile * OUTPUTS + g, at + HELD, t);
                else if (IS_REPEATED && tile + stride < tiles)
                    units[i] = read_unit(matrix, (tile + stride) * OUTPUTS + g, part * UNITS + i, t);
                if (!IS_EVEN && at >= UNITS_OF_ALL) continue;
                float sums[4] = {}, others[4] = {};
                const u32 words[2][4] = {{unit.codes[0].x, unit.codes[0].y, unit.codes[0].z, unit.codes[0].w},
                                         {unit.codes[1].x, unit.codes[1].y, unit.codes[1].z, unit.codes[1].w}};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint4 inputs = *(const uint4*)(column + (done + i) * unit_bytes + j * 64);
                    multiply<0>(sums, words[0][j], words[1][j], lane * 4, inputs.x, inputs.y);
                    multiply<2>(others, words[0][j], words[1][j], lane * 4, inputs.z, inputs.w);
                }
                for (int k = 0; k < 4; k++) sums[k] += others[k];
                if (SWIGLU) {
                    totals[0] += unit.scales[0].x * sums[0] + unit.scales[0].y * sums[1];
                    totals[MATRICES - 1] += unit.scales[MATRICES - 1].x * sums[2] + unit.scales[MATRICES - 1].y * sums[3];
                } else {
                    totals[0] += t % 2 ? unit.scales[0].x * sums[2] + unit.scales[0].y * sums[3]
                                       : unit.scales[0].x * sums[0] + unit.scales[0].y * sums[1];
                }
            }
        if (!SWIGLU) totals[0] += __shfl_xor_sync(~0u, totals[0], 1);
        float* sums = (float*)(smem + SUMS) + (parity * GROUPS + group) * SPLIT * MATRICES * OUTPUTS;
        if (t == 0)
            for (int half = 0; half < MATRICES; half++) sums[(part * MATRICES + half) * OUTPUTS + g] = totals[half];
        write_outputs<OUTPUTS, MATRICES>(sums, group, part, tile * OUTPUTS, residual, output);
    }
}
