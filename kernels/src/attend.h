// Attention over the static cache: rotates queries and keys, writes keys and values in place, attends.
//
//   inputs   queries [1, T, heads * size] (or with keys and values behind them: [1, T, (heads + 2 kv_heads) * size]),
//            past keys, past values [1, kv_heads, capacity, size], position [1] int64,
//            keys, values [1, T, kv_heads * size] or absent, cosines, sines [positions, turned / 2] or absent, sinks [heads] or absent,
//            ancestors [T, T] bool or absent
//   outputs  y [1, T, heads * size], keys, values [1, kv_heads, capacity, size]: the same memory as the past's
//   attributes  heads, kv_heads, scale, neighbours (rotary pairs: 1 for (0, 1), 0 for (0, turned / 2)), window (0, or how
//            many positions a row sees, its own included), soft_cap (0 for none), reads (1: the rows are in the cache
//            already, as another layer's; there are no keys, values or outputs but y)
//
// With `ancestors` the rows are a tree (SpecInfer: Miao et al. 2023, arXiv 2305.09781): row t sees the past and those
// rows j that ancestors[t, j] says: itself, its parent, and what its parent sees. Its text is the past and these rows in
// order: its own position in it decides angles and windows, and its bits are those of a pass over that text. Row t's keys
// and values are written to cache row position + t all the same. A lower triangle is a plain pass.
#pragma once
#include "operators.h"

namespace specexport {
extern const Kernels* kernels;

struct AttentionSettings {
  int64_t heads, kv_heads, neighbours, window, reads;
  float scale, soft_cap;
  explicit AttentionSettings(const ort::KernelInfo* info);
};
void attend(const AttentionSettings& settings, ort::Type cache, ort::KernelContext* c);

template <ort::Type CACHE>
struct Attention : AttentionSettings {
  static constexpr const char* NAME = "Attention";
  explicit Attention(const ort::KernelInfo* info) : AttentionSettings(info) {}
  void compute(ort::KernelContext* c) { attend(*this, CACHE, c); }
};
}  // namespace specexport
