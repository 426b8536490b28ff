// Hopper's instructions for copies and products of warp groups (sm_90a), one function each.
//
// A barrier counts arrivals and announced bytes of copies. A thread waits for the end of the phase with a parity, starting
// with 0. Copies and products are asynchronous.

#include "tensor_ptx.cuh"

typedef unsigned long long u64;

struct __align__(64) TensorMap { u64 words[16]; };  // CUtensorMap

__device__ u32 address(const void* place) { return (u32)__cvta_generic_to_shared(place); }

__device__ void make_barrier(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals) : "memory");
}

// Make barriers that this thread has initialized visible to the copies.
__device__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive at a barrier, and announce the number of bytes that copies will write.
__device__ void announce(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}

// Arrive if a condition is true, without a branch: the compiler keeps products asynchronous only in straight-line code.
__device__ void arrive_if(u64* barrier, bool is_so) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}"
                 ::"r"(address(barrier)), "r"((int)is_so) : "memory");
}

__device__ void wait_for(u64* barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(address(barrier)), "r"(parity) : "memory");
}

// Copy the box at x, y, z, whose size is part of the map. Elements outside of the tensor are zeros.
__device__ void copy_box(void* to, const TensorMap* map, int x, int y, int z, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(address(to)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(address(barrier)) : "memory");
}

// Set the number of registers per thread of this warp group.
template <int COUNT> __device__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> __device__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Rows of 64 numbers of 16 bits one after another, as a copy with a swizzle of 128 bytes writes them, from a multiple of
// 1,024 bytes on. The next 16 columns are 2 further.
__device__ u64 rows_at(const void* place) { return (u64)(address(place) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most COUNT groups of products (`begin_products` to `end_products`) are running.
template <int COUNT> __device__ void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory"); }

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// sums = A * B, or sums += A * B if `is_added`, by a warp group together. A: 64 x 16, of which a lane of warp w holds what
// it would of rows 16 w to 16 w + 15 in mma.m16n8k16, and likewise of sums, 64 x 2 COUNT. B: 16 columns of rows in shared
// memory, see `rows_at`. Neither A nor the sums may be touched before it is waited for.
__device__ void multiply_rows(float (&sums)[16], const u32 (&a)[4], u64 rows, int is_added) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." KIND "." KIND " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
        : SIXTEEN(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"(is_added));
}

__device__ void multiply_rows(float (&sums)[32], const u32 (&a)[4], u64 rows, int is_added) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." KIND "." KIND " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : SIXTEEN(0), SIXTEEN(16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"(is_added));
}

__device__ void multiply_rows(float (&sums)[64], const u32 (&a)[4], u64 rows, int is_added) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." KIND "." KIND " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
        "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
        "%58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"(is_added));
}

__device__ void multiply_rows(float (&sums)[128], const u32 (&a)[4], u64 rows, int is_added) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." KIND "." KIND " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
        "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
        "%119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"(is_added));
}

// Mark sums as complete: the compiler must not move reads of the sums before this point.
template <int COUNT>
__device__ void settle(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Four 8 x 8 matrices, of which a lane holds two columns of a row as in mma, with rows and columns exchanged: lane 8 i + j
// says where column j of matrix i is written, 16 bytes.
__device__ void write_turned(void* to, u32 first, u32 second, u32 third, u32 fourth) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address(to)), "r"(first), "r"(second), "r"(third), "r"(fourth) : "memory");
}

// Select four bytes of two words by the last four hexadecimal digits of WHICH: 0 to 3 from `first`, 4 to 7 from `second`.
template <u32 WHICH>
__device__ u32 bytes_of(u32 first, u32 second) {
    u32 result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(first), "r"(second), "n"(WHICH));
    return result;
}

// Subtract, multiply, or multiply and add (rounded once) pairs of 16-bit numbers.
__device__ u32 less(u32 pair, u32 other) {
    u32 result;
    asm("sub." KIND "x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(other));
    return result;
}

__device__ u32 times(u32 pair, u32 other) {
    u32 result;
    asm("mul." KIND "x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(other));
    return result;
}

__device__ u32 times_plus(u32 pair, u32 other, u32 more) {
    u32 result;
    asm("fma.rn." KIND "x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(other), "r"(more));
    return result;
}

// Called by one thread after its block has synchronized: publish the block's writes and increment a counter.
__device__ void count_up(int* count) {
    __threadfence();
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}

// Called by one thread of each of `readers` blocks: wait until the count is `makers`. The last reader resets it to 0.
__device__ void await_count(int* count, int makers, int readers) {
    constexpr int READER = 1 << 16;
    int counted = 0;
    while ((counted & READER - 1) != makers)
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(counted) : "l"(count) : "memory");
    if (atomicAdd(count, READER) / READER == readers - 1) *count = 0;
}

// Read four numbers that another block has written, past this multiprocessor's L1 cache.
__device__ float4 read_left(const float4* place) { return __ldcg(place); }
