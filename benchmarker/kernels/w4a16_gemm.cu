// W4A16 GEMM for 2 to 64 rows, on tensor cores; pair_table.cuh describes the table, gemv_tensor_core.cuh a lane's operands.
//
// IS_CODES: bitsandbytes' codes [outputs, INPUTS / 2], scales [outputs, INPUTS / 64] in 32 bits, and the code table [16];
// otherwise GPTQ's words [INPUTS / 8, outputs] and scales [INPUTS / 128, outputs] in 16 bits, and, if ZEROED, zero points
// [INPUTS / 128, outputs / 8] in the place of the code table; if not, all are 8. hidden: [rows, INPUTS]; output: [rows,
// outputs].
//
// The eight columns of B are eight rows, in COLUMNS groups; a pair of weights is looked up once for all. A tile is 16
// outputs and one of PARTS parts of the inputs, shared by SPLIT warps. Consecutive tiles have the same part, so that a block
// reads the same numbers of the rows. With several parts, each stores its sums, and the last to arrive adds them in a fixed
// order. A warp takes UNITS chunks, HELD of them in flight. IS_REPEATED: there are more tiles than groups.
//
// left: [outputs / 16, PARTS, SUMS_OF_TILE]; arrived: [outputs / 16, SPLIT], zero before and after.

#include "pair_table.cuh"

constexpr int THREADS = WARP * SPLIT * GROUPS;

constexpr int CHUNK = 128, CHUNKS = INPUTS / CHUNK, OUTPUTS = 16, ROWS = 8 * COLUMNS;
constexpr int SCALED = IS_CODES ? 2 : 1;           // Scales per output and chunk. Half a chunk is multiplied at a time.
constexpr int WORDS = 2;                           // Words per output, lane and half a chunk.
constexpr int SUMS = TABLE, SUMS_OF_TILE = ROWS * OUTPUTS;
constexpr bool IS_EVEN = SPLIT * PARTS * UNITS == CHUNKS;

struct Unit {
    u32 words[2][4];           // Words of two outputs, which are rows g and g + 8 of A.
    float scales[2][SCALED];
    u32 zeros;
};

struct Weights {
    const unsigned char *words, *scales;
    const u32* zeros;
    int outputs;
};

// Work of a warp: index of the 16 outputs, index of the part of the inputs, and the warp's first chunk.
struct Task {
    int outputs, part, first;
};

__device__ Task task_of(int tile, int share, int outputs) {
    const int part = PARTS > 1 ? tile / (outputs / OUTPUTS) : 0;
    return {tile - part * (outputs / OUTPUTS), part, (part * SPLIT + share) * UNITS};
}

__device__ Unit read_unit(const Weights& weights, const Task& task, int at, int g, int t) {
    Unit unit = {};
    const int chunk = task.first + at;
    if (!IS_EVEN && chunk >= CHUNKS) return unit;
    if (IS_CODES) {
        for (int half = 0; half < 2; half++) {
            const size_t place = (size_t)(task.outputs * OUTPUTS + 8 * half + g) * CHUNKS + chunk;
            float2 scales;
            load_cached(weights.scales + place * 8, scales);
            unit.scales[half][0] = scales.x;
            unit.scales[half][SCALED - 1] = scales.y;
            for (int part = 0; part < 2; part++) {
                uint2 words;
                load_no_allocate(weights.words + place * 64 + part * 32 + t * 8, words);
                unit.words[half][2 * part] = words.x;
                unit.words[half][2 * part + 1] = words.y;
            }
        }
    } else {
        const int column = task.outputs * OUTPUTS + 2 * g;
        for (int j = 0; j < 4; j++) {
            uint2 words;
            load_no_allocate(weights.words + ((size_t)(chunk * 16 + 4 * j + t) * weights.outputs + column) * 4, words);
            unit.words[0][j] = words.x;
            unit.words[1][j] = words.y;
        }
        u32 pair;
        load_cached(weights.scales + ((size_t)chunk * weights.outputs + column) * 2, pair);
        unit.scales[0][0] = to_float(pair & 0xffff);
        unit.scales[1][0] = to_float(pair >> 16);
        if (ZEROED) load_cached(weights.zeros + ((size_t)chunk * weights.outputs + column) / 8, unit.zeros);
    }
    return unit;
}

// Return the first input of lane t's word j in half `part` of a chunk.
__device__ int inputs_of(int part, int j, int t) { return part * 64 + (IS_CODES ? t * 16 + j * 8 : j * 32 + t * 8); }

// Return in `a` the weights of bytes FIRST and FIRST + 1 as operand A: `word` is from row g, `other` from row g + 8.
template <int FIRST>
__device__ void multiplicands(u32 (&a)[4], u32 word, u32 other, u32 own) {
    a[0] = looked_up<FIRST>(word, own);
    a[1] = looked_up<FIRST>(other, own);
    a[2] = looked_up<FIRST + 1>(word, own);
    a[3] = looked_up<FIRST + 1>(other, own);
}

// Write sum `at` of a tile, if its row exists.
__device__ void write_output(u16* output, float sum, int at, int tile, int rows, int outputs) {
    const int row = at / OUTPUTS;
    if (row < rows) output[(size_t)row * outputs + tile * OUTPUTS + at % OUTPUTS] = (u16)pack_half2(sum, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_4bit_kernel(const u16* hidden, const unsigned char* words, const unsigned char* scales, const float* numbers,
                   float* left, int* arrived, u16* output, int rows, int outputs) {
    launch_dependents();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int group = warp / SPLIT, share = warp % SPLIT;
    const Weights weights = {words, scales, (const u32*)numbers, outputs};
    const int tiles = outputs / OUTPUTS * PARTS, stride = gridDim.x * GROUPS;
    int tile = blockIdx.x * GROUPS + group;
    Task task = task_of(tile, share, outputs), next = {};
    Unit units[HELD];
    if (tile < tiles)
#pragma unroll
        for (int i = 0; i < HELD; i++) units[i] = read_unit(weights, task, i, g, t);
    if (IS_CODES)
        write_pairs<THREADS>([=](int byte) { return pack_half2(numbers[byte >> 4], numbers[byte & 15]); });
    else
        write_pairs<THREADS>([](int byte) { return pack_half2((byte & 15) - 8.0f, (byte >> 4) - 8.0f); });
    __syncthreads();
    wait_for_previous_kernel();
    // The row that is this lane's column of B. If there is none, the last row replaces it; its sums are not written.
    const u16* first_row = hidden + (size_t)g * INPUTS;
    const int last = ROWS - 8 + g;
    const u16* last_row = hidden + (size_t)(last < rows ? last : rows - 1) * INPUTS;
    for (int parity = 0; tile < tiles; tile += stride, parity ^= 1, task = next) {
        if (IS_REPEATED) next = task_of(tile + stride, share, outputs);
        float totals[COLUMNS][4] = {};
#pragma unroll 1
        for (int done = 0; done < UNITS; done += HELD)
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                Unit unit = units[i];
                const int chunk = task.first + done + i;
                if (done + HELD < UNITS)
                    units[i] = read_unit(weights, task, done + i + HELD, g, t);
                else if (IS_REPEATED && tile + stride < tiles)
                    units[i] = read_unit(weights, next, i, g, t);
                if (!IS_EVEN && chunk >= CHUNKS) continue;
#pragma unroll 1  // Otherwise the compiler reads so far ahead that registers do not suffice.
                for (int part = 0; part < 2; part++) {
                    u32 a[2 * WORDS][4];
#pragma unroll
                    for (int j = 0; j < WORDS; j++) {
                        const u32 word = unit.words[0][j], other = unit.words[1][j];
                        multiplicands<0>(a[2 * j], word, other, lane * 4);
                        multiplicands<2>(a[2 * j + 1], word, other, lane * 4);
                    }
                    const float low = unit.scales[0][0], high = unit.scales[1][0];
                    const u32 zeros = ZEROED ? lookup_zero_points(unit.zeros, g, lane * 4) : 0;
                    const float low_zero = to_float(zeros & 0xffff), high_zero = to_float(zeros >> 16);
#pragma unroll
                    for (int at = 0; at < COLUMNS; at++) {
                        const u16* row = at < COLUMNS - 1 ? first_row + at * 8 * INPUTS : last_row;
                        float sums[4] = {}, of_inputs[4] = {};
#pragma unroll
                        for (int j = 0; j < WORDS; j++) {
                            const uint4 x = *(const uint4*)(row + chunk * CHUNK + inputs_of(part, j, t));
                            if (ZEROED) add_inputs(of_inputs, x.x, x.y);
                            if (ZEROED) add_inputs(of_inputs, x.z, x.w);
                            mma_m16n8k16(sums, a[2 * j], x.x, x.y);
                            mma_m16n8k16(sums, a[2 * j + 1], x.z, x.w);
                        }
                        for (int k = 0; k < 4; k++) {
                            if (ZEROED) sums[k] -= (k < 2 ? low_zero : high_zero) * of_inputs[k];
                            totals[at][k] += (k < 2 ? low : high) * sums[k];
                        }
                    }
                    for (int half = 0; half < 2; half++) {
                        for (int j = 0; j < WORDS; j++) unit.words[half][j] = unit.words[half][WORDS + j];
                        unit.scales[half][0] = unit.scales[half][SCALED - 1];
                    }
                }
            }
        float* sums = (float*)(smem + SUMS) + (parity * GROUPS + group) * SPLIT * SUMS_OF_TILE;
        for (int at = 0; at < COLUMNS; at++)
            for (int k = 0; k < 4; k++) {
                const int row = 8 * at + 2 * t + k % 2, place = IS_CODES ? g + 8 * (k / 2) : 2 * g + k / 2;
                sums[share * SUMS_OF_TILE + row * OUTPUTS + place] = totals[at][k];
            }
        named_barrier_sync(group + 1, SPLIT * WARP);
        // Each warp adds some of the sums of its block; in the block that ends last, also the sums of all blocks.
        if (PARTS > 1 && share * WARP >= SUMS_OF_TILE) continue;
        float* own_left = left + (size_t)task.outputs * PARTS * SUMS_OF_TILE;
        for (int at = share * WARP + lane; at < SUMS_OF_TILE; at += SPLIT * WARP) {
            float sum = 0;
            for (int from = 0; from < SPLIT; from++) sum += sums[from * SUMS_OF_TILE + at];
            if (PARTS > 1)
                own_left[task.part * SUMS_OF_TILE + at] = sum;
            else
                write_output(output, sum, at, task.outputs, rows, outputs);
        }
        if (PARTS == 1 || !arrive_and_check_last(arrived + task.outputs * SPLIT + share, PARTS)) continue;
        for (int at = share * WARP + lane; at < SUMS_OF_TILE; at += SPLIT * WARP) {
            float sum = 0;
            for (int from = 0; from < PARTS; from++) sum += load_partial_sums(own_left + from * SUMS_OF_TILE + at);
            write_output(output, sum, at, task.outputs, rows, outputs);
        }
    }
}
