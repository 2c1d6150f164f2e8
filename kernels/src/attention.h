// Attention of a few rows over one block of keys, and how blocks are merged (online softmax: Milakov and Gimelshein
// 2018, arXiv 1805.02867).
//
// Blocks begin at multiples of 128 positions and are merged in order, so the arithmetic of a row depends on its own
// position only. A score is a sum of 16 partial sums, one for each lane, added by `sum`'s order.
#pragma once
#include "rows.h"

namespace specexport::SPX_SET {
inline float one_of(Floats a) {
  float lanes[16];
  store(lanes, a);
  return lanes[0];
}
inline Floats load_cache(const float* p) { return load(p); }
inline Floats load_cache(const uint16_t* p) { return widen_fp16(p); }

// The scores [R][KEYS] of R rows for 16 keys that lie behind each other: four keys at a time, and of the sixteen lanes
// as many as a Piece has, so that all sums are registers.
template <int R, class T>
inline void scores_of_rows(const float* queries, const T* keys, int size, float* scores) {
  Fours fours[R][4];
  _Pragma("GCC unroll 1")  // else all of them are summed at the end, and spilled until then
  for (int j = 0; j < 4; ++j) SPX_UNROLL(p, PIECES) {
    const int lane = p * (16 / PIECES);
    const T *one = keys + 4 * j * size + lane, *two = one + size, *three = two + size, *four = three + size;
    Piece sums[R][4] = {};
    for (int c = 0; c < size; c += 16) {
      Piece q[R];
      SPX_UNROLL(r, R) q[r] = load_piece(queries + r * size + lane + c);
      const T* at[4] = {one + c, two + c, three + c, four + c};
      SPX_UNROLL(i, 4) {
        const Piece k = load_piece(at[i]);
        SPX_UNROLL(r, R) sums[r][i] = fma(q[r], k, sums[r][i]);
      }
    }
    SPX_UNROLL(r, R) fours[r][j] = p == 0 ? four_sums(sums[r]) : fours[r][j] + four_sums(sums[r]);
  }
  SPX_UNROLL(r, R) store_fours(scores + r * KEYS, fours[r]);
}

// In tiles of at most SCORE_ROWS rows, all of nearly the same size.
template <class T>
inline void scores_of(const float* queries, const T* keys, int rows, int size, float* scores) {
  static_assert(SCORE_ROWS <= 5);
  for (int r = 0; r < rows;) {
    const int left = rows - r, tiles = (left + SCORE_ROWS - 1) / SCORE_ROWS, n = (left + tiles - 1) / tiles;
    switch (n) {
#define SPX_ROWS(R)                                                                                                \
  case R:                                                                                                          \
    if constexpr (R <= SCORE_ROWS) scores_of_rows<R>(queries + r * size, keys, size, scores + r * KEYS);           \
    break;
      SPX_ROWS(1) SPX_ROWS(2) SPX_ROWS(3) SPX_ROWS(4) SPX_ROWS(5)
#undef SPX_ROWS
    }
    r += n;
  }
}

constexpr int VALUE_ROWS = 6;  // rows for which values are read once

// Adds weights [row][key] times values of keys [from, to) to sums [R][size]; keys in order.
template <int R, int C, class T>
inline void add_value_columns(const float* weights, const T* values, int from, int to, int size, int column, float* sums) {
  Floats total[R][C];
  SPX_UNROLL(r, R) SPX_UNROLL(c, C) total[r][c] = load(sums + r * size + column + 16 * c);
  for (int j = from; j < to; ++j) {
    const T* value = values + static_cast<size_t>(j) * static_cast<size_t>(size) + column;
    Floats v[C];
    SPX_UNROLL(c, C) {
      prefetch(value + 16 * c + AHEAD / sizeof(T));
      v[c] = load_cache(value + 16 * c);
    }
    SPX_UNROLL(r, R) {
      const Floats w = all(weights[r * KEYS + j]);
      SPX_UNROLL(c, C) total[r][c] = fma(w, v[c], total[r][c]);
    }
  }
  SPX_UNROLL(r, R) SPX_UNROLL(c, C) store(sums + r * size + column + 16 * c, total[r][c]);
}
template <int R, class T>
inline void add_values_of(const float* weights, const T* values, int from, int to, int size, float* sums) {
  constexpr int C = 4 * R <= VALUE_SUMS ? 4 : 2 * R <= VALUE_SUMS ? 2 : 1;
  int column = 0;
  for (; column + 16 * C <= size; column += 16 * C) add_value_columns<R, C>(weights, values, from, to, size, column, sums);
  for (; column < size; column += 16) add_value_columns<R, 1>(weights, values, from, to, size, column, sums);
}
template <class T>
inline void add_values(const float* weights, const T* values, int rows, int from, int to, int size, float* sums) {
  if (from >= to) return;
  switch (rows) {
    case 1: return add_values_of<1>(weights, values, from, to, size, sums);
    case 2: return add_values_of<2>(weights, values, from, to, size, sums);
    case 3: return add_values_of<3>(weights, values, from, to, size, sums);
    case 4: return add_values_of<4>(weights, values, from, to, size, sums);
    case 5: return add_values_of<5>(weights, values, from, to, size, sums);
    case 6: return add_values_of<6>(weights, values, from, to, size, sums);
  }
}

// Scores [KEYS] to exp(score - top) where the row sees them, else to 0.
inline Partial soften(float* scores, int first_key, int last_key, float soft_cap) {
  const Floats none = all(-__builtin_inff());
  auto seen = [&](int j, Floats a, Floats otherwise) {
    if (first_key <= j && j + 16 <= last_key) return a;
    return first(first_key - j, otherwise, first(last_key - j, a, otherwise));
  };
  Floats top = none;
  for (int j = first_key / 16 * 16; j < last_key; j += 16) {
    Floats s = load(scores + j);
    if (soft_cap > 0) {  // cap * tanh(s / cap)
      const Floats e = exponential(s / all(0.5f * soft_cap));
      s = all(soft_cap) * (all(1.0f) - all(2.0f) / (all(1.0f) + e));
    }
    s = seen(j, s, none);
    store(scores + j, s);
    top = max(s, top);
  }
  const float there = largest(top), most = there > -3e38f ? there : -3e38f;  // where all are -inf, -inf - most is no NaN
  Floats total = all(0.0f);
  for (int j = first_key / 16 * 16; j < last_key; j += 16) {
    const Floats e = seen(j, exponential(load(scores + j) - all(most)), all(0.0f));
    store(scores + j, e);
    total = total + e;
  }
  return {most, sum(total)};
}

// Sixteen keys of a row's text from `key` on, as floats; those behind `end` are zeros.
template <class T>
inline void gather_keys(const Head& head, const int* path, int key, int end, float* copy) {
  for (int i = 0; i < 16; ++i) {
    const int at = path && key + i >= head.position ? path[smaller(key + i, end - 1) - head.position] : key + i;
    const T* from = static_cast<const T*>(head.keys) + static_cast<size_t>(at) * static_cast<size_t>(head.size);
    for (int c = 0; c < head.size; c += 16) store(copy + i * head.size + c, key + i < end ? load_cache(from + c) : all(0.0f));
  }
}

// `scratch` is [rows][KEYS] for scores, and [16][size] for sixteen keys.
template <class T>
inline void attend_to(const Head& head, const float* queries, const Sight* sights, int rows, int block, float* scratch,
                      Partial* partial, float* sums) {
  const int size = head.size, start_key = block * KEYS, there = smaller(KEYS, head.capacity - start_key);
  const size_t offset = static_cast<size_t>(start_key) * static_cast<size_t>(size);
  const T* keys = static_cast<const T*>(head.keys) + offset;
  const T* values = static_cast<const T*>(head.values) + offset;
  float *all_scores = scratch, *gathered = scratch + rows * KEYS;
  // Keys from `position` on lie elsewhere for the rows of a tree.
  auto end_of_straight = [&](const Sight& sight) {
    return (sight.path ? larger(sight.begin, smaller(sight.end, head.position)) : sight.end) - start_key;
  };
  int first_begin = KEYS, last_end = 0;
  for (int r = 0; r < rows; ++r) {
    first_begin = smaller(first_begin, sights[r].begin - start_key);
    last_end = larger(last_end, end_of_straight(sights[r]));
  }
  for (int j = first_begin / 16 * 16; j < last_end; j += 16) {
    for (size_t i = 0; i < static_cast<size_t>(16 * size) * sizeof(T); i += 64)
      prefetch(reinterpret_cast<const char*>(keys + j * size) + AHEAD + i);
    // For many rows, keys are widened once.
    if (j + 16 <= there && (sizeof(T) == sizeof(float) || rows <= 2 * SCORE_ROWS)) {
      scores_of(queries, keys + j * size, rows, size, all_scores + j);
    } else {
      gather_keys<T>(head, nullptr, start_key + j, start_key + there, gathered);
      scores_of(queries, gathered, rows, size, all_scores + j);
    }
  }
  for (int r = 0; r < rows; ++r) {
    float* scores = all_scores + r * KEYS;
    const int end = sights[r].end - start_key, straight = end_of_straight(sights[r]);
    for (int j = straight / 16 * 16; straight < end && j < end; j += 16) {
      gather_keys<T>(head, sights[r].path, start_key + j, sights[r].end, gathered);
      scores_of(queries + r * size, gathered, 1, size, scores + j);
    }
    partial[r] = soften(scores, sights[r].begin - start_key, end, head.soft_cap);
  }
  for (int r0 = 0; r0 < rows; r0 += VALUE_ROWS) {
    const int n = smaller(VALUE_ROWS, rows - r0);
    const float* scores = all_scores + r0 * KEYS;
    int begins[VALUE_ROWS], ends[VALUE_ROWS], straight[VALUE_ROWS];
    int common_begin = 0, common_end = KEYS;
    for (int r = 0; r < n; ++r) {
      begins[r] = sights[r0 + r].begin - start_key;
      ends[r] = sights[r0 + r].end - start_key;
      straight[r] = end_of_straight(sights[r0 + r]);
      common_begin = larger(common_begin, begins[r]);
      common_end = smaller(common_end, straight[r]);
    }
    // Keys that all rows see are read once for all of them; the others by those that see them, so that a row never
    // multiplies another's by 0 (which NaN would survive).
    float* out = sums + r0 * size;
    memset(out, 0, static_cast<size_t>(n * size) * sizeof(float));
    common_end = larger(common_begin, common_end);
    for (int r = 0; r < n; ++r)
      add_values(scores + r * KEYS, values, 1, begins[r], smaller(straight[r], common_begin), size, out + r * size);
    add_values(scores, values, n, common_begin, common_end, size, out);
    for (int r = 0; r < n; ++r) {
      add_values(scores + r * KEYS, values, 1, common_end, straight[r], size, out + r * size);
      for (int j = straight[r]; j < ends[r]; ++j) {
        const int at = sights[r0 + r].path[start_key + j - head.position];
        add_values(scores + r * KEYS + j, static_cast<const T*>(head.values) + static_cast<size_t>(at) * static_cast<size_t>(size),
                   1, 0, 1, size, out + r * size);
      }
    }
  }
}
inline void attend(const Head& head, const float* queries, const Sight* sights, int rows, int block, float* scratch,
                   Partial* partial, float* sums) {
  if (head.half) attend_to<uint16_t>(head, queries, sights, rows, block, scratch, partial, sums);
  else attend_to<float>(head, queries, sights, rows, block, scratch, partial, sums);
}

inline void merge(Partial* into, float* sums, const Partial& part, const float* part_sums, int size) {
  const float top = into->top > part.top ? into->top : part.top;
  const Floats before = exponential(all(into->top - top)), now = exponential(all(part.top - top));
  into->top = top;
  into->total = one_of(fma(all(into->total), before, all(part.total) * now));
  for (int i = 0; i < size; i += 16) store(sums + i, fma(load(sums + i), before, load(part_sums + i) * now));
}
inline void finish(const Partial& row, const float* sums, int size, float* y) {
  for (int i = 0; i < size; i += 16) store(y + i, load(sums + i) / all(row.total));
}

inline void rotate(const float* x, const float* cosines, const float* sines, int turned, bool neighbours, float scale,
                   int size, float* y) {
  const int half = turned / 2;
  const Floats factor = all(scale);
  if (neighbours) {  // pairs (0, 1), (2, 3), ...
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      y[2 * i] = scale * __builtin_fmaf(a, cosines[i], -(b * sines[i]));
      y[2 * i + 1] = scale * __builtin_fmaf(b, cosines[i], a * sines[i]);
    }
  } else {  // pairs (0, half), (1, half + 1), ...
    for (int i = 0; i < half; i += 16) {
      const int n = half - i;
      const Floats a = load_some(x + i, n), b = load_some(x + half + i, n);
      const Floats c = load_some(cosines + i, n), s = load_some(sines + i, n);
      store_some(y + i, factor * fma(a, c, all(0.0f) - b * s), n);
      store_some(y + half + i, factor * fma(b, c, a * s), n);
    }
  }
  for (int i = turned; i < size; ++i) y[i] = scale * x[i];
}
}  // namespace specexport::SPX_SET
