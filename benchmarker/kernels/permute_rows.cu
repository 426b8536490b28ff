// Rows in the order of prefill_gemm.cu (`by_lane` in packed_weights.py); with GATED after SwiGLU.
//
// Of 64 inputs each of four lanes has sixteen consecutive ones. A thread takes eight inputs of one lane, 16 bytes, as four
// pairs. The four threads with the same eight of their lanes exchange pairs: each ends with one pair of every lane and
// writes 16 bytes.
//
// Macros: IN_WORD, weights per word, 4 or 8; GATED, rows are gate and up; BF16.

#include "tensor_ptx.cuh"

// Pair NUMBER of eight inputs: two that follow one another, or a number of a word of eight and the fourth behind it.
template <int NUMBER>
__device__ u32 pair_at(const uint4& eight) {
#if IN_WORD == 4
    return NUMBER == 0 ? eight.x : NUMBER == 1 ? eight.y : NUMBER == 2 ? eight.z : eight.w;
#else
    const u32 first = NUMBER < 2 ? eight.x : eight.y, second = NUMBER < 2 ? eight.z : eight.w;
    return NUMBER % 2 == 0 ? first & 0xffff | second << 16 : first >> 16 | second & 0xffff0000;
#endif
}

__device__ u32 gated(u32 gate, u32 up) {
    return pack_half2(silu(to_float(gate & 0xffff)) * to_float(up & 0xffff), silu(to_float(gate >> 16)) * to_float(up >> 16));
}

// Keep one of two pairs, and exchange the other pair with the thread `apart` lanes away.
__device__ void exchange(u32& low, u32& high, int apart) {
    const bool keeps_high = threadIdx.x & apart;
    const u32 got = __shfl_xor_sync(~0u, keeps_high ? low : high, apart);
    (keeps_high ? low : high) = got;
}

// rows: [rows, inputs], or [rows, 2 * inputs] with GATED; placed: [rows, inputs]; both in eights, of which a row of `placed`
// has `row_eights`, a multiple of 8, and all have `eights`.
extern "C" __global__ void rows_by_lane_kernel(const uint4* rows, uint4* placed, int row_eights, int eights) {
    wait_for_previous_kernel();
    launch_dependents();
    const int index = blockIdx.x * THREADS + threadIdx.x, row = index / row_eights, in_row = index % row_eights;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (index < eights) {
#if GATED
        const uint4 gate = rows[2 * row * row_eights + in_row], up = rows[(2 * row + 1) * row_eights + in_row];
        eight = make_uint4(gated(gate.x, up.x), gated(gate.y, up.y), gated(gate.z, up.z), gated(gate.w, up.w));
#else
        eight = rows[index];
#endif
    }
    u32 pairs[4] = {pair_at<0>(eight), pair_at<1>(eight), pair_at<2>(eight), pair_at<3>(eight)};
    // Two threads have the sixteen inputs of a lane, so the same eight inputs of the next lane are 2 threads away.
    exchange(pairs[0], pairs[1], 2);
    exchange(pairs[2], pairs[3], 2);
    exchange(pairs[0], pairs[2], 4);
    exchange(pairs[1], pairs[3], 4);
    const int of_lane = in_row % 2, lane = in_row / 2 % 4;
    if (index < eights) placed[index - index % 8 + 4 * of_lane + lane] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
