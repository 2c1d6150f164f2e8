// Products of a few rows with weights that are read once: tiles of R rows by P panels, whose sums stay in registers.
//
// A sum of integers is exact. A sum of floats adds its inputs in order (int4: its blocks), whatever the tile: a row has
// the same bits beside any other rows.
#pragma once
#include "rows.h"

namespace specexport::SPX_SET {
template <int R, int P>
struct Tile {
  Floats sum[R][P];
};

// How many bytes ahead of what a tile reads, weights are asked for, in each of its P panels. Panels follow each other in
// memory: one is a stream that goes on; several are streams too short to foresee, and what comes is the next tile.
template <int P>
constexpr size_t ahead(size_t panel_bytes) {
  return P == 1 ? AHEAD : static_cast<size_t>(P) * panel_bytes;
}

inline size_t padded_inputs(const Product& product) {
  return static_cast<size_t>(product.format == Format::int8   ? (product.inputs + 3) / 4 * 4
                             : product.format == Format::int4 ? padded(product.inputs)
                                                              : product.inputs);
}

template <int R, int P>
[[gnu::always_inline]] inline void add_four_inputs(Sums (&sums)[R][P][PARTS], const int8_t* weights, const int8_t* x,
                                                   size_t inputs, size_t stride) {
  SPX_UNROLL(p, P) SPX_UNROLL(i, PARTS) {
    const int8_t* at = weights + static_cast<size_t>(p) * inputs * PANEL;
    if (i == 0) prefetch(at + ahead<P>(inputs * PANEL));
    const Weights four = weights_of(at, i);
    SPX_UNROLL(r, R) sums[r][p][i] = add_products(sums[r][p][i], four, x + static_cast<size_t>(r) * stride);
  }
}

template <int R, int P>
inline Tile<R, P> int8_tile(const Product& product, const int8_t* x, const Row* rows, int panel) {
  const size_t inputs = padded_inputs(product), stride = static_cast<size_t>(padded(product.inputs));
  const int8_t* w = static_cast<const int8_t*>(product.weights) + static_cast<size_t>(panel) * inputs * PANEL;
  constexpr int T = P == 1 && 2 * R <= INT_SUMS ? 2 : 1;  // in turns, so that a sum does not wait for itself
  Sums sums[T][R][P][PARTS];
  SPX_UNROLL(t, T) SPX_UNROLL(r, R) SPX_UNROLL(p, P) SPX_UNROLL(i, PARTS)
    sums[t][r][p][i] = start(t == 0 ? rows[r].sum : 0);
  size_t k = 0;
  for (; k + 4 * T <= inputs; k += 4 * T)
    SPX_UNROLL(t, T) add_four_inputs<R, P>(sums[t], w + (k + 4 * t) * PANEL, x + k + 4 * t, inputs, stride);
  if (k < inputs) add_four_inputs<R, P>(sums[0], w + k * PANEL, x + k, inputs, stride);
  Tile<R, P> tile;
  SPX_UNROLL(r, R) SPX_UNROLL(p, P) {
    const int at = (panel + p) * PANEL;
    Ints total = joined(sums[0][r][p]);
    if constexpr (T > 1) total = total + joined(sums[T - 1][r][p]);
    const Floats scaled = to_floats(total) * all(rows[r].scale);
    tile.sum[r][p] = scaled * load_some(product.scales + at, product.outputs - at);
  }
  return tile;
}

template <int R, int P>
inline Tile<R, P> int4_tile(const Product& product, const int8_t* x, const Row* rows, const float* offsets, int panel) {
  const size_t inputs = padded_inputs(product), blocks = inputs / BLOCK;
  const uint8_t* w = static_cast<const uint8_t*>(product.weights) + static_cast<size_t>(panel) * inputs * PANEL / 2;
  const float* scales = product.scales + static_cast<size_t>(panel) * blocks * PANEL;
  constexpr int STEPS = PARTS == 1 ? 4 : 1;  // unrolled: with sixteen registers more steps would spill
  Tile<R, P> tile;
  SPX_UNROLL(r, R) SPX_UNROLL(p, P) tile.sum[r][p] = all(0.0f);
  for (size_t b = 0; b < blocks; ++b) {
    SPX_UNROLL(p, P) {
      BlockSums sums[R][PARTS] = {};
      const uint8_t* at = w + (static_cast<size_t>(p) * blocks + b) * PANEL * BLOCK / 2;
      for (int step = 0; step < 4; step += STEPS) SPX_UNROLL(j, STEPS) SPX_UNROLL(i, PARTS) {
        const int g = step + j;
        if (i == 0) prefetch(at + ahead<P>(inputs * PANEL / 2) + 64 * g);
        const Nibbles low = nibbles_of(at + 64 * g, i, false), high = nibbles_of(at + 64 * g, i, true);
        SPX_UNROLL(r, R) {
          const int8_t* four = x + static_cast<size_t>(r) * inputs + b * BLOCK + static_cast<size_t>(4 * g);
          sums[r][i] = add_products(add_products(sums[r][i], low, four), high, four + 16);
        }
      }
      const Floats scale = load(scales + (static_cast<size_t>(p) * blocks + b) * PANEL);
      SPX_UNROLL(r, R) {
        const Floats offset = all(offsets[static_cast<size_t>(r) * blocks + b]);
        tile.sum[r][p] = fma(to_floats(joined(sums[r])) + offset, scale, tile.sum[r][p]);
      }
    }
  }
  SPX_UNROLL(r, R) SPX_UNROLL(p, P) tile.sum[r][p] = tile.sum[r][p] * all(rows[r].scale);
  return tile;
}

template <Format F>
inline Floats widened(const void* weights, size_t at) {
  if constexpr (F == Format::bf16) return widen_bf16(static_cast<const uint16_t*>(weights) + at);
  if constexpr (F == Format::fp16) return widen_fp16(static_cast<const uint16_t*>(weights) + at);
  if constexpr (F == Format::fp32) return load(static_cast<const float*>(weights) + at);
}

template <Format F, int R, int P>
inline Tile<R, P> float_tile(const Product& product, const float* x, int panel) {
  const size_t inputs = static_cast<size_t>(product.inputs), stride = static_cast<size_t>(padded(product.inputs));
  const size_t first_weight = static_cast<size_t>(panel) * inputs * PANEL;
  constexpr size_t bytes = F == Format::fp32 ? 4 : 2;
  Tile<R, P> tile;
  SPX_UNROLL(r, R) SPX_UNROLL(p, P) tile.sum[r][p] = all(0.0f);
  for (size_t k = 0; k < inputs; ++k) {
    Floats w[P];
    SPX_UNROLL(p, P) {
      const size_t at = first_weight + (static_cast<size_t>(p) * inputs + k) * PANEL;
      prefetch(static_cast<const char*>(product.weights) + at * bytes + ahead<P>(inputs * PANEL * bytes));
      w[p] = widened<F>(product.weights, at);
    }
    SPX_UNROLL(r, R) {
      const Floats a = all(x[static_cast<size_t>(r) * stride + k]);
      SPX_UNROLL(p, P) tile.sum[r][p] = fma(a, w[p], tile.sum[r][p]);
    }
  }
  return tile;
}

template <Format F, int R, int P>
inline Tile<R, P> tile_of(const Product& product, const void* x, const Row* rows, const float* offsets, int panel) {
  if constexpr (F == Format::int8) return int8_tile<R, P>(product, static_cast<const int8_t*>(x), rows, panel);
  else if constexpr (F == Format::int4)
    return int4_tile<R, P>(product, static_cast<const int8_t*>(x), rows, offsets, panel);
  else return float_tile<F, R, P>(product, static_cast<const float*>(x), panel);
}

template <int R, int P>
inline void add_bias(const Product& product, int panel, Tile<R, P>* tile) {
  if (!product.bias) return;
  for (int p = 0; p < P; ++p) {
    const int at = (panel + p) * PANEL;
    const Floats bias = load_some(product.bias + at, product.outputs - at);
    for (int r = 0; r < R; ++r) tile->sum[r][p] = tile->sum[r][p] + bias;
  }
}

template <Format F, int R, int P>
inline void tile_into(const Product& product, const void* x, const Row* rows, const float* offsets, int panel, float* y) {
  Tile<R, P> tile = tile_of<F, R, P>(product, x, rows, offsets, panel);
  add_bias(product, panel, &tile);
  int width = product.outputs;
  if (product.gate != Gate::none) {
    width /= 2;
    const int other = panel + width / PANEL;
    Tile<R, P> up = tile_of<F, R, P>(product, x, rows, offsets, other);
    add_bias(product, other, &up);
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) tile.sum[r][p] = gated(tile.sum[r][p], up.sum[r][p], product.gate);
  }
  SPX_UNROLL(r, R) SPX_UNROLL(p, P) {
    const int at = (panel + p) * PANEL;
    store_some(y + static_cast<size_t>(r) * static_cast<size_t>(width) + at, tile.sum[r][p], width - at);
  }
}

// How many panels a tile of R rows has: so many that its sums fill the registers; one of few rows with integers, whose
// products are done before the memory has given the next ones.
template <Format F, int R, bool FEW>
constexpr int panels_beside() {
  constexpr bool integers = F == Format::int8 || F == Format::int4;
  if (FEW && integers) return 1;
  constexpr int most = (integers ? INT_SUMS : FLOAT_SUMS) / R;
  return F == Format::int4 ? (most >= 2 ? 2 : 1) : most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

template <Format F, int R, bool FEW>
inline void rows_into(const Product& product, const void* x, const Row* rows, const float* offsets, int from, int to,
                      float* y) {
  constexpr int P = panels_beside<F, R, FEW>();
  int panel = from;
  for (; panel + P <= to; panel += P) tile_into<F, R, P>(product, x, rows, offsets, panel, y);
  if constexpr (P > 1)
    for (; panel < to; ++panel) tile_into<F, R, 1>(product, x, rows, offsets, panel, y);
}

template <Format F>
inline void multiply_as(const Product& product, const void* x, const Row* rows, const float* offsets, int count,
                        int from, int to, float* y) {
  constexpr bool integers = F == Format::int8 || F == Format::int4;
  constexpr int MOST = integers ? INT_ROWS : FLOAT_ROWS;
  const bool few = count < WIDE;
  const size_t stride = static_cast<size_t>(padded(product.inputs));
  const size_t width = static_cast<size_t>(product.gate == Gate::none ? product.outputs : product.outputs / 2);
  for (int done = 0; done < count;) {
    const int left = count - done;
    const int n = left > MOST && left < 2 * MOST ? (left + 1) / 2 : smaller(left, MOST);
    const size_t at = static_cast<size_t>(done) * stride;
    const void* some = integers ? static_cast<const void*>(static_cast<const int8_t*>(x) + at)
                                : static_cast<const void*>(static_cast<const float*>(x) + at);
    const float* some_offsets = offsets ? offsets + at / BLOCK : nullptr;
    const Row* some_rows = integers ? rows + done : nullptr;
    float* z = y + static_cast<size_t>(done) * width;
    switch (n) {
#define SPX_ROWS(R)                                                                           \
  case R:                                                                                     \
    if constexpr (R <= MOST)                                                                  \
      (few ? rows_into<F, R, integers> : rows_into<F, R, false>)(product, some, some_rows, some_offsets, from, to, z); \
    break;
      SPX_ROWS(1) SPX_ROWS(2) SPX_ROWS(3) SPX_ROWS(4) SPX_ROWS(5) SPX_ROWS(6) SPX_ROWS(7) SPX_ROWS(8)
#undef SPX_ROWS
    }
    done += n;
  }
}

inline void multiply(const Product& product, const void* x, const Row* rows, const float* offsets, int count, int from,
                     int to, float* y) {
  switch (product.format) {
    case Format::int8: return multiply_as<Format::int8>(product, x, rows, offsets, count, from, to, y);
    case Format::int4: return multiply_as<Format::int4>(product, x, rows, offsets, count, from, to, y);
    case Format::bf16: return multiply_as<Format::bf16>(product, x, rows, offsets, count, from, to, y);
    case Format::fp16: return multiply_as<Format::fp16>(product, x, rows, offsets, count, from, to, y);
    case Format::fp32: return multiply_as<Format::fp32>(product, x, rows, offsets, count, from, to, y);
  }
}

// One row of a table that is stored in panels.
inline void look_up(const Product& table, int row, float* y) {
  const size_t inputs = padded_inputs(table), panel = static_cast<size_t>(row / PANEL);
  const size_t lane = static_cast<size_t>(row % PANEL);
  for (size_t k = 0; k < static_cast<size_t>(table.inputs); ++k) {
    if (table.format == Format::int8) {
      const size_t at = panel * inputs * PANEL + k / 4 * 64 + lane * 4 + k % 4;
      y[k] = static_cast<float>(static_cast<const int8_t*>(table.weights)[at]) * table.scales[row];
    } else if (table.format == Format::int4) {
      const size_t block = k / BLOCK, in = k % BLOCK, blocks = inputs / BLOCK;
      const size_t at = (panel * blocks + block) * PANEL * BLOCK / 2 + in % 16 / 4 * 64 + lane * 4 + in % 4;
      const uint8_t both = static_cast<const uint8_t*>(table.weights)[at];
      const int value = (in < 16 ? both & 15 : both >> 4) - 8;
      y[k] = static_cast<float>(value) * table.scales[(panel * blocks + block) * PANEL + lane];
    } else {
      float sixteen[16];
      const size_t at = (panel * inputs + k) * PANEL;
      store(sixteen, table.format == Format::bf16   ? widened<Format::bf16>(table.weights, at)
                     : table.format == Format::fp16 ? widened<Format::fp16>(table.weights, at)
                                                    : widened<Format::fp32>(table.weights, at));
      y[k] = sixteen[lane];
    }
  }
}
}  // namespace specexport::SPX_SET
