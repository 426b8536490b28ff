// Prefill GEMM for Hopper: packed weights times many activation rows, warp-specialized with TMA and wgmma.
//
// FORM 8: int8 [outputs, INPUTS] and a scale per output, float32 if HAS_WIDE_SCALES.
// FORM 4: GPTQ's words [INPUTS / 8, outputs], scales [INPUTS / GROUP, outputs], and, if HAS_ZEROS, zero points
// [INPUTS / GROUP, outputs / 8]; otherwise all zero points are 8.
// FORM 16: bitsandbytes' codes [outputs, INPUTS / 2], scales [outputs, INPUTS / 64] in float32, and the codebook [16].
// hidden: [rows, INPUTS]; output: [rows, outputs].
//
// A tile has TILE_OUTPUTS outputs (the M of wgmma) and TILE_ROWS rows (N), and loops over chunks of CHUNK inputs (K). One
// producer warp group loads chunks by TMA, up to STAGES ahead. Each of CONSUMER_GROUPS warp groups computes BLOCKS blocks of
// 64 outputs. Operand A, the weights, is dequantized in registers while the wgmma of the previous quarter of a chunk runs;
// operand B, the rows, is in shared memory. K may be in any order that A and B share: lane t of four has 16 consecutive
// weights, so the rows are permuted beforehand (`by_lane` in packed_weights.py).
//
// Partial sums of split tiles (stream-K, prefill_tiles.cuh) are added in the order of K, so results are deterministic.
//
// partial_sums: [blocks + split_tiles, ACCUMULATOR_QUADS, CONSUMERS]; a block's segment of a tile is at index block + tile.
// counters: [split_tiles], zero before and after the kernel.

#include "pair_table.cuh"

constexpr int WARP_GROUP = 128, CONSUMERS = WARP_GROUP * CONSUMER_GROUPS, THREADS = CONSUMERS + WARP_GROUP;
constexpr bool IS_INT8 = FORM == 8, IS_GPTQ = FORM == 4, IS_CODEBOOK = FORM == 16;
constexpr int CHUNK = 64, CHUNKS = INPUTS / CHUNK;
constexpr int TILE_OUTPUTS = 64 * CONSUMER_GROUPS * BLOCKS;
constexpr int ACCUMULATORS = TILE_ROWS / 2;        // Accumulators of a thread per block of 64 outputs.
constexpr int LANE_WORDS = IS_INT8 ? 4 : 2;        // Words per output, lane and chunk.
constexpr int LINE = 32;                           // GPTQ's words per line of 128 bytes; TMA swizzles eight lines.
constexpr int SCALE_CHUNKS = 8;                    // Chunks per TMA load of scales (FORM 16).

// Byte sizes and offsets in shared memory.
constexpr int ROWS_BYTES = TILE_ROWS * CHUNK * 2;
constexpr int WEIGHTS_BYTES = TILE_OUTPUTS * CHUNK / (IS_INT8 ? 1 : 2);
constexpr int SCALES_BYTES = IS_CODEBOOK ? TILE_OUTPUTS * SCALE_CHUNKS * 4 : TILE_OUTPUTS * 2;
constexpr int ZEROS_BYTES = HAS_ZEROS ? TILE_OUTPUTS / 2 : 0, ZEROS_STRIDE = HAS_ZEROS ? 128 : 0;  // Alignment of TMA: 128.
constexpr int ROWS_OFFSET = IS_CODEBOOK ? TABLE_BYTES : 0;
constexpr int WEIGHTS_OFFSET = ROWS_OFFSET + STAGES * ROWS_BYTES;
constexpr int SCALES_OFFSET = WEIGHTS_OFFSET + STAGES * WEIGHTS_BYTES;
constexpr int ZEROS_OFFSET = SCALES_OFFSET + (IS_INT8 ? 0 : (IS_CODEBOOK ? 2 : STAGES) * SCALES_BYTES);
constexpr int EPILOGUE_OFFSET = ZEROS_OFFSET + STAGES * ZEROS_STRIDE;
constexpr int BARRIERS_OFFSET = EPILOGUE_OFFSET + CONSUMERS / WARP * 1024;

#include "prefill_tiles.cuh"

constexpr int SCALE_BARRIERS_OFFSET = BARRIERS_OFFSET + STAGES * 16;

// Load the weights and scales of a chunk. output: first output of the tile. is_first: the chunk is the first of a segment.
__device__ void load_weights(const TensorMap* words, const TensorMap* scales, const TensorMap* zeros, int output,
                             bool is_first, int chunk, const Pipeline<STAGES>& pipeline, Pipeline<2>& scale_pipeline) {
    u64* full = pipeline.full + pipeline.stage;
    unsigned char* to = smem + WEIGHTS_OFFSET + pipeline.stage * WEIGHTS_BYTES;
    mbarrier_expect_bytes(full, ROWS_BYTES + WEIGHTS_BYTES + (IS_GPTQ ? SCALES_BYTES + ZEROS_BYTES : 0));
    if (IS_GPTQ) {
        tma_load_3d(to, words, 0, chunk * CHUNK / 8, output / LINE, full);
        tma_load_3d(smem + SCALES_OFFSET + pipeline.stage * SCALES_BYTES, scales, output, chunk * CHUNK / GROUP, 0, full);
        if (HAS_ZEROS)
            tma_load_3d(smem + ZEROS_OFFSET + pipeline.stage * ZEROS_STRIDE, zeros, output / 8, chunk * CHUNK / GROUP, 0,
                        full);
        return;
    }
    tma_load_3d(to, words, chunk * CHUNK / (IS_INT8 ? 1 : 2), output, 0, full);
    if (IS_CODEBOOK && (is_first || chunk % SCALE_CHUNKS == 0)) {
        scale_pipeline.wait_empty();
        mbarrier_expect_bytes(scale_pipeline.full + scale_pipeline.stage, SCALES_BYTES);
        tma_load_3d(smem + SCALES_OFFSET + scale_pipeline.stage * SCALES_BYTES, scales, chunk / SCALE_CHUNKS * SCALE_CHUNKS,
                    output, 0, scale_pipeline.full + scale_pipeline.stage);
        scale_pipeline.advance();
    }
}

// Load all chunks, in one thread of the producer warp group. The first chunks' weights, as many as fit, are loaded before
// the previous kernel ends (PDL).
__device__ void produce(const Arguments& args, const TensorMap* hidden, const TensorMap* words, const TensorMap* scales,
                        const TensorMap* zeros) {
    Pipeline<STAGES> pipeline(BARRIERS_OFFSET), prefetch(BARRIERS_OFFSET);
    Pipeline<2> scale_pipeline(SCALE_BARRIERS_OFFSET);
    TileScheduler scheduler = make_scheduler(args);
    TileSegment segment = next_segment(scheduler);
    int prefetched = segment.end - segment.begin < STAGES ? segment.end - segment.begin : STAGES;
    if (prefetched > SCALE_CHUNKS) prefetched = SCALE_CHUNKS;  // Further chunks may need scales that do not fit yet.
    if (segment.tile >= tile_count(args)) return;
    const int output = tile_origin(args, segment.tile).output;
    for (int i = 0; i < prefetched; i++, prefetch.advance())
        load_weights(words, scales, zeros, output, i == 0, segment.begin + i, prefetch, scale_pipeline);
    wait_for_previous_kernel();
    for (; segment.tile < tile_count(args); segment = next_segment(scheduler)) {
        const TileOrigin origin = tile_origin(args, segment.tile);
        for (int chunk = segment.begin; chunk < segment.end; chunk++, pipeline.advance()) {
            if (prefetched-- <= 0) {
                pipeline.wait_empty();
                load_weights(words, scales, zeros, origin.output, chunk == segment.begin, chunk, pipeline, scale_pipeline);
            }
            tma_load_3d(smem + ROWS_OFFSET + pipeline.stage * ROWS_BYTES, hidden, chunk * CHUNK, origin.row, 0,
                        pipeline.full + pipeline.stage);
        }
    }
}

// Indices of a consumer thread. g and t: groupID and threadID_in_group of lane 4 g + t in the PTX ISA's fragment layouts.
struct ThreadCoord {
    int warp, lane, g, t;
};

// Return the index in the tile of an accumulator's output: row g, or g + 8 if `half` is 1, of the warp's 16 rows of a block.
__device__ int output_in_tile(const ThreadCoord& coord, int block, int half) {
    return (coord.warp / 4 * BLOCKS + block) * 64 + coord.warp % 4 * 16 + 8 * half + coord.g;
}

// A lane's packed weights of a chunk: for two outputs of each block, 16 weights, the scale as half2, and the zero point as
// two 16-bit integers.
struct Weights {
    u32 words[BLOCKS][2][LANE_WORDS];
    u32 scales[BLOCKS][2], zeros[BLOCKS][2];
};

// Read a lane's weights from shared memory.
__device__ Weights read_weights(const ThreadCoord& coord, int chunk, int stage, int scale_stage) {
    Weights weights;
    const unsigned char* packed = smem + WEIGHTS_OFFSET + stage * WEIGHTS_BYTES;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int output = output_in_tile(coord, block, half);
            u32(&words)[LANE_WORDS] = weights.words[block][half];
            if (IS_INT8) {
                const uint4 four = *(const uint4*)(packed + output * CHUNK + coord.t * 16);
                words[0] = four.x, words[1] = four.y, words[LANE_WORDS - 2] = four.z, words[LANE_WORDS - 1] = four.w;
            } else if (IS_GPTQ) {
                const unsigned char* lines = packed + output / LINE * 8 * LINE * 4;
                for (int i = 0; i < 2; i++) {
                    const int line = 2 * coord.t + i;
                    words[i] = *(const u32*)(lines + line * LINE * 4 + (output % LINE * 4 ^ line << 4));
                }
                const u32 scale = *(const u16*)(smem + SCALES_OFFSET + stage * SCALES_BYTES + output * 2);
                weights.scales[block][half] = byte_perm<0x1010>(scale, 0);
                if (HAS_ZEROS) {
                    const u32 eight = *(const u32*)(smem + ZEROS_OFFSET + stage * ZEROS_STRIDE + output / 8 * 4);
                    weights.zeros[block][half] = (eight >> 4 * coord.g & 15) * 0x00010001;
                }
            } else {
                const uint2 two = *(const uint2*)(packed + output * CHUNK / 2 + coord.t * 8);
                words[0] = two.x, words[1] = two.y;
                const unsigned char* scales = smem + SCALES_OFFSET + scale_stage * SCALES_BYTES;
                const float scale = *(const float*)(scales + output * SCALE_CHUNKS * 4 + chunk % SCALE_CHUNKS * 4);
                weights.scales[block][half] = pack_half2(scale, scale);
            }
        }
    return weights;
}

// 128 (bfloat16) or 1,024 (float16), twice: an integer in the low mantissa bits is added to it, without a conversion.
constexpr u32 EXPONENT_MAGIC = BF16 ? 0x43004300 : 0x64006400;

// Return weights INDEX and INDEX + 4 of a GPTQ word minus the zero point (twice) as half2. These two are 16 bits apart, so
// that no byte has to move.
template <int INDEX>
__device__ u32 dequantize_gptq(u32 word, u32 zeros) {
    constexpr u32 ONE_SIXTEENTH = 0x2c002c00, MINUS_64 = 0xd400d400;
    if (BF16 || INDEX % 2 == 0) return sub_half2(word >> 4 * INDEX & 0x000f000f | EXPONENT_MAGIC, EXPONENT_MAGIC | zeros);
    return fma_half2(word >> INDEX / 2 * 8 & 0x00f000f0 | EXPONENT_MAGIC, ONE_SIXTEENTH, MINUS_64 | zeros << 4);
}

// Return two of a lane's 16 weights as half2: 4 STEP + 2 HALF and the next one; for GPTQ, two as in `dequantize_gptq`.
template <int STEP, int HALF>
__device__ u32 dequantize_pair(const u32 (&words)[LANE_WORDS], u32 scale, u32 zeros, u32 lane_offset) {
    if (IS_INT8) {
        constexpr u32 SELECTOR = 2 * HALF | 4 << 4 | (2 * HALF + 1) << 8 | 4 << 12;
        const u32 word = words[IS_INT8 ? STEP : 0];
        const u32 bytes = byte_perm<SELECTOR>(BF16 ? word : word ^ 0x80808080, BF16 ? 0 : EXPONENT_MAGIC >> 8);
        if (!BF16) return sub_half2(bytes, 0x64806480);
        return sub_half2(bytes & 0x007f007f | EXPONENT_MAGIC, bytes & 0x00800080 | EXPONENT_MAGIC);
    }
    constexpr int BYTE = STEP % 2 * 2 + HALF;
    const u32 word = words[STEP / 2];
    const u32 pair =
        IS_CODEBOOK ? lookup<BYTE>(word, lane_offset) : dequantize_gptq<BYTE>(word, HAS_ZEROS ? zeros : 0x00080008);
    return mul_half2(pair, scale);
}

// Dequantize a quarter of a chunk (K = 16) and issue its wgmma. All earlier wgmma have completed on return.
template <int STEP>
__device__ void issue_wgmma(float (&acc)[BLOCKS][ACCUMULATORS], u32 (&a)[BLOCKS][4], const Weights& weights, u64 rows,
                            u32 lane_offset, int accumulate) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        const auto& words = weights.words[block];
        const auto& scales = weights.scales[block];
        const auto& zeros = weights.zeros[block];
        a[block][0] = dequantize_pair<STEP, 0>(words[0], scales[0], zeros[0], lane_offset);
        a[block][1] = dequantize_pair<STEP, 0>(words[1], scales[1], zeros[1], lane_offset);
        a[block][2] = dequantize_pair<STEP, 1>(words[0], scales[0], zeros[0], lane_offset);
        a[block][3] = dequantize_pair<STEP, 1>(words[1], scales[1], zeros[1], lane_offset);
    }
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) wgmma(acc[block], a[block], rows + 2 * STEP, accumulate);
    wgmma_commit();
    wgmma_wait<1>();
}

// Wait until a chunk is in shared memory, and read a lane's weights.
__device__ Weights wait_and_read_weights(const ThreadCoord& coord, int chunk, const Pipeline<STAGES>& pipeline,
                                         Pipeline<2>& scale_pipeline) {
    if (IS_CODEBOOK && chunk % SCALE_CHUNKS == 0) scale_pipeline.wait_full();
    pipeline.wait_full();
    return read_weights(coord, chunk, pipeline.stage, scale_pipeline.stage);
}

// Multiply a chunk, whose weights are in registers, and read the next chunk's weights unless it IS_LAST of a segment.
// previous_empty: empty barrier of the previous chunk's stage, which is released as soon as its wgmma have completed.
template <bool IS_LAST>
__device__ void consume_chunk(float (&acc)[BLOCKS][ACCUMULATORS], Weights& weights, u32 (&a)[2][BLOCKS][4],
                              const ThreadCoord& coord, int chunk, u64*& previous_empty, Pipeline<STAGES>& pipeline,
                              Pipeline<2>& scale_pipeline, int accumulate) {
    const u32 lane_offset = coord.lane * 4;
    const u64 rows = wgmma_descriptor(smem + ROWS_OFFSET + pipeline.stage * ROWS_BYTES);
    issue_wgmma<0>(acc, a[0], weights, rows, lane_offset, accumulate);
    mbarrier_arrive_if(previous_empty, coord.lane == 0 && accumulate);
    issue_wgmma<1>(acc, a[1], weights, rows, lane_offset, 1);
    previous_empty = pipeline.empty + pipeline.stage;
    pipeline.advance();
    if (IS_CODEBOOK && (IS_LAST || (chunk + 1) % SCALE_CHUNKS == 0)) {
        mbarrier_arrive_if(scale_pipeline.empty + scale_pipeline.stage, coord.lane == 0);
        scale_pipeline.advance();
    }
    Weights next;
    if (!IS_LAST) next = wait_and_read_weights(coord, chunk + 1, pipeline, scale_pipeline);
    issue_wgmma<2>(acc, a[0], weights, rows, lane_offset, 1);
    issue_wgmma<3>(acc, a[1], weights, rows, lane_offset, 1);
    if (!IS_LAST) weights = next;
}

// Main loop: multiply all chunks of a segment.
__device__ void consume_segment(float (&acc)[BLOCKS][ACCUMULATORS], const ThreadCoord& coord, const TileSegment& segment,
                                Pipeline<STAGES>& pipeline, Pipeline<2>& scale_pipeline) {
    u32 a[2][BLOCKS][4];
    u64* previous_empty = pipeline.empty + pipeline.stage;
    if (IS_CODEBOOK && segment.begin % SCALE_CHUNKS != 0) scale_pipeline.wait_full();
    Weights weights = wait_and_read_weights(coord, segment.begin, pipeline, scale_pipeline);
    int chunk = segment.begin;
    for (; chunk < segment.end - 1; chunk++)
        consume_chunk<false>(acc, weights, a, coord, chunk, previous_empty, pipeline, scale_pipeline, chunk > segment.begin);
    consume_chunk<true>(acc, weights, a, coord, chunk, previous_empty, pipeline, scale_pipeline, chunk > segment.begin);
    wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) wgmma_fence_accumulators(acc[block]);
    mbarrier_arrive_if(previous_empty, coord.lane == 0);
}

// Return the scale of an output of int8 weights.
__device__ float scale_of(const Arguments& args, int output) {
    return HAS_WIDE_SCALES ? ((const float*)args.scales)[output] : to_float(args.scales[output]);
}

// The epilogue writes a tile in subtiles of 16 rows and 64 outputs per warp group.
constexpr int SUBTILE_ROWS = 16, SUBTILES = BLOCKS * TILE_ROWS / SUBTILE_ROWS;
constexpr int SUBTILE_ACCUMULATORS = ACCUMULATORS * SUBTILE_ROWS / TILE_ROWS;
constexpr int ACCUMULATOR_QUADS = BLOCKS * ACCUMULATORS / 4;
constexpr int REDUCED_SUBTILES = 4;  // Subtiles that are reduced together, to have more loads in flight.

__device__ int first_output_of_subtile(const ThreadCoord& coord, const TileOrigin& origin, int subtile) {
    return origin.output + output_in_tile(coord, subtile * SUBTILE_ROWS / TILE_ROWS, 0) - coord.g;
}

// Scales that the epilogue applies to a lane's two outputs of a subtile: 1, except for int8.
struct OutputScales {
    float of[2];
};

__device__ OutputScales output_scales(const Arguments& args, const ThreadCoord& coord, const TileOrigin& origin,
                                      int subtile) {
    OutputScales scales = {{1, 1}};
    const int output = first_output_of_subtile(coord, origin, subtile);
    if (IS_INT8)
        for (int half = 0; half < 2; half++)
            if (output + 8 * half < args.outputs) scales.of[half] = scale_of(args, output + 8 * half + coord.g);
    return scales;
}

// Round a thread's accumulators of a subtile and write them. They are transposed in shared memory (stmatrix), so that a lane
// writes eight consecutive outputs of a row. Consecutive subtiles alternate between two buffers per warp.
__device__ void write_subtile(const float* acc, const OutputScales& scales, const Arguments& args, const ThreadCoord& coord,
                              const TileOrigin& origin, int subtile) {
    unsigned char* buffer = smem + EPILOGUE_OFFSET + coord.warp * 1024 + subtile % 2 * 512;
    const auto pair = [&](int i) { return pack_half2(acc[i] * scales.of[i / 2 % 2], acc[i + 1] * scales.of[i / 2 % 2]); };
    const int buffer_row = coord.lane / 16 * 8 + coord.lane % 8, buffer_half = coord.lane / 8 % 2;
    stmatrix_x4_trans(buffer + buffer_row * 32 + (buffer_half ^ buffer_row / 4 % 2) * 16, pair(0), pair(2), pair(4), pair(6));
    __syncwarp();
    const int row = coord.lane / 2, half = coord.lane % 2, to = origin.row + subtile * SUBTILE_ROWS % TILE_ROWS + row;
    const int output = first_output_of_subtile(coord, origin, subtile) + 8 * half;
    if (to < args.rows && output < args.outputs)
        *(uint4*)(args.output + (size_t)to * args.outputs + output) =
            *(const uint4*)(buffer + row * 32 + (half ^ row / 4 % 2) * 16);
}

__device__ void write_tile(const float (&acc)[BLOCKS][ACCUMULATORS], const Arguments& args, const ThreadCoord& coord,
                           const TileOrigin& origin) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        const OutputScales scales = output_scales(args, coord, origin, block * SUBTILES / BLOCKS);
#pragma unroll
        for (int i = 0; i < SUBTILES / BLOCKS; i++)
            write_subtile(acc[block] + i * SUBTILE_ACCUMULATORS, scales, args, coord, origin, block * SUBTILES / BLOCKS + i);
    }
}

// Return the address of a thread's first four partial sums of a block's segment; the next four are CONSUMERS float4 further.
__device__ float4* partial_sums_of(const Arguments& args, int block, int tile, int thread) {
    return (float4*)args.partial_sums + (size_t)(block + tile) * ACCUMULATOR_QUADS * CONSUMERS + thread;
}

// Store the accumulators of a segment for the blocks that reduce the tile.
__device__ void store_partial_sums(const float (&acc)[BLOCKS][ACCUMULATORS], const Arguments& args, int tile, int thread) {
    float4* partial_sums = partial_sums_of(args, blockIdx.x, tile, thread);
#pragma unroll
    for (int i = 0; i < ACCUMULATOR_QUADS; i++) {
        const float* four = acc[4 * i / ACCUMULATORS] + 4 * i % ACCUMULATORS;
        partial_sums[i * CONSUMERS] = make_float4(four[0], four[1], four[2], four[3]);
    }
    named_barrier_sync(1, CONSUMERS);
    if (thread == 0) counter_increment(args.counters + tile);
}

// Wait for the contributors of a split tile, then reduce and write its subtiles `subtile` to `end` - 1.
__device__ void reduce_subtiles(const Arguments& args, const ThreadCoord& coord, int thread, int tile,
                                const Contributors& contributors, int subtile, int end) {
    if (thread == 0) {
        const Contributors readers(args.split_tiles * SUBTILES, tile * SUBTILES, SUBTILES);
        counter_wait(args.counters + tile, contributors.blocks, readers.blocks);
    }
    named_barrier_sync(1, CONSUMERS);
    const TileOrigin origin = tile_origin(args, tile);
    for (; subtile < end; subtile += REDUCED_SUBTILES) {
        float acc[REDUCED_SUBTILES][SUBTILE_ACCUMULATORS] = {};
        const int quads = (end - subtile < REDUCED_SUBTILES ? end - subtile : REDUCED_SUBTILES) * SUBTILE_ACCUMULATORS / 4;
#pragma unroll 2
        for (int i = 0; i < contributors.blocks; i++) {
            const float4* partial_sums =
                partial_sums_of(args, contributors[i], tile, thread) + subtile * SUBTILE_ACCUMULATORS / 4 * CONSUMERS;
#pragma unroll
            for (int quad = 0; quad < REDUCED_SUBTILES * SUBTILE_ACCUMULATORS / 4; quad++) {
                float* four = acc[4 * quad / SUBTILE_ACCUMULATORS] + 4 * quad % SUBTILE_ACCUMULATORS;
                const float4 addend =
                    quad < quads ? load_partial_sums(partial_sums + quad * CONSUMERS) : make_float4(0, 0, 0, 0);
                four[0] += addend.x, four[1] += addend.y, four[2] += addend.z, four[3] += addend.w;
            }
        }
#pragma unroll
        for (int i = 0; i < REDUCED_SUBTILES; i++)
            if (subtile + i < end)
                write_subtile(acc[i], output_scales(args, coord, origin, subtile + i), args, coord, origin, subtile + i);
    }
}

// Reduce and write this block's share of the subtiles of all split tiles, except tiles that one block has written whole.
__device__ void reduce_partial_sums(const Arguments& args, const ThreadCoord& coord, int thread) {
    const int subtiles = args.split_tiles * SUBTILES, end = first_item(subtiles, blockIdx.x + 1);
    int subtile = first_item(subtiles, blockIdx.x);
    for (int tile = subtile / SUBTILES; subtile < end; tile++) {
        const int first = tile * SUBTILES, last = first + SUBTILES < end ? first + SUBTILES : end;
        const Contributors contributors(args.split_tiles * CHUNKS, tile * CHUNKS, CHUNKS);
        if (contributors.blocks > 1) reduce_subtiles(args, coord, thread, tile, contributors, subtile - first, last - first);
        subtile = last;
    }
}

__device__ void consume(const Arguments& args, int thread) {
    const ThreadCoord coord = {thread / WARP, thread % WARP, thread % WARP / 4, thread % 4};
    Pipeline<STAGES> pipeline(BARRIERS_OFFSET);
    Pipeline<2> scale_pipeline(SCALE_BARRIERS_OFFSET);
    TileScheduler scheduler = make_scheduler(args);
    float acc[BLOCKS][ACCUMULATORS];
    TileSegment segment = next_segment(scheduler);
    for (; segment.tile < tile_count(args); segment = next_segment(scheduler)) {
        consume_segment(acc, coord, segment, pipeline, scale_pipeline);
        if (segment.end - segment.begin < CHUNKS)
            store_partial_sums(acc, args, segment.tile, thread);
        else
            write_tile(acc, args, coord, tile_origin(args, segment.tile));
    }
    reduce_partial_sums(args, coord, thread);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prompt_matmul_kernel(const __grid_constant__ TensorMap hidden, const __grid_constant__ TensorMap packed,
                     const __grid_constant__ TensorMap group_scales, const __grid_constant__ TensorMap group_zeros,
                     const u16* scales, const float* codebook, float* partial_sums, int* counters, u16* output, int rows,
                     int outputs, int split_tiles, int raster_along_rows) {
    launch_dependents();
    const Arguments args = {scales, partial_sums, counters, output, rows, outputs, split_tiles, raster_along_rows};
    if (threadIdx.x == 0) {
        Pipeline<STAGES>(BARRIERS_OFFSET).init(CONSUMERS / WARP);
        Pipeline<2>(SCALE_BARRIERS_OFFSET).init(CONSUMERS / WARP);
        fence_mbarrier_init();
    }
    if (IS_CODEBOOK) write_pair_table<THREADS>([=](int byte) { return pack_half2(codebook[byte >> 4], codebook[byte & 15]); });
    __syncthreads();
    if (threadIdx.x < WARP_GROUP) {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce(args, &hidden, &packed, &group_scales, &group_zeros);
    } else {
        warpgroup_reg_alloc<CONSUMER_REGISTERS>();
        wait_for_previous_kernel();
        consume(args, threadIdx.x - WARP_GROUP);
    }
}
