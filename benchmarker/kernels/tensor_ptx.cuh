// Instructions without a C++ equivalent, one function each.

#pragma once

typedef unsigned int u32;
typedef unsigned short u16;

#if BF16
#define KIND "bf16"
#else
#define KIND "f16"
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

// Round two numbers to 16 bits and pack them, the first in the lower half.
__device__ u32 pair_of(float low, float high) {
    u32 result;
    asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

__device__ float exponential(float value) { return __expf(value); }
__device__ float silu(float value) { return value / (1 + exponential(-value)); }

// Return own + 256 * (byte BYTE of a word); own must be below 256.
template <int BYTE>
__device__ u32 place_of_byte(u32 word, u32 own) {
    u32 place;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(place) : "r"(word), "r"(own), "n"(0x5504 | BYTE << 4));
    return place;
}

// sums += A * B, computed by a whole warp. The PTX manual (mma.m16n8k16) describes the numbers that each lane holds.
__device__ void multiply_and_add(float (&sums)[4], const u32 (&a)[4], u32 first, u32 second) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first), "r"(second));
}

// Read weights past the L1 cache: they are read once, and no kernel writes them.
__device__ void read_weights(const void* place, uint4& words) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(place));
}

__device__ void read_weights(const void* place, uint2& words) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(place));
}

// Read scales through the L1 cache, because several lanes read the same scales.
__device__ void read_scales(const void* place, float2& scales) {
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(scales.x), "=f"(scales.y) : "l"(place));
}

__device__ void read_scales(const void* place, u32& pair) {
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(pair) : "l"(place));
}

// PDL: let the next kernel start.
__device__ void let_the_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }

// PDL: wait until the previous kernel has ended and its writes are visible.
__device__ void wait_for_the_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Wait at a barrier, number 1 to 15, until this many threads have arrived.
__device__ void meet(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Called by a whole warp: publish its writes and count it. Return true for the last of `parts`, which resets the count.
__device__ bool arrive(int* arrived, int parts) {
    __threadfence();
    __syncwarp();
    int before = 0;
    if (threadIdx.x % 32 == 0) {
        before = atomicAdd(arrived, 1);
        if (before == parts - 1) *arrived = 0;
    }
    before = __shfl_sync(~0u, before, 0);
    __threadfence();
    return before == parts - 1;
}

// Read numbers that another block has written, past this multiprocessor's L1 cache.
__device__ float read_left(const float* place) { return __ldcg(place); }
