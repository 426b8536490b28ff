// Assignment of tiles to blocks of prefill_gemm.cu, and the rings of shared memory.
//
// `lined` tiles are one sequence of steps, of which each block takes an equal part first and stores its sums. The other
// tiles are computed whole, one per block and turn. In the end all blocks add and write equal parts of the lined tiles.
// Blocks wait for each other, so all must be resident.
//
// Constants: CHUNKS, the steps of a tile; TILE_ROWS; TILE_OUTPUTS.

#include "hopper_ptx.cuh"

extern __shared__ __align__(1024) unsigned char smem[];

struct Given {
    const u16* scales;
    float* left;
    int* counts;
    u16* output;
    int rows, outputs, lined, are_rows_first;
};

// A part of a tile: the chunks from `first` to `last` - 1.
struct Part {
    int tile, first, last;
};

// Iterator over the parts that a block computes.
struct Walk {
    int at, end, whole;
};

// `size` items are divided equally among all blocks: the first item of a block, and the block of an item.
__device__ int start_of(int size, int block) { return size * block / (int)gridDim.x; }
__device__ int block_of(int size, int thing) { return ((thing + 1) * (int)gridDim.x - 1) / size; }

// The blocks that have the `count` items from `from` on. If there are fewer items than blocks, some blocks have none.
struct Sharers {
    int size, from, count, first, number;

    __device__ Sharers(int size, int from, int count) : size(size), from(from), count(count), first(block_of(size, from)) {
        number = block_of(size, from + count - 1) - first + 1;
        if (number > count) number = count;
    }
    __device__ int operator[](int i) const { return number == count ? block_of(size, from + i) : first + i; }
};

__device__ Walk walk_of(const Given& given) {
    const int steps = given.lined * CHUNKS;
    return {start_of(steps, blockIdx.x), start_of(steps, blockIdx.x + 1), given.lined + (int)blockIdx.x};
}

__device__ Part next_part(Walk& walk) {
    Part part = {walk.whole, 0, CHUNKS};
    if (walk.at < walk.end) {
        part.tile = walk.at / CHUNKS;
        part.first = walk.at - part.tile * CHUNKS;
        if (part.first + walk.end - walk.at < CHUNKS) part.last = part.first + walk.end - walk.at;
        walk.at += part.last - part.first;
    } else {
        walk.whole += gridDim.x;
    }
    return part;
}

__device__ int row_tiles(const Given& given) { return (given.rows + TILE_ROWS - 1) / TILE_ROWS; }
__device__ int output_tiles(const Given& given) { return (given.outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS; }
__device__ int tiles_of(const Given& given) { return row_tiles(given) * output_tiles(given); }

// First row and output of a tile. They take two divisions: compute them once per tile, not in loops.
struct Corner {
    int row, output;
};

__device__ Corner corner_of(const Given& given, int tile) {
    const int in_line = given.are_rows_first ? row_tiles(given) : output_tiles(given);
    const int line = tile / in_line, at = tile % in_line;
    return {TILE_ROWS * (given.are_rows_first ? at : line), TILE_OUTPUTS * (given.are_rows_first ? line : at)};
}

// A ring of buffers in shared memory, each with a barrier for "filled" and a barrier for "emptied".
template <int SIZE>
struct Ring {
    u64 *filled, *emptied;
    int at, round;

    __device__ Ring(int barriers) : filled((u64*)(smem + barriers)), emptied(filled + SIZE), at(0), round(0) {}
    __device__ void make(int warps) {
        for (int i = 0; i < SIZE; i++) {
            mbarrier_init(filled + i, 1);
            mbarrier_init(emptied + i, warps);
        }
    }
    __device__ void wait_until_filled() const { mbarrier_wait(filled + at, round & 1); }
    __device__ void wait_until_empty() const { mbarrier_wait(emptied + at, round & 1 ^ 1); }
    __device__ void go_on() {
        at = at + 1 == SIZE ? 0 : at + 1;
        round += at == 0;
    }
};
