// Permutation of activation rows to the order of prefill_gemm.cu (`by_lane` in packed_weights.py), with SWIGLU fused.
//
// Of 64 inputs, each of four lanes of wgmma's operand A has sixteen consecutive ones. A thread loads eight inputs of one
// lane, 16 bytes, as four half2. The four threads that have the same eight of their lanes' inputs transpose their half2:
// each ends with one half2 of every lane and writes 16 bytes.
//
// Macros: PACK_FACTOR, 4 or 8; SWIGLU, rows are gate and up; BF16; THREADS.

#include "tensor_ptx.cuh"

// Return pair INDEX of eight inputs: two consecutive inputs or, for words of eight weights, inputs i and i + 4.
template <int INDEX>
__device__ u32 input_pair(const uint4& inputs) {
#if PACK_FACTOR == 4
    return INDEX == 0 ? inputs.x : INDEX == 1 ? inputs.y : INDEX == 2 ? inputs.z : inputs.w;
#else
    const u32 first = INDEX < 2 ? inputs.x : inputs.y, second = INDEX < 2 ? inputs.z : inputs.w;
    return INDEX % 2 == 0 ? first & 0xffff | second << 16 : first >> 16 | second & 0xffff0000;
#endif
}

__device__ u32 swiglu(u32 gate, u32 up) {
    return pack_half2(silu(to_float(gate & 0xffff)) * to_float(up & 0xffff), silu(to_float(gate >> 16)) * to_float(up >> 16));
}

// Keep one of two pairs, and exchange the other pair with thread `threadIdx.x ^ mask`.
__device__ void exchange(u32& low, u32& high, int mask) {
    const bool keeps_high = threadIdx.x & mask;
    const u32 received = __shfl_xor_sync(~0u, keeps_high ? low : high, mask);
    (keeps_high ? low : high) = received;
}

// rows: [rows, inputs], or [rows, 2 * inputs] with SWIGLU; permuted: [rows, inputs]. Both are arrays of vectors of eight
// inputs. row_vectors: vectors in a row of `permuted`, a multiple of 8; vectors: in all rows.
extern "C" __global__ void rows_by_lane_kernel(const uint4* rows, uint4* permuted, int row_vectors, int vectors) {
    wait_for_previous_kernel();
    launch_dependents();
    const int index = blockIdx.x * THREADS + threadIdx.x, row = index / row_vectors, in_row = index % row_vectors;
    uint4 inputs = make_uint4(0, 0, 0, 0);
    if (index < vectors) {
#if SWIGLU
        const uint4 gate = rows[2 * row * row_vectors + in_row], up = rows[(2 * row + 1) * row_vectors + in_row];
        inputs = make_uint4(swiglu(gate.x, up.x), swiglu(gate.y, up.y), swiglu(gate.z, up.z), swiglu(gate.w, up.w));
#else
        inputs = rows[index];
#endif
    }
    u32 pairs[4] = {input_pair<0>(inputs), input_pair<1>(inputs), input_pair<2>(inputs), input_pair<3>(inputs)};
    // Two threads have the sixteen inputs of a lane, so the same eight inputs of the next lane are 2 threads away.
    exchange(pairs[0], pairs[1], 2);
    exchange(pairs[2], pairs[3], 2);
    exchange(pairs[0], pairs[2], 4);
    exchange(pairs[1], pairs[3], 4);
    const int lane_half = in_row % 2, lane = in_row / 2 % 4;
    if (index < vectors)
        permuted[index - index % 8 + 4 * lane_half + lane] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
