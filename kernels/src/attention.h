// Attention of a few rows over one block of keys, and how blocks are merged (online softmax: Milakov and Gimelshein
// 2018, arXiv 1805.02867).
//
// Blocks begin at multiples of 128 positions and are merged in order, so the arithmetic of a row depends on its own
// position only. A score is a sum of 16 partial sums, one for each lane, added by `sum`'s order; both ways to compute
// scores below give the same bits.
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

// The scores of 16 keys that lie behind each other, for few rows.
template <class T>
inline Floats scores_of(const float* query, const T* keys, int size) {
#if !defined(SPX_PORTABLE) && defined(__AVX512BW__)
  Floats sums[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) sums[j] = load(query) * load_cache(keys + j * size);
  for (int c = 16; c < size; c += 16) {
    const Floats q = load(query + c);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) sums[j] = fma(q, load_cache(keys + j * size + c), sums[j]);
  }
  return sums_of(sums);
#else
  float scores[16];
  for (int j = 0; j < 16; j += 4) {
    Floats sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] = load(query) * load_cache(keys + (j + i) * size);
    for (int c = 16; c < size; c += 16) {
      const Floats q = load(query + c);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums[i] = fma(q, load_cache(keys + (j + i) * size + c), sums[i]);
    }
    sums_of_four(sums, scores + j);
  }
  return load(scores);
#endif
}

// Keys of a block, [size][KEYS]: for many rows. Keys behind `count` are zeros.
template <class T>
inline void transpose_keys(const T* keys, int count, int size, float* turned) {
  for (int j = 0; j < KEYS; ++j)
    for (int c = 0; c < size; c += 16) {
      float lanes[16] = {};
      if (j < count) store(lanes, load_cache(keys + static_cast<size_t>(j) * static_cast<size_t>(size) + c));
      for (int i = 0; i < 16; ++i) turned[(c + i) * KEYS + j] = lanes[i];
    }
}
// The partial sums of lanes [lane, lane + 2^LEVEL) for G groups of 16 keys, added as `sum` does.
template <int LEVEL, int G>
inline void add_lanes(const float* query, const float* turned, int size, int lane, Floats (&out)[G]) {
  if constexpr (LEVEL == 0) {
    const Floats q = all(query[lane]);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) out[g] = q * load(turned + lane * KEYS + 16 * g);
    for (int c = lane + 16; c < size; c += 16) {
      const Floats next = all(query[c]);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) out[g] = fma(next, load(turned + c * KEYS + 16 * g), out[g]);
    }
  } else {
    Floats right[G];
    add_lanes<LEVEL - 1, G>(query, turned, size, lane, out);
    add_lanes<LEVEL - 1, G>(query, turned, size, lane + (1 << (LEVEL - 1)), right);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) out[g] = out[g] + right[g];
  }
}

// Adds weights [row][key] times values of keys [from, to) to sums [R][size]; keys in order.
template <int R, int C, class T>
inline void add_value_columns(const float* weights, const T* values, int from, int to, int size, int column, float* sums) {
  Floats total[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) total[r][c] = load(sums + r * size + column + 16 * c);
  for (int j = from; j < to; ++j) {
    const T* value = values + static_cast<size_t>(j) * static_cast<size_t>(size) + column;
    Floats v[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) v[c] = load_cache(value + 16 * c);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Floats w = all(weights[r * KEYS + j]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) total[r][c] = fma(w, v[c], total[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(sums + r * size + column + 16 * c, total[r][c]);
}
template <int R, class T>
inline void add_values_of(const float* weights, const T* values, int from, int to, int size, float* sums) {
  int column = 0;
  for (; column + 16 * VALUE_CHUNK <= size; column += 16 * VALUE_CHUNK)
    add_value_columns<R, VALUE_CHUNK>(weights, values, from, to, size, column, sums);
  for (; column < size; column += 16) add_value_columns<R, 1>(weights, values, from, to, size, column, sums);
}
template <class T>
inline void add_values(const float* weights, const T* values, int rows, int from, int to, int size, float* sums) {
  if (from >= to) return;
  switch (rows) {
#define SPX_ROWS(R)                                                                       \
  case R:                                                                                 \
    if constexpr (R <= VALUE_ROWS) add_values_of<R>(weights, values, from, to, size, sums); \
    break;
    SPX_ROWS(1) SPX_ROWS(2) SPX_ROWS(3) SPX_ROWS(4) SPX_ROWS(5) SPX_ROWS(6)
#undef SPX_ROWS
  }
}

// Scores [KEYS] to exp(score - top) where the row sees them, else to 0.
inline Partial soften(float* scores, int first_key, int last_key, float soft_cap) {
  const Floats none = all(-__builtin_inff());
  Floats top = none;
  for (int j = first_key / 16 * 16; j < last_key; j += 16) {
    Floats s = load(scores + j);
    if (soft_cap > 0) {  // cap * tanh(s / cap)
      const Floats e = exponential(s / all(0.5f * soft_cap));
      s = all(soft_cap) * (all(1.0f) - all(2.0f) / (all(1.0f) + e));
    }
    s = first(first_key - j, none, first(last_key - j, s, none));
    store(scores + j, s);
    top = max(s, top);
  }
  const float most = largest(top);
  Floats total = all(0.0f);
  for (int j = first_key / 16 * 16; j < last_key; j += 16) {
    const Floats seen = exponential(load(scores + j) - all(most));
    const Floats e = first(first_key - j, all(0.0f), first(last_key - j, seen, all(0.0f)));
    store(scores + j, e);
    total = total + e;
  }
  return {most, sum(total)};
}

// Sixteen keys of a row's text from `key` on, where a tree's rows lie apart or the cache ends: those behind `end` are zeros.
template <class T>
inline void gather_keys(const Head& head, const Sight& sight, int key, int end, T* copy) {
  const size_t size = static_cast<size_t>(head.size);
  memset(copy, 0, 16 * size * sizeof(T));
  for (int i = 0; i < smaller(16, end - key); ++i) {
    const int at = sight.path && key + i >= head.position ? sight.path[key + i - head.position] : key + i;
    memcpy(copy + static_cast<size_t>(i) * size, static_cast<const T*>(head.keys) + static_cast<size_t>(at) * size,
           size * sizeof(T));
  }
}

template <class T>
inline void attend_to(const Head& head, const float* queries, const Sight* sights, int rows, int block, float* scratch,
                      Partial* partial, float* sums) {
  const int size = head.size, start_key = block * KEYS, there = smaller(KEYS, head.capacity - start_key);
  const size_t offset = static_cast<size_t>(start_key) * static_cast<size_t>(size);
  const T* keys = static_cast<const T*>(head.keys) + offset;
  const T* values = static_cast<const T*>(head.values) + offset;
  const bool many = rows >= ROWS_TO_TRANSPOSE;
  if (many) transpose_keys(keys, there, size, scratch);
  alignas(64) float scores[VALUE_ROWS * KEYS];
  T* gathered = reinterpret_cast<T*>(scratch + size * KEYS);
  for (int r0 = 0; r0 < rows; r0 += VALUE_ROWS) {
    const int n = smaller(VALUE_ROWS, rows - r0);
    int common_begin = 0, common_end = KEYS;
    int begins[VALUE_ROWS], ends[VALUE_ROWS], straight[VALUE_ROWS];  // within the block; keys below `straight` lie there
    for (int r = 0; r < n; ++r) {
      const Sight& sight = sights[r0 + r];
      const int begin = begins[r] = sight.begin - start_key, end = ends[r] = sight.end - start_key;
      straight[r] = sight.path ? larger(begin, smaller(end, head.position - start_key)) : end;
      const float* query = queries + (r0 + r) * size;
      float* row = scores + r * KEYS;
      int j = begin / 16 * 16;
      if (many) {
        for (int k = begin / (16 * GROUPS) * 16 * GROUPS; k < straight[r]; k += 16 * GROUPS) {
          Floats groups[GROUPS];
          add_lanes<4, GROUPS>(query, scratch + k, size, 0, groups);
          for (int g = 0; g < GROUPS; ++g) store(row + k + 16 * g, groups[g]);
        }
        j = straight[r] < end ? larger(j, straight[r] / 16 * 16) : end;
      }
      for (; j < end; j += 16) {
        const bool direct = j + 16 <= there && (straight[r] == end || j + 16 <= straight[r]);
        if (!direct) gather_keys(head, sight, start_key + j, sight.end, gathered);
        store(row + j, scores_of(query, direct ? keys + j * size : gathered, size));
      }
      partial[r0 + r] = soften(row, begin, end, head.soft_cap);
      common_begin = larger(common_begin, begin);
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
