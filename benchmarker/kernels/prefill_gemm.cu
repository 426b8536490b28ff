// Packed weights times many rows, for Hopper; hopper_ptx.cuh has its instructions.
//
// FORM 8: int8 [outputs, INPUTS] and a scale per output, in 32 bits if HAS_WIDE_SCALES; 4: GPTQ's words [INPUTS / 8,
// outputs] and scales [INPUTS / GROUP, outputs], and, if ZEROED, zero points [INPUTS / GROUP, outputs / 8], else all are 8;
// 16: bitsandbytes' codes [outputs, INPUTS / 2], scales [outputs, INPUTS / 64] in 32 bits, and the code table [16]. hidden:
// [rows, INPUTS]; output: [rows, outputs].
//
// A tile is TILE_OUTPUTS outputs and TILE_ROWS rows, computed in steps of CHUNK inputs. One warp group copies to shared
// memory, STAGES steps ahead. GROUPS others multiply, each BLOCKS times 64 outputs: weights are the left operand, from
// registers, and are unpacked during the products of the previous quarter step; rows are the right operand, from shared
// memory. The order of the summed inputs is free if both operands agree: lane t of four takes 16 consecutive weights, so the
// rows are permuted (`by_lane` in packed_weights.py).
//
// If blocks share a tile (prefill_tiles.cuh), sums are added in the order of its steps.
//
// left: [blocks + lined, QUADS, MULTIPLIERS] has the sums of a block's part of a tile at index block + tile. counts: [lined],
// zero before and after the kernel.

#include "pair_table.cuh"

constexpr int WARP_GROUP = 128, MULTIPLIERS = WARP_GROUP * GROUPS, THREADS = MULTIPLIERS + WARP_GROUP;
constexpr bool IS_INT8 = FORM == 8, IS_GPTQ = FORM == 4, IS_CODES = FORM == 16;
constexpr int CHUNK = 64, CHUNKS = INPUTS / CHUNK;
constexpr int TILE_OUTPUTS = 64 * GROUPS * BLOCKS, SUMS = TILE_ROWS / 2;
constexpr int WORDS = IS_INT8 ? 4 : 2;             // Words per output, lane and chunk.
constexpr int LINE = 32;                           // GPTQ's words that are copied as one line; eight lines are swizzled.
constexpr int SCALED = 8;                          // Chunks whose scales (of codes) are copied together.

constexpr int ROWS_BYTES = TILE_ROWS * CHUNK * 2;
constexpr int WORDS_BYTES = TILE_OUTPUTS * CHUNK / (IS_INT8 ? 1 : 2);
constexpr int SCALES_BYTES = IS_CODES ? TILE_OUTPUTS * SCALED * 4 : TILE_OUTPUTS * 2;
constexpr int ROWS = IS_CODES ? TABLE : 0;
constexpr int PACKED = ROWS + STAGES * ROWS_BYTES;
constexpr int SCALES = PACKED + STAGES * WORDS_BYTES;
constexpr int ZEROS_BYTES = ZEROED ? TILE_OUTPUTS / 2 : 0, ZEROS_STEP = ZEROED ? 128 : 0;  // Copies begin at multiples of 128.
constexpr int ZEROS = SCALES + (IS_INT8 ? 0 : (IS_CODES ? 2 : STAGES) * SCALES_BYTES);
constexpr int STAGED = ZEROS + STAGES * ZEROS_STEP;
constexpr int BARRIERS = STAGED + MULTIPLIERS / WARP * 1024;

#include "prefill_tiles.cuh"

constexpr int SCALE_BARRIERS = BARRIERS + STAGES * 16;

// Copy the words and scales of a chunk. output: first output of the tile; is_first: true for the first chunk of a part.
__device__ void bring_weights(const TensorMap* words, const TensorMap* scales, const TensorMap* zeros, int output,
                              bool is_first, int chunk, const Ring<STAGES>& stages, Ring<2>& of_scales) {
    u64* filled = stages.filled + stages.at;
    unsigned char* to = smem + PACKED + stages.at * WORDS_BYTES;
    mbarrier_expect_bytes(filled, ROWS_BYTES + WORDS_BYTES + (IS_GPTQ ? SCALES_BYTES + ZEROS_BYTES : 0));
    if (IS_GPTQ) {
        tma_load_3d(to, words, 0, chunk * CHUNK / 8, output / LINE, filled);
        tma_load_3d(smem + SCALES + stages.at * SCALES_BYTES, scales, output, chunk * CHUNK / GROUP, 0, filled);
        if (ZEROED) tma_load_3d(smem + ZEROS + stages.at * ZEROS_STEP, zeros, output / 8, chunk * CHUNK / GROUP, 0, filled);
        return;
    }
    tma_load_3d(to, words, chunk * CHUNK / (IS_INT8 ? 1 : 2), output, 0, filled);
    if (IS_CODES && (is_first || chunk % SCALED == 0)) {
        of_scales.wait_until_empty();
        mbarrier_expect_bytes(of_scales.filled + of_scales.at, SCALES_BYTES);
        tma_load_3d(smem + SCALES + of_scales.at * SCALES_BYTES, scales, chunk / SCALED * SCALED, output, 0,
                 of_scales.filled + of_scales.at);
        of_scales.go_on();
    }
}

// Copy all chunks; one thread runs this. The first weights, as many as fit, are copied before the previous kernel ends.
__device__ void bring(const Given& given, const TensorMap* hidden, const TensorMap* words, const TensorMap* scales,
                      const TensorMap* zeros) {
    Ring<STAGES> stages(BARRIERS), early(BARRIERS);
    Ring<2> of_scales(SCALE_BARRIERS);
    Walk walk = walk_of(given);
    Part part = next_part(walk);
    int ahead = part.last - part.first < STAGES ? part.last - part.first : STAGES;
    if (ahead > SCALED) ahead = SCALED;  // Further chunks may need scales for which there is no space yet.
    if (part.tile >= tiles_of(given)) return;
    const int output = corner_of(given, part.tile).output;
    for (int i = 0; i < ahead; i++, early.go_on())
        bring_weights(words, scales, zeros, output, i == 0, part.first + i, early, of_scales);
    wait_for_previous_kernel();
    for (; part.tile < tiles_of(given); part = next_part(walk)) {
        const Corner tile = corner_of(given, part.tile);
        for (int chunk = part.first; chunk < part.last; chunk++, stages.go_on()) {
            if (ahead-- <= 0) {
                stages.wait_until_empty();
                bring_weights(words, scales, zeros, tile.output, chunk == part.first, chunk, stages, of_scales);
            }
            tma_load_3d(smem + ROWS + stages.at * ROWS_BYTES, hidden, chunk * CHUNK, tile.row, 0, stages.filled + stages.at);
        }
    }
}

// Indices of a multiplying thread: its warp, and g and t of its lane 4 g + t.
struct Place {
    int warp, lane, g, t;
};

// Return the index of an output in a tile: in the block of 64, row g of the warp's 16 rows, or row g + 8 for `half` 1.
__device__ int output_of(const Place& place, int block, int half) {
    return (place.warp / 4 * BLOCKS + block) * 64 + place.warp % 4 * 16 + 8 * half + place.g;
}

// A lane's weights of a chunk: for two outputs of each block, 16 weights, a scale and a zero point (two copies in 32 bits).
struct Weights {
    u32 words[BLOCKS][2][WORDS];
    u32 scales[BLOCKS][2], zeros[BLOCKS][2];
};

__device__ Weights read_weights_of(const Place& place, int chunk, int stage, int scales_at) {
    Weights weights;
    const unsigned char* packed = smem + PACKED + stage * WORDS_BYTES;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int output = output_of(place, block, half);
            u32(&words)[WORDS] = weights.words[block][half];
            if (IS_INT8) {
                const uint4 four = *(const uint4*)(packed + output * CHUNK + place.t * 16);
                words[0] = four.x, words[1] = four.y, words[WORDS - 2] = four.z, words[WORDS - 1] = four.w;
            } else if (IS_GPTQ) {
                const unsigned char* lines = packed + output / LINE * 8 * LINE * 4;
                for (int i = 0; i < 2; i++) {
                    const int line = 2 * place.t + i;
                    words[i] = *(const u32*)(lines + line * LINE * 4 + (output % LINE * 4 ^ line << 4));
                }
                const u32 scale = *(const u16*)(smem + SCALES + stage * SCALES_BYTES + output * 2);
                weights.scales[block][half] = byte_perm<0x1010>(scale, 0);
                if (ZEROED) {
                    const u32 eight = *(const u32*)(smem + ZEROS + stage * ZEROS_STEP + output / 8 * 4);
                    weights.zeros[block][half] = (eight >> 4 * place.g & 15) * 0x00010001;
                }
            } else {
                const uint2 two = *(const uint2*)(packed + output * CHUNK / 2 + place.t * 8);
                words[0] = two.x, words[1] = two.y;
                const unsigned char* scales = smem + SCALES + scales_at * SCALES_BYTES;
                const float scale = *(const float*)(scales + output * SCALED * 4 + chunk % SCALED * 4);
                weights.scales[block][half] = pack_half2(scale, scale);
            }
        }
    return weights;
}

constexpr u32 ONE_AND_A_BYTE = BF16 ? 0x43004300 : 0x64006400;  // 128 or 1,024; their lowest mantissa bits are 0.

// Return GPTQ's numbers AT and AT + 4 of a word, minus the zero point (two copies), as a pair. They are 16 bits apart, so that
// no byte has to move.
template <int AT>
__device__ u32 numbers_of(u32 word, u32 zeros) {
    constexpr u32 SIXTEENTHS = 0x2c002c00, LESS_64 = 0xd400d400;
    if (BF16 || AT % 2 == 0) return sub_half2(word >> 4 * AT & 0x000f000f | ONE_AND_A_BYTE, ONE_AND_A_BYTE | zeros);
    return fma_half2(word >> AT / 2 * 8 & 0x00f000f0 | ONE_AND_A_BYTE, SIXTEENTHS, LESS_64 | zeros << 4);
}

// Return a pair of a lane's 16 weights: 4 STEP + 2 HALF and the next weight; for GPTQ, a pair as in `numbers_of`.
template <int STEP, int HALF>
__device__ u32 pair_of_weights(const u32 (&words)[WORDS], u32 scale, u32 zeros, u32 own) {
    if (IS_INT8) {
        constexpr u32 BYTES = 2 * HALF | 4 << 4 | (2 * HALF + 1) << 8 | 4 << 12;
        const u32 word = words[IS_INT8 ? STEP : 0];
        const u32 numbers = byte_perm<BYTES>(BF16 ? word : word ^ 0x80808080, BF16 ? 0 : ONE_AND_A_BYTE >> 8);
        if (!BF16) return sub_half2(numbers, 0x64806480);
        return sub_half2(numbers & 0x007f007f | ONE_AND_A_BYTE, numbers & 0x00800080 | ONE_AND_A_BYTE);
    }
    constexpr int BYTE = STEP % 2 * 2 + HALF;
    const u32 word = words[STEP / 2];
    return mul_half2(IS_CODES ? looked_up<BYTE>(word, own) : numbers_of<BYTE>(word, ZEROED ? zeros : 0x00080008), scale);
}

// Unpack a quarter of a chunk and start its products. All earlier products have ended on return.
template <int STEP>
__device__ void multiply_step(float (&sums)[BLOCKS][SUMS], u32 (&a)[BLOCKS][4], const Weights& weights, u64 rows, u32 own,
                              int is_added) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        const auto& words = weights.words[block];
        const auto& scales = weights.scales[block];
        const auto& zeros = weights.zeros[block];
        a[block][0] = pair_of_weights<STEP, 0>(words[0], scales[0], zeros[0], own);
        a[block][1] = pair_of_weights<STEP, 0>(words[1], scales[1], zeros[1], own);
        a[block][2] = pair_of_weights<STEP, 1>(words[0], scales[0], zeros[0], own);
        a[block][3] = pair_of_weights<STEP, 1>(words[1], scales[1], zeros[1], own);
    }
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) wgmma(sums[block], a[block], rows + 2 * STEP, is_added);
    wgmma_commit();
    wgmma_wait<1>();
}

// Wait until a chunk's weights are in shared memory, and read them.
__device__ Weights next_weights(const Place& place, int chunk, const Ring<STAGES>& stages, Ring<2>& of_scales) {
    if (IS_CODES && chunk % SCALED == 0) of_scales.wait_until_filled();
    stages.wait_until_filled();
    return read_weights_of(place, chunk, stages.at, of_scales.at);
}

// Multiply a chunk, whose weights were read, and read the next chunk's weights, unless it IS_LAST. `behind`: barrier of the
// previous chunk's space in shared memory, which is released.
template <bool IS_LAST>
__device__ void multiply_chunk(float (&sums)[BLOCKS][SUMS], Weights& weights, u32 (&a)[2][BLOCKS][4], const Place& place,
                               int chunk, u64*& behind, Ring<STAGES>& stages, Ring<2>& of_scales, int is_added) {
    const u32 own = place.lane * 4;
    const u64 rows = wgmma_descriptor(smem + ROWS + stages.at * ROWS_BYTES);
    multiply_step<0>(sums, a[0], weights, rows, own, is_added);
    mbarrier_arrive_if(behind, place.lane == 0 && is_added);
    multiply_step<1>(sums, a[1], weights, rows, own, 1);
    behind = stages.emptied + stages.at;
    stages.go_on();
    if (IS_CODES && (IS_LAST || (chunk + 1) % SCALED == 0)) {
        mbarrier_arrive_if(of_scales.emptied + of_scales.at, place.lane == 0);
        of_scales.go_on();
    }
    Weights next;
    if (!IS_LAST) next = next_weights(place, chunk + 1, stages, of_scales);
    multiply_step<2>(sums, a[0], weights, rows, own, 1);
    multiply_step<3>(sums, a[1], weights, rows, own, 1);
    if (!IS_LAST) weights = next;
}

// Multiply all chunks of a part of a tile.
__device__ void multiply_part(float (&sums)[BLOCKS][SUMS], const Place& place, const Part& part, Ring<STAGES>& stages,
                              Ring<2>& of_scales) {
    u32 a[2][BLOCKS][4];
    u64* behind = stages.emptied + stages.at;
    if (IS_CODES && part.first % SCALED != 0) of_scales.wait_until_filled();
    Weights weights = next_weights(place, part.first, stages, of_scales);
    int chunk = part.first;
    for (; chunk < part.last - 1; chunk++)
        multiply_chunk<false>(sums, weights, a, place, chunk, behind, stages, of_scales, chunk > part.first);
    multiply_chunk<true>(sums, weights, a, place, chunk, behind, stages, of_scales, chunk > part.first);
    wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) wgmma_fence_accumulators(sums[block]);
    mbarrier_arrive_if(behind, place.lane == 0);
}

// Return the scale of an output of int8 weights.
__device__ float scale_of(const Given& given, int output) {
    return HAS_WIDE_SCALES ? ((const float*)given.scales)[output] : to_float(given.scales[output]);
}

constexpr int UNIT_ROWS = 16, UNITS = BLOCKS * TILE_ROWS / UNIT_ROWS;  // A unit: 64 outputs of each warp group.
constexpr int UNIT_SUMS = SUMS * UNIT_ROWS / TILE_ROWS, QUADS = BLOCKS * SUMS / 4;
constexpr int AT_ONCE = 4;  // Units that are added together, so that more reads are in flight.

__device__ int first_output_of_unit(const Place& place, const Corner& tile, int unit) {
    return tile.output + output_of(place, unit * UNIT_ROWS / TILE_ROWS, 0) - place.g;
}

// Factors by which the sums of a lane's two outputs in a unit must still be multiplied.
struct Factors {
    float of[2];
};

__device__ Factors factors_of(const Given& given, const Place& place, const Corner& tile, int unit) {
    Factors factors = {{1, 1}};
    const int output = first_output_of_unit(place, tile, unit);
    if (IS_INT8)
        for (int half = 0; half < 2; half++)
            if (output + 8 * half < given.outputs) factors.of[half] = scale_of(given, output + 8 * half + place.g);
    return factors;
}

// Round a thread's sums of a unit and write them. They are transposed in shared memory, so that a lane writes eight outputs
// of a row. Units are written one after another and alternate between two buffers.
__device__ void write_unit(const float* sums, const Factors& factors, const Given& given, const Place& place,
                           const Corner& tile, int unit) {
    unsigned char* staged = smem + STAGED + place.warp * 1024 + unit % 2 * 512;
    const auto pair = [&](int i) { return pack_half2(sums[i] * factors.of[i / 2 % 2], sums[i + 1] * factors.of[i / 2 % 2]); };
    const int turned = place.lane / 16 * 8 + place.lane % 8, of_turned = place.lane / 8 % 2;
    stmatrix_x4_trans(staged + turned * 32 + (of_turned ^ turned / 4 % 2) * 16, pair(0), pair(2), pair(4), pair(6));
    __syncwarp();
    const int row = place.lane / 2, half = place.lane % 2, to = tile.row + unit * UNIT_ROWS % TILE_ROWS + row;
    const int output = first_output_of_unit(place, tile, unit) + 8 * half;
    if (to < given.rows && output < given.outputs)
        *(uint4*)(given.output + (size_t)to * given.outputs + output) =
            *(const uint4*)(staged + row * 32 + (half ^ row / 4 % 2) * 16);
}

__device__ void write_tile(const float (&sums)[BLOCKS][SUMS], const Given& given, const Place& place, const Corner& tile) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        const Factors factors = factors_of(given, place, tile, block * UNITS / BLOCKS);
#pragma unroll
        for (int i = 0; i < UNITS / BLOCKS; i++)
            write_unit(sums[block] + i * UNIT_SUMS, factors, given, place, tile, block * UNITS / BLOCKS + i);
    }
}

// Return the address of a thread's first four stored sums of a block's part; each next four are MULTIPLIERS further.
__device__ float4* left_of(const Given& given, int block, int tile, int thread) {
    return (float4*)given.left + (size_t)(block + tile) * QUADS * MULTIPLIERS + thread;
}

// Store the sums of a part of a tile in `left`, for the blocks that add them.
__device__ void leave(const float (&sums)[BLOCKS][SUMS], const Given& given, int tile, int thread) {
    float4* left = left_of(given, blockIdx.x, tile, thread);
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const float* four = sums[4 * i / SUMS] + 4 * i % SUMS;
        left[i * MULTIPLIERS] = make_float4(four[0], four[1], four[2], four[3]);
    }
    named_barrier_sync(1, MULTIPLIERS);
    if (thread == 0) counter_increment(given.counts + tile);
}

// Wait for the blocks that computed parts of a tile, and add and write some units of the tile.
__device__ void add_up_units(const Given& given, const Place& place, int thread, int tile, const Sharers& makers, int unit,
                             int end) {
    if (thread == 0)
        counter_wait(given.counts + tile, makers.number, Sharers(given.lined * UNITS, tile * UNITS, UNITS).number);
    named_barrier_sync(1, MULTIPLIERS);
    const Corner corner = corner_of(given, tile);
    for (; unit < end; unit += AT_ONCE) {
        float sums[AT_ONCE][UNIT_SUMS] = {};
        const int quads = (end - unit < AT_ONCE ? end - unit : AT_ONCE) * UNIT_SUMS / 4;
#pragma unroll 2
        for (int i = 0; i < makers.number; i++) {
            const float4* left = left_of(given, makers[i], tile, thread) + unit * UNIT_SUMS / 4 * MULTIPLIERS;
#pragma unroll
            for (int quad = 0; quad < AT_ONCE * UNIT_SUMS / 4; quad++) {
                float* four = sums[4 * quad / UNIT_SUMS] + 4 * quad % UNIT_SUMS;
                const float4 more = quad < quads ? load_partial_sums(left + quad * MULTIPLIERS) : make_float4(0, 0, 0, 0);
                four[0] += more.x, four[1] += more.y, four[2] += more.z, four[3] += more.w;
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (unit + i < end)
                write_unit(sums[i], factors_of(given, place, corner, unit + i), given, place, corner, unit + i);
    }
}

// Add and write this block's share of the units of the `lined` tiles, except tiles that a single block has written.
__device__ void add_up(const Given& given, const Place& place, int thread) {
    const int units = given.lined * UNITS, end = start_of(units, blockIdx.x + 1);
    int at = start_of(units, blockIdx.x);
    for (int tile = at / UNITS; at < end; tile++) {
        const int first = tile * UNITS, last = first + UNITS < end ? first + UNITS : end;
        const Sharers makers(given.lined * CHUNKS, tile * CHUNKS, CHUNKS);
        if (makers.number > 1) add_up_units(given, place, thread, tile, makers, at - first, last - first);
        at = last;
    }
}

__device__ void multiply(const Given& given, int thread) {
    const Place place = {thread / WARP, thread % WARP, thread % WARP / 4, thread % 4};
    Ring<STAGES> stages(BARRIERS);
    Ring<2> of_scales(SCALE_BARRIERS);
    Walk walk = walk_of(given);
    float sums[BLOCKS][SUMS];
    for (Part part = next_part(walk); part.tile < tiles_of(given); part = next_part(walk)) {
        multiply_part(sums, place, part, stages, of_scales);
        if (part.last - part.first < CHUNKS)
            leave(sums, given, part.tile, thread);
        else
            write_tile(sums, given, place, corner_of(given, part.tile));
    }
    add_up(given, place, thread);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prompt_matmul_kernel(const __grid_constant__ TensorMap hidden, const __grid_constant__ TensorMap packed,
                     const __grid_constant__ TensorMap group_scales, const __grid_constant__ TensorMap group_zeros,
                     const u16* scales, const float* numbers, float* left, int* counts, u16* output, int rows, int outputs,
                     int lined, int are_rows_first) {
    launch_dependents();
    const Given given = {scales, left, counts, output, rows, outputs, lined, are_rows_first};
    if (threadIdx.x == 0) {
        Ring<STAGES>(BARRIERS).make(MULTIPLIERS / WARP);
        Ring<2>(SCALE_BARRIERS).make(MULTIPLIERS / WARP);
        fence_mbarrier_init();
    }
    if (IS_CODES) write_pairs<THREADS>([=](int byte) { return pack_half2(numbers[byte >> 4], numbers[byte & 15]); });
    __syncthreads();
    if (threadIdx.x < WARP_GROUP) {
        warpgroup_reg_dealloc<OF_BRINGER>();
        if (threadIdx.x == 0) bring(given, &hidden, &packed, &group_scales, &group_zeros);
    } else {
        warpgroup_reg_alloc<OF_MULTIPLIER>();
        wait_for_previous_kernel();
        multiply(given, threadIdx.x - WARP_GROUP);
    }
}
