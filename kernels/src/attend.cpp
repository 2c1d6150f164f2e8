// The operator Attention. See attend.h for its inputs, attention.h for the arithmetic.
#include "attend.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace specexport {
namespace {
constexpr int WIDE = 16;   // rows from which a task has some rows over all blocks, and below which it has one block
constexpr int QUERIES = 16;  // of one wide task

// A tree's rows in order of their depth, so that those who see a block are neighbours. For each: which row of the pass it
// is, how many of its rows are before it in its text, and the cache rows of these and itself.
struct Branch {
  int row, depth;
  const int* path;
};

// One call, with its sizes checked.
struct Call {
  int heads, kv_heads, group, size, capacity, rows, position, window, turned;
  float scale, soft_cap;
  bool neighbours, half;
  const float *queries, *keys, *values, *cosines, *sines, *sinks;
  size_t query_stride, key_stride;
  char *cached_keys, *cached_values;
  float* y;
  const Branch* tree;  // null for a plain pass, whose rows are a chain

  size_t bytes() const { return half ? 2 : 4; }
  Head head(int h) const {
    const size_t at = static_cast<size_t>(h) * static_cast<size_t>(capacity) * static_cast<size_t>(size) * bytes();
    return {cached_keys + at, cached_values + at, capacity, size, half, soft_cap, position};
  }
  // The i-th row in order of depth: which row of the pass it is, where its text has it, and the keys that it sees.
  int row(int i) const { return tree ? tree[i].row : i; }
  int place(int i) const { return position + (tree ? tree[i].depth : i); }
  int begin(int i) const { return window ? std::max(0, place(i) + 1 - window) : 0; }
  int end(int i) const { return place(i) + 1; }
};

bool all_zero(const uint8_t* bytes, int count) {
  return count == 0 || (*bytes == 0 && std::memcmp(bytes, bytes + 1, static_cast<size_t>(count) - 1) == 0);
}
bool is_chain(const uint8_t* ancestors, int rows) {  // a lower triangle
  for (int t = 0; t < rows; ++t, ancestors += rows)
    if (std::memchr(ancestors, 0, static_cast<size_t>(t) + 1) || !all_zero(ancestors + t + 1, rows - t - 1)) return false;
  return true;
}

// The tree's rows in order of depth, in memory that lasts until this thread's next call.
const Branch* branches(const uint8_t* ancestors, int rows, int position) {
  static thread_local Scratch scratch;
  const size_t count = static_cast<size_t>(rows), numbers = count * (count + 1) / 2;
  auto* tree = reinterpret_cast<Branch*>(scratch.get(2 * count * sizeof(Branch) + numbers * sizeof(int)));
  Branch* by_row = tree + count;
  int* path = reinterpret_cast<int*>(by_row + count);
  for (int t = 0; t < rows; ++t) {
    const uint8_t* sees = ancestors + static_cast<size_t>(t) * count;
    const uint8_t* of_parent = nullptr;
    by_row[t] = {t, 0, path};
    for (int j = 0; j < t; ++j)
      if (sees[j]) {
        *path++ = position + j;
        ++by_row[t].depth;
        of_parent = ancestors + static_cast<size_t>(j) * count;
      }
    *path++ = position + t;
    require(sees[t], "a row is not among its own ancestors");
    require(all_zero(sees + t + 1, rows - t - 1), "a row has an ancestor behind it");
    for (int j = 0; of_parent && j < t; ++j)
      require(!sees[j] == !of_parent[j], "a row's ancestors are not itself, its parent and its parent's ancestors");
  }
  Branch* next = tree;
  for (int depth = 0; next < tree + count; ++depth)
    for (int t = 0; t < rows; ++t)
      if (by_row[t].depth == depth) *next++ = by_row[t];
  return tree;
}

bool overlap(const Tensor& a, const Tensor& b, size_t bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a.data), y = reinterpret_cast<uintptr_t>(b.data);
  return x < y + bytes && y < x + bytes;
}

Call checked(const AttentionSettings& s, ort::Type cache, ort::KernelContext* c) {
  const Tensor queries = needed(c, 0), keys = input(c, 4), values = input(c, 5);
  const Tensor past_keys = needed(c, 1, cache), past_values = needed(c, 2, cache);
  const Tensor position = needed(c, 3, ort::int64);
  const Tensor cosines = input(c, 6), sines = input(c, 7), sinks = input(c, 8);
  const Tensor ancestors = input(c, 9, ort::boolean);
  require(past_keys.rank == 4 && past_keys.sizes[0] == 1 && past_keys.sizes[1] == s.kv_heads,
          "past keys are not [1, kv_heads, capacity, size]");
  const int64_t capacity = past_keys.sizes[2], size = past_keys.sizes[3];
  require(capacity > 0 && capacity < INT32_MAX / 2 && size >= 16 && size <= 1024 && size % 16 == 0,
          "the head size is not a multiple of 16 up to 1024, or there is no capacity");
  require(past_values.has({1, s.kv_heads, capacity, size}), "past values are not of the keys' shape");
  require(queries.rank == 3 && queries.sizes[0] == 1, "queries are not [1, T, ...]");
  const int64_t rows = queries.sizes[1], all = (s.heads + (keys ? 0 : 2 * s.kv_heads)) * size;
  require(queries.sizes[2] == all, "queries are not of heads * size, or (heads + 2 kv_heads) * size");
  require(rows <= INT32_MAX / all, "the pass is too large");
  require(bool(keys) == bool(values), "keys and values come together");
  require(!keys || (keys.has({1, rows, s.kv_heads * size}) && values.has({1, rows, s.kv_heads * size})),
          "keys or values are not [1, T, kv_heads * size]");
  require(position.has({1}), "position is not [1]");
  const int64_t at = *position.as<int64_t>();
  require(at >= 0 && rows <= capacity && at <= capacity - rows, "the rows do not fit into the cache at this position");
  require(bool(cosines) == bool(sines), "cosines and sines come together");
  int64_t turned = 0;
  if (cosines) {
    require(cosines.rank == 2 && sines.has({cosines.sizes[0], cosines.sizes[1]}), "cosines and sines differ in shape");
    turned = 2 * cosines.sizes[1];
    require(turned <= size, "there are more angles than the head has pairs");
    require(at + rows <= cosines.sizes[0], "the angles end before this position");
  }
  require(!sinks || sinks.has({s.heads}), "sinks are not [heads]");
  require(!ancestors || ancestors.has({rows, rows}), "ancestors are not [T, T]");

  Call call{};
  call.heads = static_cast<int>(s.heads);
  call.kv_heads = static_cast<int>(s.kv_heads);
  call.group = call.heads / call.kv_heads;
  call.size = static_cast<int>(size);
  call.capacity = static_cast<int>(capacity);
  call.rows = static_cast<int>(rows);
  call.position = static_cast<int>(at);
  call.window = static_cast<int>(std::min<int64_t>(s.window, INT32_MAX / 2));
  call.turned = static_cast<int>(turned);
  call.scale = s.scale;
  call.soft_cap = s.soft_cap;
  call.neighbours = s.neighbours != 0;
  call.half = cache == ort::float16;
  call.queries = queries.as<float>();
  call.query_stride = static_cast<size_t>(all);
  call.keys = keys ? keys.as<float>() : call.queries + s.heads * size;
  call.values = keys ? values.as<float>() : call.keys + s.kv_heads * size;
  call.key_stride = keys ? static_cast<size_t>(s.kv_heads * size) : call.query_stride;
  call.cosines = cosines ? cosines.as<float>() : nullptr;
  call.sines = sines ? sines.as<float>() : nullptr;
  call.sinks = sinks ? sinks.as<float>() : nullptr;
  if (ancestors && !is_chain(ancestors.as<uint8_t>(), call.rows))
    call.tree = branches(ancestors.as<uint8_t>(), call.rows, call.position);

  Tensor shape = queries;
  shape.sizes[2] = s.heads * size;
  call.y = output(c, 0, shape).as<float>();
  const Tensor present_keys = output(c, 1, past_keys, cache), present_values = output(c, 2, past_values, cache);
  const size_t bytes = static_cast<size_t>(s.kv_heads * capacity * size) * call.bytes();
  require(!overlap(present_keys, present_values, bytes) && !overlap(present_keys, past_values, bytes) &&
              !overlap(present_values, past_keys, bytes),
          "keys and values are in the same memory");
  for (const auto& [present, past] : {std::pair(present_keys, past_keys), std::pair(present_values, past_values)})
    if (present.data != past.data) {
      require(!overlap(present, past, bytes), "the present's memory overlaps the past's, and is not the same");
      std::memcpy(present.data, past.data, bytes);
    }
  call.cached_keys = present_keys.as<char>();
  call.cached_values = present_values.as<char>();
  return call;
}

// Writes the i-th row's keys and values into the cache, and its turned queries to [kv_heads][rows * group][size].
void place(const Call& call, int i, float* queries) {
  const int t = call.row(i);
  const size_t size = static_cast<size_t>(call.size), slot = static_cast<size_t>(call.position + t);
  const size_t angle = static_cast<size_t>(call.place(i)) * static_cast<size_t>(call.turned / 2);
  const float* cosines = call.cosines ? call.cosines + angle : nullptr;
  const float* sines = call.sines ? call.sines + angle : nullptr;
  const float* row = call.queries + static_cast<size_t>(t) * call.query_stride;
  for (int h = 0; h < call.heads; ++h) {
    const size_t to = static_cast<size_t>((h / call.group * call.rows + i) * call.group + h % call.group);
    kernels->rotate(row + static_cast<size_t>(h) * size, cosines, sines, call.turned, call.neighbours, call.scale,
                    call.size, queries + to * size);
  }
  float turned[1024];
  for (int h = 0; h < call.kv_heads; ++h) {
    const size_t from = static_cast<size_t>(t) * call.key_stride + static_cast<size_t>(h) * size;
    const size_t to = (static_cast<size_t>(h) * static_cast<size_t>(call.capacity) + slot) * size * call.bytes();
    float* key = call.half ? turned : reinterpret_cast<float*>(call.cached_keys + to);
    kernels->rotate(call.keys + from, cosines, sines, call.turned, call.neighbours, 1.0f, call.size, key);
    if (call.half) {
      kernels->to_half(turned, call.size, reinterpret_cast<uint16_t*>(call.cached_keys + to));
      kernels->to_half(call.values + from, call.size, reinterpret_cast<uint16_t*>(call.cached_values + to));
    } else {
      std::memcpy(call.cached_values + to, call.values + from, size * sizeof(float));
    }
  }
}

// Rows [from, to), in order of depth, for cache head h over one block: those that see any of it, which are neighbours.
// Returns how many rows before them see nothing; `partial` and `sums` are those of row `from`.
struct Span {
  int skipped, count;
};
Span attend_block(const Call& call, int h, int from, int to, int block, const float* queries, float* scratch,
                  Sight* sights, Partial* partial, float* sums) {
  const int first_key = block * KEYS, last_key = first_key + KEYS, rows = (to - from) * call.group;
  Span span{0, 0};
  for (int r = 0; r < rows; ++r) {
    const int i = from + r / call.group;
    const int begin = std::max(call.begin(i), first_key), end = std::min(call.end(i), last_key);
    if (begin < end) {
      sights[span.count++] = {begin, end, call.tree ? call.tree[i].path : nullptr};
    } else if (span.count == 0) {
      ++span.skipped;
    }
  }
  if (span.count) {
    const size_t at = static_cast<size_t>(span.skipped) * static_cast<size_t>(call.size);
    kernels->attend(call.head(h), queries + at, sights, span.count, block, scratch, partial + span.skipped, sums + at);
  }
  return span;
}

// Adds a head's sink to what its row has, and writes the row.
void finish_row(const Call& call, int h, int row_of_head, Partial* partial, float* sums, const float* zeros) {
  const int t = call.row(row_of_head / call.group), head = h * call.group + row_of_head % call.group;
  if (call.sinks) kernels->merge(partial, sums, {call.sinks[head], 1.0f}, zeros, call.size);
  kernels->finish(*partial, sums, call.size, call.y + (t * call.heads + head) * call.size);
}
}  // namespace

AttentionSettings::AttentionSettings(const ort::KernelInfo* info)
    : heads(attribute<int64_t>(info, "heads", 0)),
      kv_heads(attribute<int64_t>(info, "kv_heads", 0)),
      neighbours(attribute<int64_t>(info, "neighbours", 0)),
      window(attribute<int64_t>(info, "window", 0)),
      scale(attribute<float>(info, "scale", 0.0f)),
      soft_cap(attribute<float>(info, "soft_cap", 0.0f)) {
  require(kv_heads > 0 && heads >= kv_heads && heads <= 1024 && heads % kv_heads == 0,
          "heads is not a multiple of kv_heads up to 1024");
  require(window >= 0 && soft_cap >= 0 && scale > 0, "window, soft_cap or scale is out of range");
}

void attend(const AttentionSettings& settings, ort::Type cache, ort::KernelContext* c) {
  const Call call = checked(settings, cache, c);
  if (call.rows == 0) return;
  const size_t size = static_cast<size_t>(call.size);
  const int head_rows = call.rows * call.group;
  const int first_block = call.begin(0) / KEYS, blocks = (call.end(call.rows - 1) + KEYS - 1) / KEYS - first_block;
  const bool narrow = call.rows < WIDE;
  const size_t query_floats = static_cast<size_t>(call.heads * call.rows) * size;
  const size_t parts = narrow ? static_cast<size_t>(call.kv_heads) * static_cast<size_t>(blocks) : 0;
  const size_t part_floats = parts * static_cast<size_t>(head_rows) * size;
  const size_t partials = parts * static_cast<size_t>(head_rows);
  static thread_local Scratch scratch;
  char* memory = scratch.get(aligned(query_floats * 4) + aligned(part_floats * 4) + partials * sizeof(Partial) +
                             parts * sizeof(Span));
  float* queries = reinterpret_cast<float*>(memory);
  if (narrow) for (int t = 0; t < call.rows; ++t) place(call, t, queries);
  else parallel(c, static_cast<size_t>(call.rows + 15) / 16, [&](size_t i) {
    const int from = static_cast<int>(i) * 16;
    for (int t = from; t < std::min(call.rows, from + 16); ++t) place(call, t, queries);
  });

  // What one task needs: scores and sixteen keys; where rows begin and end; a row of zeros.
  const int task_rows = (narrow ? call.rows : QUERIES) * call.group;
  const size_t scratch_bytes = aligned((static_cast<size_t>(task_rows) * KEYS + 16 * size) * 4);
  const size_t task_bytes = scratch_bytes + aligned(static_cast<size_t>(task_rows) * sizeof(Sight)) +
                            aligned(size * 4) + static_cast<size_t>(task_rows) * 2 * (aligned(size * 4) + sizeof(Partial));
  auto task_memory = [&] {
    static thread_local Scratch own;
    return own.get(task_bytes);
  };
  const size_t head_floats = static_cast<size_t>(head_rows) * size;
  if (narrow) {
    float* sums = queries + aligned(query_floats * 4) / 4;
    auto* partial = reinterpret_cast<Partial*>(memory + aligned(query_floats * 4) + aligned(part_floats * 4));
    auto* spans = reinterpret_cast<Span*>(partial + partials);
    parallel(c, parts, [&](size_t i) {
      const int h = static_cast<int>(i) / blocks, block = first_block + static_cast<int>(i) % blocks;
      char* own = task_memory();
      spans[i] = attend_block(call, h, 0, call.rows, block, queries + static_cast<size_t>(h) * head_floats,
                              reinterpret_cast<float*>(own),
                              reinterpret_cast<Sight*>(own + scratch_bytes),
                              partial + i * static_cast<size_t>(head_rows), sums + i * head_floats);
    });
    char* own = task_memory();
    float* zeros = reinterpret_cast<float*>(own);
    std::memset(zeros, 0, size * 4);
    for (int h = 0; h < call.kv_heads; ++h)
      for (int r = 0; r < head_rows; ++r) {
        Partial* whole = nullptr;
        float* row = nullptr;
        for (int b = 0; b < blocks; ++b) {
          const size_t i = static_cast<size_t>(h * blocks + b);
          if (r < spans[i].skipped || r >= spans[i].skipped + spans[i].count) continue;
          Partial* part = partial + i * static_cast<size_t>(head_rows) + r;
          float* part_sums = sums + i * head_floats + static_cast<size_t>(r) * size;
          if (!whole) whole = part, row = part_sums;
          else kernels->merge(whole, row, *part, part_sums, call.size);
        }
        finish_row(call, h, r, whole, row, zeros);
      }
    return;
  }
  const int tiles = (call.rows + QUERIES - 1) / QUERIES;
  parallel(c, static_cast<size_t>(call.kv_heads * tiles), [&](size_t i) {
    const int h = static_cast<int>(i) % call.kv_heads, tile = tiles - 1 - static_cast<int>(i) / call.kv_heads;
    const int from = tile * QUERIES, to = std::min(call.rows, from + QUERIES), rows = (to - from) * call.group;
    char* own = task_memory();
    float* keys = reinterpret_cast<float*>(own);
    own += scratch_bytes;
    auto* sights = reinterpret_cast<Sight*>(own);
    own += aligned(static_cast<size_t>(task_rows) * sizeof(Sight));
    float* zeros = reinterpret_cast<float*>(own);
    std::memset(zeros, 0, size * 4);
    own += aligned(size * 4);
    float* sums = reinterpret_cast<float*>(own);
    float* new_sums = sums + static_cast<size_t>(task_rows) * size;
    auto* partial = reinterpret_cast<Partial*>(new_sums + static_cast<size_t>(task_rows) * size);
    Partial* new_partial = partial + task_rows;
    const float* own_queries = queries + static_cast<size_t>(h) * head_floats +
                               static_cast<size_t>(from * call.group) * size;
    int seen = 0;  // rows [0, seen) have seen a block: the first of a row is kept, later ones are merged into it
    for (int block = call.begin(from) / KEYS; block * KEYS < call.end(to - 1); ++block) {
      const Span span = attend_block(call, h, from, to, block, own_queries, keys, sights, new_partial, new_sums);
      for (int r = span.skipped; r < span.skipped + span.count; ++r) {
        float *row = sums + static_cast<size_t>(r) * size, *now = new_sums + static_cast<size_t>(r) * size;
        if (r < seen) {
          kernels->merge(partial + r, row, new_partial[r], now, call.size);
        } else {
          partial[r] = new_partial[r];
          std::memcpy(row, now, size * 4);
        }
      }
      seen = std::max(seen, span.skipped + span.count);
    }
    for (int r = 0; r < rows; ++r)
      finish_row(call, h, from * call.group + r, partial + r, sums + static_cast<size_t>(r) * size, zeros);
  });
}
}  // namespace specexport
