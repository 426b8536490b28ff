// Which parts of which tiles a block of prompt_matmul.cu makes, and the rings of shared memory through which they go.
//
// `lined` tiles are one line of steps, of which each block takes an equal part, first of all. The others are made whole, as
// many by each block. Where a tile is shared, the block with its first step ends it. The others are the blocks that
// follow, and begin with it: so nobody waits for what has not begun.
//
// Constants: CHUNKS, the steps of a tile; TILE_ROWS; TILE_OUTPUTS.

#include "hopper_ptx.cuh"

extern __shared__ __align__(1024) unsigned char memory[];

struct Given {
    const u16* scales;
    float* left;
    int* flags;
    u16* output;
    int rows, outputs, lined, are_rows_first;
};

// A part of a tile: of its chunks those from `first` to before `last`.
struct Part {
    int tile, first, last;
};

// The parts of a block, one after another.
struct Walk {
    int at, end, whole;
};

__device__ int start_of(const Given& given, int block) { return given.lined * CHUNKS * block / gridDim.x; }

// Whether a block has a part of the line: there may be fewer steps than blocks.
__device__ bool has_part(const Given& given, int block) { return start_of(given, block) < start_of(given, block + 1); }

__device__ Walk walk_of(const Given& given) {
    return {start_of(given, blockIdx.x), start_of(given, blockIdx.x + 1), given.lined + (int)blockIdx.x};
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
__device__ int first_row(const Given& given, int tile) {
    return TILE_ROWS * (given.are_rows_first ? tile % row_tiles(given) : tile / output_tiles(given));
}
__device__ int first_output(const Given& given, int tile) {
    return TILE_OUTPUTS * (given.are_rows_first ? tile / row_tiles(given) : tile % output_tiles(given));
}

// A ring of places in shared memory that are filled and emptied, with a barrier for each.
template <int SIZE>
struct Ring {
    u64 *filled, *emptied;
    int at, round;

    __device__ Ring(int barriers) : filled((u64*)(memory + barriers)), emptied(filled + SIZE), at(0), round(0) {}
    __device__ void make(int warps) {
        for (int i = 0; i < SIZE; i++) {
            make_barrier(filled + i, 1);
            make_barrier(emptied + i, warps);
        }
    }
    __device__ void wait_until_filled() const { wait_for(filled + at, round & 1); }
    __device__ void wait_until_empty() const { wait_for(emptied + at, round & 1 ^ 1); }
    __device__ void go_on() {
        at = at + 1 == SIZE ? 0 : at + 1;
        round += at == 0;
    }
};
