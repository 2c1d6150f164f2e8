// What happens to a row before and after a product: norms, Hadamard turns, rounding to int8, gates.
#pragma once
#include "kernels.h"
#include "lanes.h"

namespace specexport::SPX_SET {
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

// Each block of `block` values (a power of two, at least 16) times the normalized Hadamard matrix of Sylvester.
inline void hadamard(float* x, int size, int block) {
  const Floats scale = all(1.0f / __builtin_sqrtf(static_cast<float>(block)));
  for (float* b = x; b < x + size; b += block) {
    for (int i = 0; i < block; i += 16) {
      float lane[16];
      memcpy(lane, b + i, sizeof lane);
      for (int step = 1; step < 16; step *= 2)
        for (int j = 0; j < 16; ++j)
          if (!(j & step)) {
            const float u = lane[j], v = lane[j + step];
            lane[j] = u + v;
            lane[j + step] = u - v;
          }
      memcpy(b + i, lane, sizeof lane);
    }
    for (int step = 16; step < block; step *= 2)
      for (int i = 0; i < block; i += 2 * step)
        for (int j = i; j < i + step; j += 16) {
          const Floats u = load(b + j), v = load(b + j + step);
          store(b + j, u + v);
          store(b + j + step, u - v);
        }
    for (int i = 0; i < block; i += 16) store(b + i, load(b + i) * scale);
  }
}

// x [size] in steps of its largest magnitude / 127, to integers within +-127. x and q are padded.
// A row without a finite magnitude gets the scale NaN, so that all of its products are NaN; a row below 1e-30 is zero.
inline void round_row(const float* x, int size, int8_t* q, int32_t* sums, Row* row) {
  Floats top = all(0.0f), spoiled = all(0.0f);
  for (int i = 0; i < size; i += 16) {
    const Floats a = load(x + i);
    top = max(abs(a), top);
    spoiled = spoiled + (a - a);  // 0, or NaN for NaN and infinities
  }
  const float magnitude = largest(top);
  const Floats steps = all(magnitude > 1e-30f ? 127.0f / magnitude : 0.0f);
  row->scale = magnitude / 127.0f + sum(spoiled);
  row->sum = 0;
  for (int i = 0; i < padded(size); i += BLOCK) {
    Floats total = all(0.0f);
    for (int j = i; j < i + BLOCK; j += 16) {
      const Floats a = min(max(round(load(x + j) * steps), all(-127.0f)), all(127.0f));
      narrow_to_int8(q + j, a);
      total = total + a;
    }
    sums[i / BLOCK] = static_cast<int32_t>(sum(total));  // exact: integers below 2^24
    row->sum += sums[i / BLOCK];
  }
}

inline Floats gated(Floats gate, Floats up, Gate kind) {
  if (kind == Gate::silu) return times_sigmoid(gate, gate) * up;
  // The gelu that approximates erf by tanh: 0.5 (1 + tanh(z)) is sigmoid(2 z).
  const Floats cubed = gate * gate * gate;
  return times_sigmoid(gate, all(1.5957691216f) * fma(all(0.044715f), cubed, gate)) * up;
}
}  // namespace specexport::SPX_SET
