// The operator Attention. See attend.h for its inputs, attention.h for the arithmetic.
#include "attend.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace specexport {
namespace {
constexpr int QUERIES = 16;  // tokens of a task that has all blocks
constexpr int ROUND = 64;    // blocks whose partial results are kept at a time
constexpr size_t MANY_PARTS = 256;  // partial results that are worth a second turn of the threads
constexpr int MOST_SIZE = 1024;     // of a head

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
  bool neighbours, half, reads;
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
  require(capacity > 0 && capacity < INT32_MAX / 2 && size >= 16 && size <= MOST_SIZE && size % 16 == 0,
          "the head size is not a multiple of 16 up to 1024, or there is no capacity");
  require(past_values.has({1, s.kv_heads, capacity, size}), "past values are not of the keys' shape");
  require(queries.rank == 3 && queries.sizes[0] == 1, "queries are not [1, T, ...]");
  const int64_t rows = queries.sizes[1], all = (s.heads + (keys || s.reads ? 0 : 2 * s.kv_heads)) * size;
  require(queries.sizes[2] == all, "queries are not of heads * size, or (heads + 2 kv_heads) * size");
  require(rows <= INT32_MAX / all, "the pass is too large");
  require(bool(keys) == bool(values), "keys and values come together");
  require(!s.reads || !keys, "a layer that reads the rows of another has no keys and values");
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
  call.reads = s.reads != 0;
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
  if (s.reads) {
    call.cached_keys = past_keys.as<char>();
    call.cached_values = past_values.as<char>();
    return call;
  }
  const Tensor present_keys = output(c, 1, past_keys, cache), present_values = output(c, 2, past_values, cache);
  const size_t bytes = static_cast<size_t>(s.kv_heads * capacity * size) * call.bytes();
  require(present_keys && present_values, "an output is absent that is needed");
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

// Writes the i-th row's keys and values into the cache, if it has any, and its turned queries to [kv_heads][rows * group][size].
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
  if (call.reads) return;
  float turned[MOST_SIZE];
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

// What the heads' rows have of their softmax so far.
struct Rows {
  Partial* partial;
  float* sums;
  int size;
  float* sums_of(size_t row) const { return sums + row * static_cast<size_t>(size); }

  void clear(size_t rows) const {
    for (size_t r = 0; r < rows; ++r) partial[r].total = -1.0f;  // nothing
  }
  void add(size_t row, const Rows& parts, size_t part) const {
    if (partial[row].total == -1.0f) {
      partial[row] = parts.partial[part];
      std::memcpy(sums_of(row), parts.sums_of(part), static_cast<size_t>(size) * sizeof(float));
    } else {
      kernels->merge(partial + row, sums_of(row), parts.partial[part], parts.sums_of(part), size);
    }
  }
};
// Adds a head's sink to what its row has, and writes the row.
void finish_row(const Call& call, int h, int row_of_head, const Rows& rows, size_t row) {
  static const float zeros[MOST_SIZE] = {};
  const int t = call.row(row_of_head / call.group), head = h * call.group + row_of_head % call.group;
  if (call.sinks) kernels->merge(rows.partial + row, rows.sums_of(row), {call.sinks[head], 1.0f}, zeros, call.size);
  kernels->finish(rows.partial[row], rows.sums_of(row), call.size, call.y + (t * call.heads + head) * call.size);
}

// What a task needs: scores and sixteen keys, what its rows see, and room for `rows` partial results.
struct Task {
  float* scratch;
  Sight* sights;
  Rows rows;
};
Task task_of(const Call& call, int sights, int rows) {
  static thread_local Scratch own;
  const size_t size = static_cast<size_t>(call.size), n = static_cast<size_t>(rows), seen = static_cast<size_t>(sights);
  const size_t scratch = aligned((seen * KEYS + 16 * size) * sizeof(float)), sums = aligned(n * size * sizeof(float));
  char* memory = own.get(scratch + sums + n * sizeof(Partial) + seen * sizeof(Sight));
  auto* partial = reinterpret_cast<Partial*>(memory + scratch + sums);
  return {reinterpret_cast<float*>(memory), reinterpret_cast<Sight*>(partial + n),
          {partial, reinterpret_cast<float*>(memory + scratch), call.size}};
}

// Few rows: a task has all rows of a cache head over one block. Parts are added when a round of blocks is done.
void attend_by_blocks(const Call& call, ort::KernelContext* c, const float* queries) {
  const size_t size = static_cast<size_t>(call.size), head_rows = static_cast<size_t>(call.rows * call.group);
  const size_t heads = static_cast<size_t>(call.kv_heads), all_rows = heads * head_rows;
  const int first = call.begin(0) / KEYS, last = (call.end(call.rows - 1) + KEYS - 1) / KEYS;
  const size_t most = static_cast<size_t>(std::min(ROUND, last - first)), parts = heads * most;
  static thread_local Scratch scratch;
  const size_t sums_bytes = (1 + most) * all_rows * size * sizeof(float);
  char* memory = scratch.get(sums_bytes + (1 + most) * all_rows * sizeof(Partial) + parts * sizeof(Span));
  auto* sums = reinterpret_cast<float*>(memory);
  auto* partial = reinterpret_cast<Partial*>(memory + sums_bytes);
  auto* spans = reinterpret_cast<Span*>(partial + (1 + most) * all_rows);
  const Rows whole{partial, sums, call.size}, part{partial + all_rows, sums + all_rows * size, call.size};
  whole.clear(all_rows);
  for (int from = first; from < last; from += ROUND) {
    const size_t blocks = static_cast<size_t>(std::min(ROUND, last - from));
    parallel(c, heads * blocks, [&](size_t i) {
      const size_t h = i / blocks;
      const Task task = task_of(call, call.rows * call.group, 0);
      spans[i] = attend_block(call, static_cast<int>(h), 0, call.rows, from + static_cast<int>(i % blocks),
                              queries + h * head_rows * size, task.scratch, task.sights,
                              part.partial + i * head_rows, part.sums_of(i * head_rows));
    });
    auto add = [&](size_t row) {
      const size_t h = row / head_rows;
      const int r = static_cast<int>(row % head_rows);
      for (size_t i = h * blocks; i < (h + 1) * blocks; ++i)
        if (r >= spans[i].skipped && r < spans[i].skipped + spans[i].count)
          whole.add(row, part, i * head_rows + static_cast<size_t>(r));
      if (from + ROUND >= last) finish_row(call, static_cast<int>(h), r, whole, row);
    };
    if (all_rows * blocks >= MANY_PARTS) parallel(c, all_rows, add);
    else for (size_t row = 0; row < all_rows; ++row) add(row);
  }
}

// Many rows: a task has some rows of a cache head over all blocks.
void attend_by_rows(const Call& call, ort::KernelContext* c, const float* queries) {
  const int tiles = (call.rows + QUERIES - 1) / QUERIES;
  parallel(c, static_cast<size_t>(call.kv_heads * tiles), [&](size_t i) {
    const int h = static_cast<int>(i) % call.kv_heads, tile = tiles - 1 - static_cast<int>(i) / call.kv_heads;
    const int from = tile * QUERIES, to = std::min(call.rows, from + QUERIES), rows = (to - from) * call.group;
    const Task task = task_of(call, rows, 2 * rows);
    const Rows& whole = task.rows;
    const Rows part{whole.partial + rows, whole.sums_of(static_cast<size_t>(rows)), call.size};
    const float* own = queries + static_cast<size_t>((h * call.rows + from) * call.group) * static_cast<size_t>(call.size);
    whole.clear(static_cast<size_t>(rows));
    for (int block = call.begin(from) / KEYS; block * KEYS < call.end(to - 1); ++block) {
      const Span span = attend_block(call, h, from, to, block, own, task.scratch, task.sights, part.partial, part.sums);
      for (int r = span.skipped; r < span.skipped + span.count; ++r)
        whole.add(static_cast<size_t>(r), part, static_cast<size_t>(r));
    }
    for (int r = 0; r < rows; ++r) finish_row(call, h, from * call.group + r, whole, static_cast<size_t>(r));
  });
}
}  // namespace

AttentionSettings::AttentionSettings(const ort::KernelInfo* info)
    : heads(attribute<int64_t>(info, "heads", 0)),
      kv_heads(attribute<int64_t>(info, "kv_heads", 0)),
      neighbours(attribute<int64_t>(info, "neighbours", 0)),
      window(attribute<int64_t>(info, "window", 0)),
      reads(attribute<int64_t>(info, "reads", 0)),
      scale(attribute<float>(info, "scale", 0.0f)),
      soft_cap(attribute<float>(info, "soft_cap", 0.0f)) {
  require(kv_heads > 0 && heads >= kv_heads && heads <= 1024 && heads % kv_heads == 0,
          "heads is not a multiple of kv_heads up to 1024");
  require(window >= 0 && soft_cap >= 0 && scale > 0, "window, soft_cap or scale is out of range");
}

void attend(const AttentionSettings& settings, ort::Type cache, ort::KernelContext* c) {
  const Call call = checked(settings, cache, c);
  if (call.rows == 0) return;
  static thread_local Scratch scratch;
  const size_t floats = static_cast<size_t>(call.heads * call.rows) * static_cast<size_t>(call.size);
  float* queries = reinterpret_cast<float*>(scratch.get(floats * sizeof(float)));
  const int each = call.rows < WIDE ? call.rows : QUERIES;
  parallel(c, static_cast<size_t>((call.rows + each - 1) / each), [&](size_t i) {
    const int from = static_cast<int>(i) * each;
    for (int t = from; t < std::min(call.rows, from + each); ++t) place(call, t, queries);
  });
  if (call.rows < WIDE) attend_by_blocks(call, c, queries);
  else attend_by_rows(call, c, queries);
}
}  // namespace specexport
