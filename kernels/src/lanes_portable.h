// Sixteen floats or integers in arrays: the reference that every instruction set is tested against.

struct Floats {
  float lane[16];
};
struct Ints {
  int32_t lane[16];
};

#define SPX_EACH(i) for (int i = 0; i < 16; ++i)

inline Floats load(const float* p) {
  Floats a;
  memcpy(a.lane, p, sizeof a.lane);
  return a;
}
inline void store(float* p, Floats a) { memcpy(p, a.lane, sizeof a.lane); }
inline Floats all(float x) {
  Floats a;
  SPX_EACH(i) a.lane[i] = x;
  return a;
}
#define SPX_OPERATOR(op)                          \
  inline Floats operator op(Floats a, Floats b) { \
    SPX_EACH(i) a.lane[i] = a.lane[i] op b.lane[i]; \
    return a;                                     \
  }
SPX_OPERATOR(+)
SPX_OPERATOR(-)
SPX_OPERATOR(*)
SPX_OPERATOR(/)
inline Ints operator+(Ints a, Ints b) {
  SPX_EACH(i) a.lane[i] += b.lane[i];
  return a;
}
inline Floats fma(Floats a, Floats b, Floats c) {
  SPX_EACH(i) c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return c;
}
inline Floats max(Floats a, Floats b) {  // b where either is NaN
  SPX_EACH(i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline Floats min(Floats a, Floats b) {
  SPX_EACH(i) a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline Floats abs(Floats a) {
  SPX_EACH(i) a.lane[i] = __builtin_fabsf(a.lane[i]);
  return a;
}
inline Floats round(Floats a) {  // to the nearest integer, halves to even
  SPX_EACH(i) a.lane[i] = __builtin_rintf(a.lane[i]);
  return a;
}
inline int32_t nearest(float x) {  // as x86: the smallest integer for what does not fit
  return x >= -0x1p31f && x < 0x1p31f ? static_cast<int32_t>(__builtin_rintf(x)) : INT32_MIN;
}
inline Ints to_ints(Floats a) {  // rounds as `round`
  Ints b;
  SPX_EACH(i) b.lane[i] = nearest(a.lane[i]);
  return b;
}
inline Floats to_floats(Ints a) {
  Floats b;
  SPX_EACH(i) b.lane[i] = static_cast<float>(a.lane[i]);
  return b;
}
inline Floats times_power_of_two(Floats a, Floats exponents) {  // the exponents are integers, the result is normal
  SPX_EACH(i) {
    uint32_t bits;
    memcpy(&bits, &a.lane[i], 4);
    bits += static_cast<uint32_t>(nearest(exponents.lane[i])) << 23;
    memcpy(&a.lane[i], &bits, 4);
  }
  return a;
}
inline Floats first(int count, Floats a, Floats otherwise) {  // lanes [0, count) of a; count may be outside [0, 16]
  SPX_EACH(i) a.lane[i] = i < count ? a.lane[i] : otherwise.lane[i];
  return a;
}
inline float sum(Floats a) {  // neighbours first: ((0+1) + (2+3)) + ...
  for (int step = 1; step < 16; step *= 2)
    for (int i = 0; i < 16; i += 2 * step) a.lane[i] += a.lane[i + step];
  return a.lane[0];
}
inline float largest(Floats a) {
  float most = a.lane[0];
  for (int i = 1; i < 16; ++i) most = a.lane[i] > most ? a.lane[i] : most;
  return most;
}
template <int STEP>
inline Floats swapped(Floats a) {  // lane i gets lane i ^ STEP
  Floats b;
  SPX_EACH(i) b.lane[i] = a.lane[i ^ STEP];
  return b;
}
inline Floats widen_bf16(const uint16_t* p) {
  Floats a;
  SPX_EACH(i) {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    memcpy(&a.lane[i], &bits, 4);
  }
  return a;
}
inline float widen_half(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 1023u;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline Floats widen_fp16(const uint16_t* p) {
  Floats a;
  SPX_EACH(i) a.lane[i] = widen_half(p[i]);
  return a;
}
inline void narrow_to_int8(int8_t* p, Floats a) {  // integers within [-127, 127]
  SPX_EACH(i) p[i] = static_cast<int8_t>(a.lane[i]);
}

// Products of four int8 activations with the four weights of each of 16 outputs.
constexpr int PARTS = 1;  // vectors that hold the sums of 16 outputs
using Sums = Ints;
struct Weights {
  int8_t value[64];
};
inline Sums start(int32_t) {  // the sum of a row's activations, for instruction sets that shift the weights
  Sums a;
  SPX_EACH(i) a.lane[i] = 0;
  return a;
}
inline Weights weights_of(const int8_t* p, int) {
  Weights w;
  memcpy(w.value, p, 64);
  return w;
}
inline Sums add_products(Sums a, const Weights& w, const int8_t* x) {
  SPX_EACH(i) for (int j = 0; j < 4; ++j) a.lane[i] += w.value[4 * i + j] * x[j];
  return a;
}
struct Nibbles {
  uint8_t value[64];
};
inline Nibbles nibbles_of(const uint8_t* p, int, bool high) {
  Nibbles w;
  for (int i = 0; i < 64; ++i) w.value[i] = high ? p[i] >> 4 : p[i] & 15;
  return w;
}
inline Sums add_products(Sums a, const Nibbles& w, const int8_t* x) {
  SPX_EACH(i) for (int j = 0; j < 4; ++j) a.lane[i] += w.value[4 * i + j] * x[j];
  return a;
}
inline Ints joined(const Sums (&a)[PARTS]) { return a[0]; }
using BlockSums = Sums;  // of int4's products over one block

// How many rows and panels a tile has: what the registers hold.
constexpr int INT_ROWS = 4, FLOAT_ROWS = 4, INT_SUMS = 4, FLOAT_SUMS = 4, VALUE_SUMS = 4, SCORE_ROWS = 1;

using Piece = Floats;
using Fours = Floats;  // of which the first four lanes are used
constexpr int PIECES = 1;
inline Piece load_piece(const float* p) { return load(p); }
inline Piece load_piece(const uint16_t* p) { return widen_fp16(p); }
inline Fours four_sums(const Piece (&a)[4]) { return {{sum(a[0]), sum(a[1]), sum(a[2]), sum(a[3])}}; }
inline void store_fours(float* p, const Fours (&a)[4]) {
  for (int i = 0; i < 4; ++i) memcpy(p + 4 * i, a[i].lane, 4 * sizeof(float));
}
