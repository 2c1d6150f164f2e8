// The kernels of one instruction set, as functions that the operators call. Pointers are checked by the callers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace specexport {
enum class Gate { none, silu, gelu_tanh };
enum class Format { int8, int4, bf16, fp16, fp32 };

constexpr int PANEL = 16;   // outputs whose weights lie together
constexpr int BLOCK = 32;   // inputs that share a scale in int4
constexpr int WIDE = 16;    // rows from which a pass is split by rows too, and a product reads its weights from a cache
constexpr int KEYS = 128;   // keys whose softmax is one partial result; blocks begin at multiples of it

inline int padded(int size) { return (size + BLOCK - 1) / BLOCK * BLOCK; }  // what rows are stored in, with zeros

// A row of activations in int8, in steps of `scale`.
struct Row {
  float scale;
  int32_t sum;
};

// Weights of one product. Panels of 16 outputs follow each other; in a panel, `inputs` is padded to a multiple of 4
// (int8) or 32 (int4):
//   int8        [inputs / 4][16][4] int8, within +-127
//   int4        [inputs / 32][4][16][4] uint8: low nibbles hold inputs 0 to 15 of a block, high ones 16 to 31; 8 is 0
//   others      [inputs][16]
struct Product {
  Format format;
  int inputs, outputs;
  const void* weights;
  const float* scales;  // int8: [outputs]; int4: [panels][inputs / 32][16]; else null
  const float* bias;    // [outputs], or null
  Gate gate;            // the outputs' first half is the gate of the second
};

// One pass of attention for one cache head. Keys and values are [capacity, size] each.
struct Head {
  const void *keys, *values;
  int capacity, size;
  bool half;        // the cache is fp16
  float soft_cap;   // 0 for none
  int position;     // where the pass begins: positions below it are cache rows
};
// What a row sees: keys [begin, end), which are positions of its text. Those from the pass's position on are the cache
// rows of the same number, or, in a tree, path[0], path[1], ...
struct Sight {
  int begin, end;
  const int* path;
};

// What is left of a row's softmax over one block of keys: values are summed with weights exp(score - top).
struct Partial {
  float top, total;
};

struct Kernels {
  const char* name;
  // y [padded(size)] from x [size]: a norm where gain is not null (skip, total may be null), a
  // Hadamard turn where block is not 0.
  void (*prepare)(const float* x, const float* skip, const float* gain, float epsilon, int block, int size,
                  float* total, float* y);
  // x [padded(size)] to q, the same; offsets [padded(size) / 32], or null: -8 times the sums of its blocks, since 8 is 0
  // in int4.
  void (*round_row)(const float* x, int size, int8_t* q, float* offsets, Row* row);
  // Panels [from, to) of the product for `rows` rows. x: int8 [rows][padded(inputs)] or fp32 the same; y: [rows][outputs],
  // or [rows][outputs / 2] with a gate, whose panels are counted in its first half.
  void (*multiply)(const Product& product, const void* x, const Row* scales, const float* offsets, int rows, int from,
                   int to, float* y);
  // Rows of rotary embedding: the first `turned` values of x [size] by tables cosines and sines [turned / 2], times scale.
  void (*rotate)(const float* x, const float* cosines, const float* sines, int turned, bool neighbours, float scale,
                 int size, float* y);
  void (*to_half)(const float* x, int size, uint16_t* y);
  // Rows over block `block`: queries [rows][size]; a row sees at least one key, and those of this block only.
  // scratch: [rows][KEYS] and [16][size].
  void (*attend)(const Head& head, const float* queries, const Sight* sights, int rows, int block, float* scratch,
                 Partial* partial, float* sums);
  // Adds a later block's part to a row's.
  void (*merge)(Partial* into, float* sums, const Partial& part, const float* part_sums, int size);
  void (*finish)(const Partial& row, const float* sums, int size, float* y);
  // Row `row` of weights as floats: what a table of embeddings looks up.
  void (*look_up)(const Product& table, int row, float* y);
};

// The best set that this host runs, or the one that the environment variable SPECEXPORT_KERNELS names.
const Kernels* kernels_of_this_host(const char** why_not);
}  // namespace specexport
