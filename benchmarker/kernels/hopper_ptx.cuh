// Wrappers of PTX instructions of sm_90a: mbarrier, TMA, wgmma, stmatrix and setmaxnreg. CUTLASS has most of them as
// ClusterTransactionBarrier, SM90_TMA_LOAD_3D, warpgroup_* and SM90_64xNx16.
//
// A phase of an mbarrier completes when its expected arrivals and expected bytes have arrived. Phases alternate in parity
// and start with 0. TMA loads and wgmma are asynchronous.

#include "tensor_ptx.cuh"

typedef unsigned long long u64;

struct __align__(64) TensorMap { u64 words[16]; };  // CUtensorMap

__device__ u32 smem_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

__device__ void mbarrier_init(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(arrivals) : "memory");
}

// Make mbarriers that this thread has initialized visible to TMA (the async proxy).
__device__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive, and add the number of bytes that TMA loads will write in this phase.
__device__ void mbarrier_expect_bytes(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(bytes) : "memory");
}

// Arrive if a condition is true, by a predicate instead of a branch: ptxas serializes wgmma that crosses a branch.
__device__ void mbarrier_arrive_if(u64* barrier, bool condition) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}"
                 ::"r"(smem_address(barrier)), "r"((int)condition) : "memory");
}

// Wait until the phase with a parity has completed.
__device__ void mbarrier_wait(u64* barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(smem_address(barrier)), "r"(parity) : "memory");
}

// TMA load of the box at coordinates x, y, z; the map has the box's size. Elements outside the tensor become zeros.
__device__ void tma_load_3d(void* destination, const TensorMap* map, int x, int y, int z, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(smem_address(destination)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(smem_address(barrier)) : "memory");
}

// Raise or lower the number of registers per thread of this warp group (setmaxnreg).
template <int COUNT>
__device__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Matrix descriptor of a K-major operand B with 64 halves per row and a swizzle of 128 bytes, as TMA writes it, at a
// multiple of 1,024 bytes: stride byte offset 1,024 (eight rows). The next 16 columns (K) are at the descriptor plus 2.
__device__ u64 wgmma_descriptor(const void* pointer) {
    return (u64)(smem_address(pointer) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most COUNT committed wgmma groups are pending.
template <int COUNT>
__device__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
}

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// D = A * B, or D += A * B if `accumulate`, one warp group: m64nNk16 with N = 2 * (size of d), A in registers, B in shared
// memory. Warp w has rows 16 w to 16 w + 15 of A and D in the fragment layouts of mma.m16n8k16. Neither A nor D may be
// accessed before `wgmma_wait`.
__device__ void wgmma(float (&d)[16], const u32 (&a)[4], u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." DTYPE "." DTYPE " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
        : SIXTEEN(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ void wgmma(float (&d)[32], const u32 (&a)[4], u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." DTYPE "." DTYPE " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : SIXTEEN(0), SIXTEEN(16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ void wgmma(float (&d)[64], const u32 (&a)[4], u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." DTYPE "." DTYPE " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
        "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
        "%58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ void wgmma(float (&d)[128], const u32 (&a)[4], u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." DTYPE "." DTYPE " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
        "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
        "%119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

// Keep the compiler from moving reads of accumulators before this point (CUTLASS: warpgroup_fence_operand).
template <int COUNT>
__device__ void wgmma_fence_accumulators(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Store four 8 x 8 matrices (accumulator fragments as half2) transposed. Lane 8 i + j passes the address of column j of
// matrix i, 16 bytes.
__device__ void stmatrix_x4_trans(void* destination, u32 first, u32 second, u32 third, u32 fourth) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(smem_address(destination)), "r"(first), "r"(second), "r"(third), "r"(fourth) : "memory");
}

// Select four bytes by the last four hexadecimal digits of SELECTOR: 0 to 3 from `first`, 4 to 7 from `second` (prmt).
template <u32 SELECTOR>
__device__ u32 byte_perm(u32 first, u32 second) {
    u32 result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(first), "r"(second), "n"(SELECTOR));
    return result;
}

// Arithmetic on half2: x - y, x * y, and x * y + z, rounded once.
__device__ u32 sub_half2(u32 x, u32 y) {
    u32 result;
    asm("sub." DTYPE "x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
    return result;
}

__device__ u32 mul_half2(u32 x, u32 y) {
    u32 result;
    asm("mul." DTYPE "x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
    return result;
}

__device__ u32 fma_half2(u32 x, u32 y, u32 z) {
    u32 result;
    asm("fma.rn." DTYPE "x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
    return result;
}

// Called by one thread after its block has synchronized: publish the block's writes and increment a counter in L2.
__device__ void counter_increment(int* counter) {
    __threadfence();
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// Called by one thread of each of `readers` blocks: wait until `contributors` blocks have incremented the counter. The upper
// 16 bits count the readers; the last reader resets the counter to 0.
__device__ void counter_wait(int* counter, int contributors, int readers) {
    constexpr int READER = 1 << 16;
    int value = 0;
    while ((value & READER - 1) != contributors)
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    if (atomicAdd(counter, READER) / READER == readers - 1) *counter = 0;
}

// Load four partial sums that another block has written: from L2, because L1 is not coherent.
__device__ float4 load_partial_sums(const float4* address) { return __ldcg(address); }
