// W4A16 GEMM for 2 to 64 rows on tensor cores. pair_table.cuh has the dequantization; gemv_tensor_core.cuh defines g and t.
//
// IS_CODEBOOK: bitsandbytes' codes [outputs, INPUTS / 2], scales [outputs, INPUTS / 64] in float32, and the codebook [16].
// Otherwise GPTQ's words [INPUTS / 8, outputs], 16-bit scales [INPUTS / 128, outputs], and, if HAS_ZEROS, zero points
// [INPUTS / 128, outputs / 8] in place of the codebook; without them, all are 8. hidden: [rows, INPUTS]; output: [rows,
// outputs].
//
// Weights are operand A of mma.m16n8k16; the eight columns of B are eight rows of activations. There are ROW_TILES tiles of
// eight rows, and a pair of weights is looked up once for all of them. A tile is 16 outputs and one of SPLIT_K splits of K,
// computed by WARPS_PER_TILE warps that divide the split. Consecutive tiles have the same split, so a block reads the same
// part of the rows. With several splits, each stores partial sums, and the last to arrive adds them in a fixed order. A warp
// has K_STEPS chunks, PREFETCH of them in flight in registers. IS_PERSISTENT: a block computes further tiles.
//
// partial_sums: [outputs / 16, SPLIT_K, TILE_SUMS]. counters: [outputs / 16, WARPS_PER_TILE], zero before and after.

#include "pair_table.cuh"

constexpr int THREADS = WARP * WARPS_PER_TILE * TILES_PER_BLOCK;

constexpr int CHUNK = 128, CHUNKS = INPUTS / CHUNK, OUTPUTS = 16, ROWS = 8 * ROW_TILES;
constexpr int SCALES_PER_CHUNK = IS_CODEBOOK ? 2 : 1;  // Per output. Half a chunk is multiplied at a time.
constexpr int WORDS = 2;                           // Words per output, lane and half a chunk.
constexpr int SUMS_OFFSET = TABLE_BYTES, TILE_SUMS = ROWS * OUTPUTS;
constexpr bool IS_K_EVEN = WARPS_PER_TILE * SPLIT_K * K_STEPS == CHUNKS;

// Packed weights, scales and zero points of a lane in a chunk, for two outputs: rows g and g + 8 of A.
struct Fragment {
    u32 words[2][4];
    float scales[2][SCALES_PER_CHUNK];
    u32 zeros;
};

struct Weights {
    const unsigned char *words, *scales;
    const u32* zeros;
    int outputs;
};

// Work of a warp: index of the 16 outputs, index of the split of K, and first chunk.
struct WarpTile {
    int output_tile, k_split, first_chunk;
};

__device__ WarpTile warp_tile(int tile, int k_warp, int outputs) {
    const int k_split = SPLIT_K > 1 ? tile / (outputs / OUTPUTS) : 0;
    return {tile - k_split * (outputs / OUTPUTS), k_split, (k_split * WARPS_PER_TILE + k_warp) * K_STEPS};
}

__device__ Fragment load_fragment(const Weights& weights, const WarpTile& work, int k_step, int g, int t) {
    Fragment fragment = {};
    const int chunk = work.first_chunk + k_step;
    if (!IS_K_EVEN && chunk >= CHUNKS) return fragment;
    if (IS_CODEBOOK) {
        for (int half = 0; half < 2; half++) {
            const size_t index = (size_t)(work.output_tile * OUTPUTS + 8 * half + g) * CHUNKS + chunk;
            float2 scales;
            load_cached(weights.scales + index * 8, scales);
            fragment.scales[half][0] = scales.x;
            fragment.scales[half][SCALES_PER_CHUNK - 1] = scales.y;
            for (int part = 0; part < 2; part++) {
                uint2 words;
                load_no_allocate(weights.words + index * 64 + part * 32 + t * 8, words);
                fragment.words[half][2 * part] = words.x;
                fragment.words[half][2 * part + 1] = words.y;
            }
        }
    } else {
        const int column = work.output_tile * OUTPUTS + 2 * g;
        for (int j = 0; j < 4; j++) {
            uint2 words;
            load_no_allocate(weights.words + ((size_t)(chunk * 16 + 4 * j + t) * weights.outputs + column) * 4, words);
            fragment.words[0][j] = words.x;
            fragment.words[1][j] = words.y;
        }
        u32 pair;
        load_cached(weights.scales + ((size_t)chunk * weights.outputs + column) * 2, pair);
        fragment.scales[0][0] = to_float(pair & 0xffff);
        fragment.scales[1][0] = to_float(pair >> 16);
        if (HAS_ZEROS) load_cached(weights.zeros + ((size_t)chunk * weights.outputs + column) / 8, fragment.zeros);
    }
    return fragment;
}

// Return the first input of lane t's word j in half `part` of a chunk.
__device__ int first_input(int part, int j, int t) { return part * 64 + (IS_CODEBOOK ? t * 16 + j * 8 : j * 32 + t * 8); }

// Look up the weights of bytes FIRST and FIRST + 1 as operand A, and subtract the zero points, which is exact. `word` and both
// halves of `zeros` are from row g, `word8` and `zeros8` from row g + 8.
template <int FIRST>
__device__ void lookup_operand_a(u32 (&a)[4], u32 word, u32 word8, u32 zeros, u32 zeros8, u32 lane_offset) {
    a[0] = lookup<FIRST>(word, lane_offset);
    a[1] = lookup<FIRST>(word8, lane_offset);
    a[2] = lookup<FIRST + 1>(word, lane_offset);
    a[3] = lookup<FIRST + 1>(word8, lane_offset);
    for (int i = 0; HAS_ZEROS && i < 4; i++) a[i] = subtract_half2(a[i], i % 2 ? zeros8 : zeros);
}

// Write sum `index` of a tile, if its row exists.
__device__ void write_output(u16* output, float sum, int index, int output_tile, int rows, int outputs) {
    const int row = index / OUTPUTS;
    if (row < rows) output[(size_t)row * outputs + output_tile * OUTPUTS + index % OUTPUTS] = (u16)pack_half2(sum, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_4bit_kernel(const u16* hidden, const unsigned char* words, const unsigned char* scales, const float* codebook,
                   float* partial_sums, int* counters, u16* output, int rows, int outputs) {
    launch_dependents();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int slot = warp / WARPS_PER_TILE, k_warp = warp % WARPS_PER_TILE;
    const Weights weights = {words, scales, (const u32*)codebook, outputs};
    const int tiles = outputs / OUTPUTS * SPLIT_K, stride = gridDim.x * TILES_PER_BLOCK;
    int tile = blockIdx.x * TILES_PER_BLOCK + slot;
    WarpTile work = warp_tile(tile, k_warp, outputs), next = {};
    Fragment fragments[PREFETCH];
    if (tile < tiles)
#pragma unroll
        for (int i = 0; i < PREFETCH; i++) fragments[i] = load_fragment(weights, work, i, g, t);
    if (IS_CODEBOOK)
        write_pair_table<THREADS>([=](int byte) { return pack_half2(codebook[byte >> 4], codebook[byte & 15]); });
    else
        write_pair_table<THREADS>([](int byte) { return pack_half2((byte & 15) - 8.0f, (byte >> 4) - 8.0f); });
    __syncthreads();
    wait_for_previous_kernel();
    // Rows that are this lane's column of B. A row that does not exist is replaced by the last row; its sums are not written.
    const u16* first_row = hidden + (size_t)g * INPUTS;
    const int last = ROWS - 8 + g;
    const u16* last_row = hidden + (size_t)(last < rows ? last : rows - 1) * INPUTS;
    for (int parity = 0; tile < tiles; tile += stride, parity ^= 1, work = next) {
        if (IS_PERSISTENT) next = warp_tile(tile + stride, k_warp, outputs);
        float totals[ROW_TILES][4] = {};
#pragma unroll 1
        for (int done = 0; done < K_STEPS; done += PREFETCH)
#pragma unroll
            for (int i = 0; i < PREFETCH; i++) {
                Fragment fragment = fragments[i];
                const int chunk = work.first_chunk + done + i;
                if (done + PREFETCH < K_STEPS)
                    fragments[i] = load_fragment(weights, work, done + i + PREFETCH, g, t);
                else if (IS_PERSISTENT && tile + stride < tiles)
                    fragments[i] = load_fragment(weights, next, i, g, t);
                if (!IS_K_EVEN && chunk >= CHUNKS) continue;
                const u32 both_zeros = HAS_ZEROS ? lookup_zero_points(fragment.zeros, g, lane * 4) : 0;
                const u32 zeros = both_zeros << 16 | (both_zeros & 0xffff), zeros8 = both_zeros >> 16 | (both_zeros & ~0xffffu);
#pragma unroll 1  // Unrolled, the compiler hoists loads of rows so far that registers spill.
                for (int part = 0; part < 2; part++) {
                    u32 a[2 * WORDS][4];
#pragma unroll
                    for (int j = 0; j < WORDS; j++) {
                        const u32 word = fragment.words[0][j], word8 = fragment.words[1][j];
                        lookup_operand_a<0>(a[2 * j], word, word8, zeros, zeros8, lane * 4);
                        lookup_operand_a<2>(a[2 * j + 1], word, word8, zeros, zeros8, lane * 4);
                    }
                    const float low_scale = fragment.scales[0][0], high_scale = fragment.scales[1][0];
#pragma unroll
                    for (int n = 0; n < ROW_TILES; n++) {
                        const u16* row = n < ROW_TILES - 1 ? first_row + n * 8 * INPUTS : last_row;
                        float acc[4] = {};
#pragma unroll
                        for (int j = 0; j < WORDS; j++) {
                            const uint4 x = *(const uint4*)(row + chunk * CHUNK + first_input(part, j, t));
                            mma_m16n8k16(acc, a[2 * j], x.x, x.y);
                            mma_m16n8k16(acc, a[2 * j + 1], x.z, x.w);
                        }
                        for (int k = 0; k < 4; k++) totals[n][k] += (k < 2 ? low_scale : high_scale) * acc[k];
                    }
                    // Move the second half of the chunk to the front.
                    for (int half = 0; half < 2; half++) {
                        for (int j = 0; j < WORDS; j++) fragment.words[half][j] = fragment.words[half][WORDS + j];
                        fragment.scales[half][0] = fragment.scales[half][SCALES_PER_CHUNK - 1];
                    }
                }
            }
        float* sums = (float*)(smem + SUMS_OFFSET) + (parity * TILES_PER_BLOCK + slot) * WARPS_PER_TILE * TILE_SUMS;
        for (int n = 0; n < ROW_TILES; n++)
            for (int k = 0; k < 4; k++) {
                const int row = 8 * n + 2 * t + k % 2, column = IS_CODEBOOK ? g + 8 * (k / 2) : 2 * g + k / 2;
                sums[k_warp * TILE_SUMS + row * OUTPUTS + column] = totals[n][k];
            }
        named_barrier_sync(slot + 1, WARPS_PER_TILE * WARP);
        // Each warp reduces some of the tile's sums over its warps and, in the split that arrives last, over all splits.
        if (SPLIT_K > 1 && k_warp * WARP >= TILE_SUMS) continue;
        float* tile_partial_sums = partial_sums + (size_t)work.output_tile * SPLIT_K * TILE_SUMS;
        for (int index = k_warp * WARP + lane; index < TILE_SUMS; index += WARPS_PER_TILE * WARP) {
            float sum = 0;
            for (int from = 0; from < WARPS_PER_TILE; from++) sum += sums[from * TILE_SUMS + index];
            if (SPLIT_K > 1)
                tile_partial_sums[work.k_split * TILE_SUMS + index] = sum;
            else
                write_output(output, sum, index, work.output_tile, rows, outputs);
        }
        if (SPLIT_K == 1 || !arrive_and_check_last(counters + work.output_tile * WARPS_PER_TILE + k_warp, SPLIT_K)) continue;
        for (int index = k_warp * WARP + lane; index < TILE_SUMS; index += WARPS_PER_TILE * WARP) {
            float sum = 0;
            for (int from = 0; from < SPLIT_K; from++) sum += load_partial_sums(tile_partial_sums + from * TILE_SUMS + index);
            write_output(output, sum, index, work.output_tile, rows, outputs);
        }
    }
}
