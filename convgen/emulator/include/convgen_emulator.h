// The seam between generated CUDA source and the emulator: this header is included before the source, which
// the host's C++17 compiler then compiles unchanged with CONVGEN_EMULATE defined.  It declares what CUDA brings
// by itself and every PTX function of templates/ptx, with the same names and signatures; what they do stands in
// ../runtime.  The last parameter of each, a default argument, is the line of the call.
#pragma once

// What is declared here is compiled with every kernel, and takes longer than many of them: so the part of C's math.h and
// string.h that CUDA has is declared here, and not included.
#ifdef CONVGEN_EMULATOR_RUNTIME
#include <math.h>
#include <string.h>
#else
using size_t = decltype(sizeof 0);
extern "C" {
void* memcpy(void* to, const void* from, size_t bytes) noexcept;
void* memset(void* to, int value, size_t bytes) noexcept;
#define CONVGEN_MATH(NAME)             \
  double NAME(double v) noexcept;      \
  float NAME##f(float v) noexcept;
#define CONVGEN_MATH_2(NAME)                \
  double NAME(double a, double b) noexcept; \
  float NAME##f(float a, float b) noexcept;
// clang-format off
CONVGEN_MATH(exp) CONVGEN_MATH(exp2) CONVGEN_MATH(expm1) CONVGEN_MATH(log) CONVGEN_MATH(log2) CONVGEN_MATH(log10)
CONVGEN_MATH(log1p) CONVGEN_MATH(sqrt) CONVGEN_MATH(cbrt) CONVGEN_MATH(erf) CONVGEN_MATH(erfc) CONVGEN_MATH(sin)
CONVGEN_MATH(cos) CONVGEN_MATH(tan) CONVGEN_MATH(asin) CONVGEN_MATH(acos) CONVGEN_MATH(atan) CONVGEN_MATH(sinh)
CONVGEN_MATH(cosh) CONVGEN_MATH(tanh) CONVGEN_MATH(fabs) CONVGEN_MATH(ceil) CONVGEN_MATH(floor) CONVGEN_MATH(trunc)
CONVGEN_MATH(round) CONVGEN_MATH(rint) CONVGEN_MATH(nearbyint) CONVGEN_MATH_2(pow) CONVGEN_MATH_2(fmod)
CONVGEN_MATH_2(fmin) CONVGEN_MATH_2(fmax) CONVGEN_MATH_2(atan2) CONVGEN_MATH_2(hypot) CONVGEN_MATH_2(copysign)
// clang-format on
double fma(double a, double b, double c) noexcept;
float fmaf(float a, float b, float c) noexcept;
double ldexp(double v, int exponent) noexcept;
float ldexpf(float v, int exponent) noexcept;
int abs(int v) noexcept;
}
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isnan(v) __builtin_isnan(v)
#define isinf(v) __builtin_isinf(v)
#define isfinite(v) __builtin_isfinite(v)
#define signbit(v) __builtin_signbit(v)
#endif

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
struct TensorMap;  // defined by the generated source
struct Vec2;
struct Vec4;

#define CONVGEN_LINE int line = __builtin_LINE()
#define CONVGEN_UNCHECKED __attribute__((no_sanitize("kernel-address", "undefined")))

// ---- keywords --------------------------------------------------------------------------------------------

#ifndef CONVGEN_EMULATOR_RUNTIME  // the runtime itself is plain C++
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#endif

// ---- built-in variables ----------------------------------------------------------------------------------

struct uint3 {
  u32 x, y, z;
};

namespace convgen_emulator {
struct Place {
  uint3 thread, block, block_dim, grid_dim;
};
extern __thread const Place* place;  // of the thread that runs
}  // namespace convgen_emulator

#define threadIdx (convgen_emulator::place->thread)
#define blockIdx (convgen_emulator::place->block)
#define blockDim (convgen_emulator::place->block_dim)
#define gridDim (convgen_emulator::place->grid_dim)
constexpr int warpSize = 32;
#define __trap __builtin_trap

// ---- barriers, votes, shuffles ---------------------------------------------------------------------------

void __syncthreads(CONVGEN_LINE);
void __syncwarp(u32 mask = 0xffffffff, CONVGEN_LINE);
u32 __activemask(CONVGEN_LINE);

namespace convgen_emulator {
enum class Vote { ballot, all, any };
u32 vote(Vote kind, u32 mask, int predicate, int line);  // the lanes whose predicate holds
enum class Shuffle { index, up, down, exclusive_or };
u64 shuffle(Shuffle kind, u32 mask, u64 bits, int by, int width, int line);

template <class T>
inline T shuffle_value(Shuffle kind, u32 mask, T value, int by, int width, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  u64 bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = shuffle(kind, mask, bits, by, width, line);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace convgen_emulator

inline u32 __ballot_sync(u32 mask, int predicate, CONVGEN_LINE) {
  return convgen_emulator::vote(convgen_emulator::Vote::ballot, mask, predicate, line);
}
inline int __all_sync(u32 mask, int predicate, CONVGEN_LINE) {
  return convgen_emulator::vote(convgen_emulator::Vote::all, mask, !predicate, line) == 0;
}
inline int __any_sync(u32 mask, int predicate, CONVGEN_LINE) {
  return convgen_emulator::vote(convgen_emulator::Vote::any, mask, predicate, line) != 0;
}

#define CONVGEN_SHUFFLE(NAME, KIND)                                                                        \
  template <class T>                                                                                       \
  inline T NAME(u32 mask, T value, int by, int width = 32, CONVGEN_LINE) {                                 \
    return convgen_emulator::shuffle_value(convgen_emulator::Shuffle::KIND, mask, value, by, width, line); \
  }
CONVGEN_SHUFFLE(__shfl_sync, index)
CONVGEN_SHUFFLE(__shfl_up_sync, up)
CONVGEN_SHUFFLE(__shfl_down_sync, down)
CONVGEN_SHUFFLE(__shfl_xor_sync, exclusive_or)

// ---- memory ----------------------------------------------------------------------------------------------

void __threadfence();
void __threadfence_block();
inline void __threadfence_system() { __threadfence(); }

namespace convgen_emulator {
void check_unwritten(const void* p, u64 bytes, int line);  // by this launch
}
template <class T>
inline T __ldg(const T* p, CONVGEN_LINE) {
  convgen_emulator::check_unwritten(p, sizeof(T), line);
  return *p;
}

// What follows an #ifdef, few kernels have: who has none is compiled without it (compiler.py).
#if defined(CONVGEN_ATOMICS) || defined(CONVGEN_EMULATOR_RUNTIME)
namespace convgen_emulator {
void atomic(void* p, u64 bytes, bool sum, int line);  // checks the access, and what it orders

CONVGEN_UNCHECKED inline float fetch_add(float* p, float v) {
  u32* bits = reinterpret_cast<u32*>(p);
  u32 old = __atomic_load_n(bits, __ATOMIC_RELAXED), sum;
  float value;
  do {
    memcpy(&value, &old, 4);
    const float total = value + v;
    memcpy(&sum, &total, 4);
  } while (!__atomic_compare_exchange_n(bits, &old, sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return value;
}
}  // namespace convgen_emulator

#define CONVGEN_ATOMIC(T, NAME, OPERATION)                    \
  CONVGEN_UNCHECKED inline T NAME(T* p, T v, CONVGEN_LINE) {  \
    convgen_emulator::atomic(p, sizeof(T), false, line);      \
    return OPERATION(p, v, __ATOMIC_RELAXED);                 \
  }
// What moves *p towards v, and not back.
#define CONVGEN_ATOMIC_BOUND(T, NAME, MOVES)                                                                  \
  CONVGEN_UNCHECKED inline T NAME(T* p, T v, CONVGEN_LINE) {                                                  \
    convgen_emulator::atomic(p, sizeof(T), false, line);                                                      \
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);                                                             \
    while (MOVES && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {    \
    }                                                                                                         \
    return old;                                                                                               \
  }
#define CONVGEN_INTEGER_ATOMICS(T)                                                            \
  CONVGEN_ATOMIC(T, atomicAdd, __atomic_fetch_add)                                            \
  CONVGEN_ATOMIC(T, atomicSub, __atomic_fetch_sub)                                            \
  CONVGEN_ATOMIC(T, atomicAnd, __atomic_fetch_and)                                            \
  CONVGEN_ATOMIC(T, atomicOr, __atomic_fetch_or)                                              \
  CONVGEN_ATOMIC(T, atomicExch, __atomic_exchange_n)                                          \
  CONVGEN_ATOMIC_BOUND(T, atomicMax, old < v)                                                 \
  CONVGEN_ATOMIC_BOUND(T, atomicMin, v < old)                                                 \
  CONVGEN_UNCHECKED inline T atomicCAS(T* p, T expected, T v, CONVGEN_LINE) {                 \
    convgen_emulator::atomic(p, sizeof(T), false, line);                                      \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);  \
    return expected;                                                                          \
  }
CONVGEN_INTEGER_ATOMICS(int)
CONVGEN_INTEGER_ATOMICS(u32)
CONVGEN_INTEGER_ATOMICS(u64)

CONVGEN_UNCHECKED inline float atomicAdd(float* p, float v, CONVGEN_LINE) {
  convgen_emulator::atomic(p, sizeof(float), true, line);
  return convgen_emulator::fetch_add(p, v);
}
#endif

// ---- arithmetic ------------------------------------------------------------------------------------------

#define CONVGEN_MIN_MAX(T)                            \
  constexpr T min(T a, T b) { return b < a ? b : a; } \
  constexpr T max(T a, T b) { return a < b ? b : a; }
CONVGEN_MIN_MAX(int)
CONVGEN_MIN_MAX(u32)
CONVGEN_MIN_MAX(long long)
CONVGEN_MIN_MAX(u64)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }
// What is out of range saturates, a NaN becomes 0.
inline int __float2int_rz(float v) {
  return v != v ? 0 : v < -2147483648.0f ? -2147483647 - 1 : v < 2147483648.0f ? int(v) : 2147483647;
}
inline int __float2int_rn(float v) { return __float2int_rz(rintf(v)); }
inline float __int2float_rn(int v) { return float(v); }
inline int __popc(u32 v) { return __builtin_popcount(v); }
inline int __clz(int v) { return v ? __builtin_clz(u32(v)) : 32; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline u32 __umulhi(u32 a, u32 b) { return u32(u64(a) * b >> 32); }
// Byte i of the result is byte (selector >> 4 * i) % 8 of the eight bytes of b and a.
inline u32 __byte_perm(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64(b) << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; ++i) r |= u32(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}
#define CONVGEN_BITS(NAME, TO, FROM) \
  inline TO NAME(FROM v) {           \
    TO r;                            \
    memcpy(&r, &v, sizeof r);        \
    return r;                        \
  }
CONVGEN_BITS(__float_as_int, int, float)
CONVGEN_BITS(__float_as_uint, u32, float)
CONVGEN_BITS(__int_as_float, float, int)
CONVGEN_BITS(__uint_as_float, float, u32)
CONVGEN_BITS(__double_as_longlong, long long, double)
CONVGEN_BITS(__longlong_as_double, double, long long)

// ---- PTX: arithmetic --------------------------------------------------------------------------------------

inline float selp_f32(float a, float b, u32 first) { return first ? a : b; }
inline float fma_if_f32(float a, float b, float sum, u32 wanted) { return wanted ? fmaf(a, b, sum) : sum; }
// -0 is below +0, and a NaN is the canonical one.
inline float max_nan_f32(float a, float b) {
  if (a != a || b != b) return __uint_as_float(0x7fffffff);
  return a == b ? (signbit(a) ? b : a) : fmaxf(a, b);
}
inline float min_nan_f32(float a, float b) {
  if (a != a || b != b) return __uint_as_float(0x7fffffff);
  return a == b ? (signbit(a) ? a : b) : fminf(a, b);
}
inline float flushed(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }
inline float exp2_approx_f32(float x) { return flushed(exp2f(flushed(x))); }
inline float reciprocal_approx_f32(float x) { return flushed(1.0f / flushed(x)); }

// ---- PTX: conversions ------------------------------------------------------------------------------------

float cvt_f32_f16(u16 v);
float cvt_f32_bf16(u16 v);
float cvt_f32_e4m3(u8 v);
float cvt_f32_e5m2(u8 v);
u16 cvt_f16_f32(float v);
u16 cvt_bf16_f32(float v);
u8 cvt_e4m3_f32(float v);
u8 cvt_e5m2_f32(float v);
signed char cvt_s8_f32(float v);
u32 cvt_tf32_f32(float v);
inline u32 cvt_f16x2_f32(float low, float high) { return cvt_f16_f32(low) | u32(cvt_f16_f32(high)) << 16; }
inline u32 cvt_bf16x2_f32(float low, float high) { return cvt_bf16_f32(low) | u32(cvt_bf16_f32(high)) << 16; }

// float32 has more than twice the digits of these types, so that rounding twice is rounding once.
#define CONVGEN_ARITHMETIC_X2(NAME, OPERATOR, TYPE)                                                   \
  inline u32 NAME##_##TYPE##x2(u32 a, u32 b) {                                                        \
    return cvt_##TYPE##x2_f32(cvt_f32_##TYPE(u16(a)) OPERATOR cvt_f32_##TYPE(u16(b)),                 \
                              cvt_f32_##TYPE(u16(a >> 16)) OPERATOR cvt_f32_##TYPE(u16(b >> 16)));    \
  }
#define CONVGEN_ARITHMETIC(TYPE)        \
  CONVGEN_ARITHMETIC_X2(add, +, TYPE)   \
  CONVGEN_ARITHMETIC_X2(sub, -, TYPE)   \
  CONVGEN_ARITHMETIC_X2(mul, *, TYPE)
CONVGEN_ARITHMETIC(f16)
CONVGEN_ARITHMETIC(bf16)

// ---- PTX: shared memory ----------------------------------------------------------------------------------

u32 shared_address_at(long long offset, int line);
#ifndef CONVGEN_EMULATOR_RUNTIME
extern u8 shared_memory[];
inline u32 shared_address(const void* p, CONVGEN_LINE) {
  return shared_address_at((long long)(u64(p) - u64(shared_memory)), line);
}
#endif
u8 ld_shared_u8(u32 address, CONVGEN_LINE);
u16 ld_shared_u16(u32 address, CONVGEN_LINE);
u32 ld_shared_u32(u32 address, CONVGEN_LINE);
u64 ld_shared_u64(u32 address, CONVGEN_LINE);
Vec4 ld_shared_v4_u32(u32 address, CONVGEN_LINE);
Vec2 ld_shared_v2_f32(u32 address, CONVGEN_LINE);
void ld_shared_v4_f32(float (&v)[4], u32 address, CONVGEN_LINE);
void st_shared_u8(u32 address, u8 v, CONVGEN_LINE);
void st_shared_u16(u32 address, u16 v, CONVGEN_LINE);
void st_shared_u32(u32 address, u32 v, CONVGEN_LINE);
void st_shared_u64(u32 address, u64 v, CONVGEN_LINE);
void st_shared_v2_u32(u32 address, u32 x, u32 y, CONVGEN_LINE);
void st_shared_v4_u32(u32 address, Vec4 v, CONVGEN_LINE);
void st_shared_cluster_v4_f32(u32 address, u32 rank, float x, float y, float z, float w, CONVGEN_LINE);
u32 mapa_shared_cluster(u32 address, u32 rank, CONVGEN_LINE);
void st_async_v4_f32(u32 remote, u32 remote_barrier, float x, float y, float z, float w, CONVGEN_LINE);
void red_global_add_f32(float* address, float v, CONVGEN_LINE);
void red_global_add_v2_f32(float* address, float x, float y, CONVGEN_LINE);
void red_global_add_v4_f32(float* address, float x, float y, float z, float w, CONVGEN_LINE);

// ---- PTX: warps ------------------------------------------------------------------------------------------

namespace convgen_emulator {
enum class Type : u8 { f16, bf16, tf32, e4m3, e5m2, s8 };
void ldmatrix(u32* r, int count, bool transposed, u32 address, int line);
void stmatrix(u32 address, const u32* r, int count, bool transposed, int line);
void mma(void* d, const u32* a, const u32* b, int k, Type a_type, Type b_type, int line);
void setmaxnreg(int registers, bool increase, int line);
}  // namespace convgen_emulator

template <int registers>
inline void setmaxnreg_dec(CONVGEN_LINE) {
  convgen_emulator::setmaxnreg(registers, false, line);
}
template <int registers>
inline void setmaxnreg_inc(CONVGEN_LINE) {
  convgen_emulator::setmaxnreg(registers, true, line);
}

#ifdef CONVGEN_MATRICES
#define CONVGEN_LDMATRIX(SUFFIX, TRANSPOSED)                         \
  inline void ldmatrix_x1##SUFFIX(u32(&r)[1], u32 a, CONVGEN_LINE) { \
    convgen_emulator::ldmatrix(r, 1, TRANSPOSED, a, line);           \
  }                                                                  \
  inline void ldmatrix_x2##SUFFIX(u32(&r)[2], u32 a, CONVGEN_LINE) { \
    convgen_emulator::ldmatrix(r, 2, TRANSPOSED, a, line);           \
  }                                                                  \
  inline void ldmatrix_x4##SUFFIX(u32(&r)[4], u32 a, CONVGEN_LINE) { \
    convgen_emulator::ldmatrix(r, 4, TRANSPOSED, a, line);           \
  }
CONVGEN_LDMATRIX(, false)
CONVGEN_LDMATRIX(_trans, true)

#define CONVGEN_STMATRIX(SUFFIX, TRANSPOSED)                                                   \
  inline void stmatrix_x1##SUFFIX(u32 address, u32 r0, CONVGEN_LINE) {                         \
    convgen_emulator::stmatrix(address, &r0, 1, TRANSPOSED, line);                             \
  }                                                                                            \
  inline void stmatrix_x2##SUFFIX(u32 address, u32 r0, u32 r1, CONVGEN_LINE) {                 \
    const u32 r[2] = {r0, r1};                                                                 \
    convgen_emulator::stmatrix(address, r, 2, TRANSPOSED, line);                               \
  }                                                                                            \
  inline void stmatrix_x4##SUFFIX(u32 address, u32 r0, u32 r1, u32 r2, u32 r3, CONVGEN_LINE) { \
    const u32 r[4] = {r0, r1, r2, r3};                                                         \
    convgen_emulator::stmatrix(address, r, 4, TRANSPOSED, line);                               \
  }
CONVGEN_STMATRIX(, false)
CONVGEN_STMATRIX(_trans, true)
#endif

#ifdef CONVGEN_MMAS
#define CONVGEN_MMA(K, D, C, A, B, A_REGS)                                                                \
  inline void mma_m16n8k##K##_##D##_##A##_##B(C(&d)[4], const u32(&a)[A_REGS], const u32(&b)[A_REGS / 2], \
                                              CONVGEN_LINE) {                                             \
    convgen_emulator::mma(d, a, b, K, convgen_emulator::Type::A, convgen_emulator::Type::B, line);        \
  }
CONVGEN_MMA(8, f32, float, f16, f16, 2)
CONVGEN_MMA(16, f32, float, f16, f16, 4)
CONVGEN_MMA(8, f32, float, bf16, bf16, 2)
CONVGEN_MMA(16, f32, float, bf16, bf16, 4)
CONVGEN_MMA(4, f32, float, tf32, tf32, 2)
CONVGEN_MMA(8, f32, float, tf32, tf32, 4)
CONVGEN_MMA(16, s32, int, s8, s8, 2)
CONVGEN_MMA(32, s32, int, s8, s8, 4)
CONVGEN_MMA(32, f32, float, e4m3, e4m3, 4)
CONVGEN_MMA(32, f32, float, e4m3, e5m2, 4)
CONVGEN_MMA(32, f32, float, e5m2, e4m3, 4)
CONVGEN_MMA(32, f32, float, e5m2, e5m2, 4)
#endif

// ---- PTX: barriers ---------------------------------------------------------------------------------------

namespace convgen_emulator {
void named_barrier(int barrier, int threads, int line);
}
template <int barrier, int threads>
inline void bar_sync(CONVGEN_LINE) {
  convgen_emulator::named_barrier(barrier, threads, line);
}

void mbarrier_init(u32 barrier, u32 arrivals, CONVGEN_LINE);
void fence_mbarrier_init(CONVGEN_LINE);
void mbarrier_arrive(u32 barrier, CONVGEN_LINE);
void mbarrier_arrive_cluster(u32 barrier, u32 rank, CONVGEN_LINE);
void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes, CONVGEN_LINE);
void mbarrier_wait_parity(u32 barrier, u32 parity, CONVGEN_LINE);
u32 cluster_ctarank();
void cluster_arrive(CONVGEN_LINE);
void cluster_arrive_relaxed(CONVGEN_LINE);
void cluster_wait(CONVGEN_LINE);
void griddepcontrol_wait();
inline void griddepcontrol_launch_dependents() {}  // launches run one after another

// ---- PTX: asynchronous copies ----------------------------------------------------------------------------

namespace convgen_emulator {
void cp_async(u32 destination, const void* source, u32 bytes, u32 source_bytes, int line);
void cp_async_wait(int pending, int line);
void bulk_wait(int pending, bool read, int line);
// `offsets` is null for a tiled map; `blocks` has a bit for each block of the cluster, 0 for this one alone.
void tma_load(u32 destination, const TensorMap* map, u32 barrier, int rank, const int* coords, const u16* offsets,
              u32 blocks, int line);
void tma_store(const TensorMap* map, u32 source, int rank, const int* coords, int line);
}  // namespace convgen_emulator

inline void cp_async_4(u32 to, const void* from, u32 n, CONVGEN_LINE) {
  convgen_emulator::cp_async(to, from, 4, n, line);
}
inline void cp_async_8(u32 to, const void* from, u32 n, CONVGEN_LINE) {
  convgen_emulator::cp_async(to, from, 8, n, line);
}
inline void cp_async_16(u32 to, const void* from, u32 n, CONVGEN_LINE) {
  convgen_emulator::cp_async(to, from, 16, n, line);
}
void cp_async_commit_group(CONVGEN_LINE);
template <int pending>
inline void cp_async_wait_group(CONVGEN_LINE) {
  convgen_emulator::cp_async_wait(pending, line);
}

void bulk_commit_group(CONVGEN_LINE);
template <int pending>
inline void bulk_wait_group(CONVGEN_LINE) {
  convgen_emulator::bulk_wait(pending, false, line);
}
template <int pending>
inline void bulk_wait_group_read(CONVGEN_LINE) {
  convgen_emulator::bulk_wait(pending, true, line);
}
void fence_proxy_async_shared(CONVGEN_LINE);
void prefetch_tensormap(const TensorMap* map, CONVGEN_LINE);

#define CONVGEN_COORDS_2 int c0, int c1
#define CONVGEN_COORDS_3 CONVGEN_COORDS_2, int c2
#define CONVGEN_COORDS_4 CONVGEN_COORDS_3, int c3
#define CONVGEN_COORDS_5 CONVGEN_COORDS_4, int c4
#define CONVGEN_VALUES_2 c0, c1
#define CONVGEN_VALUES_3 CONVGEN_VALUES_2, c2
#define CONVGEN_VALUES_4 CONVGEN_VALUES_3, c3
#define CONVGEN_VALUES_5 CONVGEN_VALUES_4, c4
#define CONVGEN_OFFSETS_3 u16 o0
#define CONVGEN_OFFSETS_4 CONVGEN_OFFSETS_3, u16 o1
#define CONVGEN_OFFSETS_5 CONVGEN_OFFSETS_4, u16 o2
#define CONVGEN_OFFSET_VALUES_3 o0
#define CONVGEN_OFFSET_VALUES_4 o0, o1
#define CONVGEN_OFFSET_VALUES_5 o0, o1, o2

// The functions of one rank; and so below those of one n of wgmma.  A source is compiled with those that it names
// (compiler.py): all of them are half of this header.
#define CONVGEN_TMA_TILE(RANK)                                                                                   \
  inline void tma_load_tile_##RANK##d(u32 destination, const TensorMap* map, u32 barrier, CONVGEN_COORDS_##RANK, \
                                      CONVGEN_LINE) {                                                            \
    const int coords[] = {CONVGEN_VALUES_##RANK};                                                                \
    convgen_emulator::tma_load(destination, map, barrier, RANK, coords, nullptr, 0, line);                       \
  }                                                                                                              \
  inline void tma_load_tile_##RANK##d_multicast(u32 destination, const TensorMap* map, u32 barrier,              \
                                                CONVGEN_COORDS_##RANK, u16 blocks, CONVGEN_LINE) {               \
    const int coords[] = {CONVGEN_VALUES_##RANK};                                                                \
    convgen_emulator::tma_load(destination, map, barrier, RANK, coords, nullptr, blocks, line);                  \
  }                                                                                                              \
  inline void tma_store_tile_##RANK##d(const TensorMap* map, u32 source, CONVGEN_COORDS_##RANK, CONVGEN_LINE) {  \
    const int coords[] = {CONVGEN_VALUES_##RANK};                                                                \
    convgen_emulator::tma_store(map, source, RANK, coords, line);                                                \
  }

#define CONVGEN_TMA_IM2COL(RANK)                                                                                   \
  inline void tma_load_im2col_##RANK##d(u32 destination, const TensorMap* map, u32 barrier, CONVGEN_COORDS_##RANK, \
                                        CONVGEN_OFFSETS_##RANK, CONVGEN_LINE) {                                    \
    const int coords[] = {CONVGEN_VALUES_##RANK};                                                                  \
    const u16 offsets[] = {CONVGEN_OFFSET_VALUES_##RANK};                                                          \
    convgen_emulator::tma_load(destination, map, barrier, RANK, coords, offsets, 0, line);                         \
  }                                                                                                                \
  inline void tma_load_im2col_##RANK##d_multicast(u32 destination, const TensorMap* map, u32 barrier,              \
                                                  CONVGEN_COORDS_##RANK, CONVGEN_OFFSETS_##RANK, u16 blocks,       \
                                                  CONVGEN_LINE) {                                                  \
    const int coords[] = {CONVGEN_VALUES_##RANK};                                                                  \
    const u16 offsets[] = {CONVGEN_OFFSET_VALUES_##RANK};                                                          \
    convgen_emulator::tma_load(destination, map, barrier, RANK, coords, offsets, blocks, line);                    \
  }

// ---- PTX: wgmma ------------------------------------------------------------------------------------------

namespace convgen_emulator {
struct Wgmma {
  short n, k;
  Type a_type, b_type;
  bool a_major, b_major;  // true: contiguous along m, n
};
// `registers` holds a where it comes from registers, else null.
void wgmma(const Wgmma& shape, void* d, const u32* registers, u64 a, u64 b, u32 accumulate, int line);
void wgmma_wait(int pending, int line);
}  // namespace convgen_emulator

void wgmma_fence(CONVGEN_LINE);
void wgmma_commit_group(CONVGEN_LINE);
template <int pending>
inline void wgmma_wait_group(CONVGEN_LINE) {
  convgen_emulator::wgmma_wait(pending, line);
}

#define CONVGEN_WGMMA_BODY(N, K, A, B, A_MAJOR, B_MAJOR, REGISTERS, DESCRIPTOR)                                       \
  convgen_emulator::wgmma({N, K, convgen_emulator::Type::A, convgen_emulator::Type::B, bool(A_MAJOR), bool(B_MAJOR)}, \
                          d, REGISTERS, DESCRIPTOR, b, accumulate, line);
#define CONVGEN_WGMMA(N, K, D, C, A, B)                                                                         \
  inline void wgmma_m64n##N##k##K##_##D##_##A##_##B(C(&d)[N / 2], u64 a, u64 b, u32 accumulate, CONVGEN_LINE) { \
    CONVGEN_WGMMA_BODY(N, K, A, B, 0, 0, nullptr, a)                                                            \
  }                                                                                                             \
  inline void wgmma_m64n##N##k##K##_##D##_##A##_##B##_rs(C(&d)[N / 2], const u32(&a)[4], u64 b, u32 accumulate, \
                                                         CONVGEN_LINE) {                                        \
    CONVGEN_WGMMA_BODY(N, K, A, B, 0, 0, a, 0)                                                                  \
  }
// 16-bit operands may lie along m or n
#define CONVGEN_WGMMA_16(N, A)                                                                                  \
  template <int a_major = 0, int b_major = 0>                                                                   \
  inline void wgmma_m64n##N##k16_f32_##A##_##A(float (&d)[N / 2], u64 a, u64 b, u32 accumulate, CONVGEN_LINE) { \
    CONVGEN_WGMMA_BODY(N, 16, A, A, a_major, b_major, nullptr, a)                                               \
  }                                                                                                             \
  template <int b_major = 0>                                                                                    \
  inline void wgmma_m64n##N##k16_f32_##A##_##A##_rs(float (&d)[N / 2], const u32(&a)[4], u64 b, u32 accumulate, \
                                                    CONVGEN_LINE) {                                             \
    CONVGEN_WGMMA_BODY(N, 16, A, A, 0, b_major, a, 0)                                                           \
  }
// The functions of one n, by the type of the sums.
#define CONVGEN_WGMMA_s32(N) CONVGEN_WGMMA(N, 32, s32, int, s8, s8)
#define CONVGEN_WGMMA_f32(N)                   \
  CONVGEN_WGMMA_16(N, f16)                     \
  CONVGEN_WGMMA_16(N, bf16)                    \
  CONVGEN_WGMMA(N, 8, f32, float, tf32, tf32)  \
  CONVGEN_WGMMA(N, 32, f32, float, e4m3, e4m3) \
  CONVGEN_WGMMA(N, 32, f32, float, e4m3, e5m2) \
  CONVGEN_WGMMA(N, 32, f32, float, e5m2, e4m3) \
  CONVGEN_WGMMA(N, 32, f32, float, e5m2, e5m2)

// ---- entry points ----------------------------------------------------------------------------------------

namespace convgen_emulator {
template <class T>
constexpr bool is_map = false;
template <>
constexpr bool is_map<TensorMap> = true;
void is_parameter(const TensorMap* map);  // of the kernel that begins
inline void is_parameter(const void*) {}

// Has the parameters of a kernel, in the same places.
template <class... T>
void find_parameters(T... parameters) {
  (is_parameter(&parameters), ...);
}

// Calls a kernel with its parameters, each given by address.  Being a constructor, it can be called with braces, which
// take the addresses in order.
struct Call {
  template <class... T>
  CONVGEN_UNCHECKED Call(void (*kernel)(T...), T&... parameters) {
    void (*const functions[])(T...) = {&find_parameters<T...>, kernel};
    for (int i = (is_map<T> || ...) ? 0 : 1; i < 2; ++i) functions[i](parameters...);  // one call: one place of them
  }
};
template <class... T>
CONVGEN_UNCHECKED inline void call(void (*kernel)(T...), void** parameters) {
  Call{kernel, *static_cast<T*>(*parameters++)...};
}
}  // namespace convgen_emulator

// What a source's types must be: PTX gives them meaning by the names of their parts, the emulator by their places.
#define CONVGEN_AT(TYPE, PART, BYTES) \
  static_assert(__builtin_offsetof(TYPE, PART) == BYTES, #TYPE "::" #PART " begins at byte " #BYTES);
#define CONVGEN_LAYOUT_TensorMap \
  static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64, "a TensorMap is 128 bytes at a multiple of 64");
#define CONVGEN_LAYOUT_Vec2 CONVGEN_AT(Vec2, x, 0) CONVGEN_AT(Vec2, y, 4)
#define CONVGEN_LAYOUT_Vec4 \
  CONVGEN_AT(Vec4, x, 0) CONVGEN_AT(Vec4, y, 4) CONVGEN_AT(Vec4, z, 8) CONVGEN_AT(Vec4, w, 12)

// Makes `convgen_call_<kernel>`, which the runtime calls in every thread, and the numbers of the launches that the kernel
// is compiled for (declared.py).
#define CONVGEN_ENTRY(KERNEL, ...)                                                                        \
  extern "C" void convgen_call_##KERNEL(void** parameters) { convgen_emulator::call(&KERNEL, parameters); } \
  extern "C" const int convgen_bounds_##KERNEL[] = {__VA_ARGS__};
