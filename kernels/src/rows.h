// What happens to a row before and after a product: norms, Hadamard turns, rounding to int8, gates.
#pragma once
#include "kernels.h"
#include "lanes.h"

// Of a loop whose arrays are to be registers.
#define SPX_UNROLL(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < count; ++i)

namespace specexport::SPX_SET {
// Into the second-level cache. Always inline: of a call that only does this, GCC sees no effect, and drops it.
[[gnu::always_inline]] inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
constexpr size_t AHEAD = 8192;  // how many bytes early a stream is asked for: the fastest of 2048, 4096, 8192, 16384
inline Floats load_some(const float* p, int count) {  // zeros behind `count`
  if (count >= 16) return load(p);
  float padded[16] = {};
  memcpy(padded, p, static_cast<size_t>(count) * sizeof(float));
  return load(padded);
}
inline void store_some(float* p, Floats a, int count) {
  if (count >= 16) return store(p, a);
  float padded[16];
  store(padded, a);
  memcpy(p, padded, static_cast<size_t>(count) * sizeof(float));
}

// RMS norm of x [size], of x + skip where there is one: y = (x / sqrt(mean(x^2) + epsilon)) * gain (Zhang and Sennrich
// 2019, arXiv 1910.07467). `total` (may be null) gets x + skip. y has zeros up to a multiple of 16.
inline void rms_norm(const float* x, const float* skip, const float* gain, float epsilon, int size, float* total,
                     float* y) {
  Floats squares = all(0.0f);
  for (int i = 0; i < size; i += 16) {
    Floats a = load_some(x + i, size - i);
    if (skip) a = a + load_some(skip + i, size - i);
    if (total) store_some(total + i, a, size - i);
    store(y + i, a);
    squares = fma(a, a, squares);
  }
  const Floats scale = all(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(size) + epsilon));
  for (int i = 0; i < size; i += 16) store(y + i, load(y + i) * scale * load_some(gain + i, size - i));
}

// Within sixteen: u + v in the lanes whose bit STEP is 0, u - v in the others.
template <int STEP>
inline Floats butterfly(Floats a) {
  alignas(64) static constexpr auto signs = [] {
    struct {
      float lane[16];
    } s{};
    for (int i = 0; i < 16; ++i) s.lane[i] = i & STEP ? -1.0f : 1.0f;
    return s;
  }();
  return fma(a, load(signs.lane), swapped<STEP>(a));
}
// Each block of `block` values (a power of two, at least 16) times the normalized Hadamard matrix of Sylvester.
inline void hadamard(float* x, int size, int block) {
  const Floats scale = all(1.0f / __builtin_sqrtf(static_cast<float>(block)));
  for (int i = 0; i < size; i += 16) {
    const Floats a = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(x + i)))));
    store(x + i, block == 16 ? a * scale : a);
  }
  for (float* b = x; b < x + size; b += block)
    for (int step = 16; step < block; step *= 2)
      for (int i = 0; i < block; i += 2 * step)
        for (int j = i; j < i + step; j += 16) {
          const Floats u = load(b + j), v = load(b + j + step);
          const bool last = 2 * step == block;
          store(b + j, last ? (u + v) * scale : u + v);
          store(b + j + step, last ? (u - v) * scale : u - v);
        }
}

// x [size] in steps of its largest magnitude / 127, to integers within +-127. x and q are padded.
// A row without a finite magnitude gets the scale NaN, so that all of its products are NaN; a row below 1e-30 is zero.
inline void round_row(const float* x, int size, int8_t* q, float* offsets, Row* row) {
  Floats top = all(0.0f), spoiled = all(0.0f);
  for (int i = 0; i < size; i += 16) {
    const Floats a = load(x + i);
    top = max(abs(a), top);
    spoiled = spoiled + (a - a);  // 0, or NaN for NaN and infinities
  }
  const float magnitude = largest(top);
  const Floats steps = all(magnitude > 1e-30f ? 127.0f / magnitude : 0.0f);
  row->scale = magnitude / 127.0f + sum(spoiled);
  Floats whole = all(0.0f);  // sums are exact: integers below 2^24, with at most 2^17 inputs
  for (int i = 0; i < padded(size); i += BLOCK) {
    Floats half[2];
    for (int j = 0; j < 2; ++j) {
      half[j] = min(max(round(load(x + i + 16 * j) * steps), all(-127.0f)), all(127.0f));
      narrow_to_int8(q + i + 16 * j, half[j]);
    }
    const Floats total = half[0] + half[1];
    if (offsets) offsets[i / BLOCK] = -8.0f * sum(total);
    whole = whole + total;
  }
  row->sum = static_cast<int32_t>(sum(whole));
}

inline Floats gated(Floats gate, Floats up, Gate kind) {
  if (kind == Gate::silu) return times_sigmoid(gate, gate) * up;
  // The gelu that approximates erf by tanh: 0.5 (1 + tanh(z)) is sigmoid(2 z).
  const Floats cubed = gate * gate * gate;
  return times_sigmoid(gate, all(1.5957691216f) * fma(all(0.044715f), cubed, gate)) * up;
}
}  // namespace specexport::SPX_SET
