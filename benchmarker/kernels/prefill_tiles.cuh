// Tile scheduler (stream-K) and TMA pipeline of prefill_gemm.cu.
//
// The first `split_tiles` tiles are split along K: their chunks form one sequence, of which each block computes an equal
// share first. Each other tile is computed whole by one block (data-parallel). A block that computes only a segment of a
// tile stores partial sums; at the end, all blocks reduce and write equal shares of the split tiles. Blocks wait for each
// other, so all must be resident.
//
// Constants: CHUNKS, number of chunks (K steps) of a tile; TILE_ROWS; TILE_OUTPUTS.

#include "hopper_ptx.cuh"

extern __shared__ __align__(1024) unsigned char smem[];

struct Arguments {
    const u16* scales;
    float* partial_sums;
    int* counters;
    u16* output;
    int rows, outputs, split_tiles, raster_along_rows;
};

// Chunks `begin` to `end` - 1 of a tile.
struct TileSegment {
    int tile, begin, end;
};

// Iterator over the segments of a block: the range of its chunks in the split tiles, then its next whole tile.
struct TileScheduler {
    int chunk, end_chunk, whole_tile;
};

// `size` items are divided equally among all blocks: first item of a block, and block of an item.
__device__ int first_item(int size, int block) { return size * block / (int)gridDim.x; }
__device__ int block_of_item(int size, int item) { return ((item + 1) * (int)gridDim.x - 1) / size; }

// The blocks that have items `begin` to `begin` + `count` - 1. If there are fewer items than blocks, some blocks have none.
struct Contributors {
    int size, begin, count, first_block, blocks;

    __device__ Contributors(int size, int begin, int count)
        : size(size), begin(begin), count(count), first_block(block_of_item(size, begin)) {
        blocks = block_of_item(size, begin + count - 1) - first_block + 1;
        if (blocks > count) blocks = count;
    }
    __device__ int operator[](int i) const { return blocks == count ? block_of_item(size, begin + i) : first_block + i; }
};

__device__ TileScheduler make_scheduler(const Arguments& args) {
    const int chunks = args.split_tiles * CHUNKS;
    return {first_item(chunks, blockIdx.x), first_item(chunks, blockIdx.x + 1), args.split_tiles + (int)blockIdx.x};
}

// Return the next segment of the block; `tile` is at least `tile_count` after the last segment.
__device__ TileSegment next_segment(TileScheduler& scheduler) {
    TileSegment segment = {scheduler.whole_tile, 0, CHUNKS};
    if (scheduler.chunk < scheduler.end_chunk) {
        segment.tile = scheduler.chunk / CHUNKS;
        segment.begin = scheduler.chunk - segment.tile * CHUNKS;
        if (segment.begin + scheduler.end_chunk - scheduler.chunk < CHUNKS)
            segment.end = segment.begin + scheduler.end_chunk - scheduler.chunk;
        scheduler.chunk += segment.end - segment.begin;
    } else {
        scheduler.whole_tile += gridDim.x;
    }
    return segment;
}

__device__ int row_tiles(const Arguments& args) { return (args.rows + TILE_ROWS - 1) / TILE_ROWS; }
__device__ int output_tiles(const Arguments& args) { return (args.outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS; }
__device__ int tile_count(const Arguments& args) { return row_tiles(args) * output_tiles(args); }

// First row and output of a tile. It takes two divisions: compute it once per tile, not in loops.
struct TileOrigin {
    int row, output;
};

__device__ TileOrigin tile_origin(const Arguments& args, int tile) {
    const int tiles_per_line = args.raster_along_rows ? row_tiles(args) : output_tiles(args);
    const int line = tile / tiles_per_line, at = tile % tiles_per_line;
    return {TILE_ROWS * (args.raster_along_rows ? at : line), TILE_OUTPUTS * (args.raster_along_rows ? line : at)};
}

// State of a circular buffer of DEPTH stages in shared memory. The full barrier of a stage expects one arrival and the
// bytes of TMA; the empty barrier expects one arrival per consumer warp. A stage's parity is `phase & 1`.
template <int DEPTH>
struct Pipeline {
    u64 *full, *empty;
    int stage, phase;

    __device__ Pipeline(int barriers_offset)
        : full((u64*)(smem + barriers_offset)), empty(full + DEPTH), stage(0), phase(0) {}
    __device__ void init(int consumer_warps) {
        for (int i = 0; i < DEPTH; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, consumer_warps);
        }
    }
    __device__ void wait_full() const { mbarrier_wait(full + stage, phase & 1); }
    __device__ void wait_empty() const { mbarrier_wait(empty + stage, phase & 1 ^ 1); }
    __device__ void advance() {
        stage = stage + 1 == DEPTH ? 0 : stage + 1;
        phase += stage == 0;
    }
};
