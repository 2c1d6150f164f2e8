// The instruction set that this translation unit is compiled for, as operations on sixteen lanes.
//
// Every set computes the same: one IEEE operation a lane, the same order of sums (`sum` adds neighbours first), sums of
// integers that are exact. So results have the same bits on every host. The compiler must not fuse or reorder:
// -ffp-contract=off.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(SPX_PORTABLE)
#define SPX_SET portable
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define SPX_SET neon_dot
#elif defined(__aarch64__)
#define SPX_SET neon
#elif defined(__AVX512VNNI__)
#define SPX_SET avx512_vnni
#elif defined(__AVX512BW__)
#define SPX_SET avx512
#elif defined(__AVXVNNI__)
#define SPX_SET avx_vnni
#else
#define SPX_SET avx2
#endif

namespace specexport::SPX_SET {
#if defined(SPX_PORTABLE)
#include "lanes_portable.h"
#elif defined(__aarch64__)
#include "lanes_neon.h"
#elif defined(__AVX512BW__)
#include "lanes_avx512.h"
#else
#include "lanes_avx2.h"
#endif

inline int smaller(int a, int b) { return a < b ? a : b; }  // not std::min: a shared copy might use this unit's set
inline int larger(int a, int b) { return a > b ? a : b; }

// exp(x), within 2 ulp, for x clamped to [-87.3, 88.3] (the polynomial of Cephes' expf).
inline Floats exponential(Floats x) {
  x = min(all(88.3f), max(all(-87.3f), x));  // in this order NaN stays NaN
  const Floats n = round(x * all(1.44269504f));
  Floats r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Floats p = fma(all(1.9875691500e-4f), r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  return times_power_of_two(fma(p, r * r, r + all(1.0f)), n);
}
inline Floats times_sigmoid(Floats x, Floats of) { return x / (all(1.0f) + exponential(all(0.0f) - of)); }
}  // namespace specexport::SPX_SET
