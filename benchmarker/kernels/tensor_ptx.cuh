// Wrappers of PTX instructions for all architectures; hopper_ptx.cuh has those of sm_90a.
//
// "Half" means the kernel's 16-bit type: float16, or bfloat16 if BF16. A half2 is two of them in 32 bits.

#pragma once

typedef unsigned int u32;
typedef unsigned short u16;

#if BF16
#define DTYPE "bf16"
#else
#define DTYPE "f16"
#endif

// Convert a 16-bit float to 32 bits.
__device__ float to_float(u32 value) {
#if BF16
    return __uint_as_float(value << 16);
#else
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"((u16)value));
    return result;
#endif
}

// Round two floats to a half2, the first in the lower 16 bits.
__device__ u32 pack_half2(float low, float high) {
    u32 result;
    asm("cvt.rn." DTYPE "x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// Subtract two half2.
__device__ u32 subtract_half2(u32 a, u32 b) {
    u32 result;
    asm("sub.rn." DTYPE "x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

__device__ float exponential(float value) { return __expf(value); }
__device__ float silu(float value) { return value / (1 + exponential(-value)); }

// Return lane_offset + 256 * (byte BYTE of a word); lane_offset must be below 256.
template <int BYTE>
__device__ u32 byte_address(u32 word, u32 lane_offset) {
    u32 address;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(address) : "r"(word), "r"(lane_offset), "n"(0x5504 | BYTE << 4));
    return address;
}

// D += A * B, one warp. The PTX ISA manual (mma.m16n8k16) has the fragment layouts.
__device__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." DTYPE "." DTYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Load read-only data without allocation in L1: packed weights, which are read once.
__device__ void load_no_allocate(const void* address, uint4& words) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(address));
}

__device__ void load_no_allocate(const void* address, uint2& words) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(address));
}

// Load read-only data through L1: scales and zero points, which several lanes read.
__device__ void load_cached(const void* address, float2& scales) {
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(scales.x), "=f"(scales.y) : "l"(address));
}

__device__ void load_cached(const void* address, u32& pair) {
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(pair) : "l"(address));
}

// Programmatic dependent launch (PDL): let the next kernel in the stream start.
__device__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// PDL: wait until the previous kernel has ended and its writes are visible. Before it, only weights may be read.
__device__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Synchronize `threads` threads of the block at a named barrier, 1 to 15 (0 is __syncthreads).
__device__ void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Called by a whole warp: publish the warp's writes and increment a counter. Return true in the last of `arrivals` warps,
// which resets the counter to 0.
__device__ bool arrive_and_check_last(int* counter, int arrivals) {
    __threadfence();
    __syncwarp();
    int previous = 0;
    if (threadIdx.x % 32 == 0) {
        previous = atomicAdd(counter, 1);
        if (previous == arrivals - 1) *counter = 0;
    }
    previous = __shfl_sync(~0u, previous, 0);
    __threadfence();
    return previous == arrivals - 1;
}

// Load a partial sum that another block has written: from L2, because L1 is not coherent.
__device__ float load_partial_sums(const float* address) { return __ldcg(address); }
