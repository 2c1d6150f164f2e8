// NEON: sixteen floats in four registers; ARMv8.2's dot products where the compiler may use them.


struct Floats {
  float32x4_t v[4];
};
struct Ints {
  int32x4_t v[4];
};

#define SPX_QUARTERS(i) for (int i = 0; i < 4; ++i)

inline Floats load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}}; }
inline void store(float* p, Floats a) { SPX_QUARTERS(i) vst1q_f32(p + 4 * i, a.v[i]); }
inline Floats all(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
#define SPX_OPERATOR(op, instruction)                           \
  inline Floats operator op(Floats a, Floats b) {               \
    SPX_QUARTERS(i) a.v[i] = instruction(a.v[i], b.v[i]);       \
    return a;                                                   \
  }
SPX_OPERATOR(+, vaddq_f32)
SPX_OPERATOR(-, vsubq_f32)
SPX_OPERATOR(*, vmulq_f32)
SPX_OPERATOR(/, vdivq_f32)
inline Ints operator+(Ints a, Ints b) {
  SPX_QUARTERS(i) a.v[i] = vaddq_s32(a.v[i], b.v[i]);
  return a;
}
inline Floats fma(Floats a, Floats b, Floats c) {
  SPX_QUARTERS(i) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return c;
}
inline Floats max(Floats a, Floats b) {  // as x86: b where either is NaN
  SPX_QUARTERS(i) a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
inline Floats min(Floats a, Floats b) {
  SPX_QUARTERS(i) a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
inline Floats abs(Floats a) {
  SPX_QUARTERS(i) a.v[i] = vabsq_f32(a.v[i]);
  return a;
}
inline Floats round(Floats a) {
  SPX_QUARTERS(i) a.v[i] = vrndnq_f32(a.v[i]);
  return a;
}
inline Ints to_ints(Floats a) {
  Ints b;
  SPX_QUARTERS(i) b.v[i] = vcvtnq_s32_f32(a.v[i]);
  return b;
}
inline Floats to_floats(Ints a) {
  Floats b;
  SPX_QUARTERS(i) b.v[i] = vcvtq_f32_s32(a.v[i]);
  return b;
}
inline Floats times_power_of_two(Floats a, Floats exponents) {
  SPX_QUARTERS(i) {
    const int32x4_t shifted = vshlq_n_s32(vcvtnq_s32_f32(exponents.v[i]), 23);
    a.v[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a.v[i]), shifted));
  }
  return a;
}
inline Floats first(int count, Floats a, Floats otherwise) {
  static const int32_t index[4] = {0, 1, 2, 3};
  SPX_QUARTERS(i) {
    const uint32x4_t chosen = vcgtq_s32(vdupq_n_s32(count - 4 * i), vld1q_s32(index));
    a.v[i] = vbslq_f32(chosen, a.v[i], otherwise.v[i]);
  }
  return a;
}
template <int STEP>
inline Floats swapped(Floats a) {  // lane i gets lane i ^ STEP
  if constexpr (STEP == 1) SPX_QUARTERS(i) a.v[i] = vrev64q_f32(a.v[i]);
  if constexpr (STEP == 2) SPX_QUARTERS(i) a.v[i] = vextq_f32(a.v[i], a.v[i], 2);
  if constexpr (STEP == 4) return {{a.v[1], a.v[0], a.v[3], a.v[2]}};
  if constexpr (STEP == 8) return {{a.v[2], a.v[3], a.v[0], a.v[1]}};
  return a;
}
// The sums of each quarter of a, in one vector.
inline float32x4_t quarter_sums(Floats a) {
  return vpaddq_f32(vpaddq_f32(a.v[0], a.v[1]), vpaddq_f32(a.v[2], a.v[3]));
}
inline float sum(Floats a) {
  const float32x4_t halves = vpaddq_f32(quarter_sums(a), quarter_sums(a));
  return vgetq_lane_f32(vpaddq_f32(halves, halves), 0);
}
inline float largest(Floats a) {
  const Floats b = max(a, swapped<4>(a)), c = max(b, swapped<8>(b));
  float four[4];
  vst1q_f32(four, c.v[0]);
  float most = four[0];
  for (int i = 1; i < 4; ++i) most = four[i] > most ? four[i] : most;
  return most;
}
inline Floats widen_bf16(const uint16_t* p) {
  Floats a;
  SPX_QUARTERS(i) a.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return a;
}
inline Floats widen_fp16(const uint16_t* p) {
  Floats a;
  SPX_QUARTERS(i) a.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return a;
}
inline void narrow_to_int8(int8_t* p, Floats a) {
  const Ints b = to_ints(a);
  const int16x8_t low = vcombine_s16(vmovn_s32(b.v[0]), vmovn_s32(b.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(b.v[2]), vmovn_s32(b.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

constexpr int PARTS = 4;
struct Sums {
  int32x4_t v;
};
struct Weights {
  int8x16_t value;
};
using Nibbles = Weights;
inline Sums start(int32_t) { return {vdupq_n_s32(0)}; }
inline Weights weights_of(const int8_t* p, int part) { return {vld1q_s8(p + 16 * part)}; }
inline Nibbles nibbles_of(const uint8_t* p, int part, bool high) {
  const uint8x16_t both = vld1q_u8(p + 16 * part);
  return {vreinterpretq_s8_u8(high ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15)))};
}
inline Sums add_products(Sums a, const Weights& w, const int8_t* x) {
  int32_t four;
  memcpy(&four, x, 4);
  const int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(four));
#ifdef __ARM_FEATURE_DOTPROD
  return {vdotq_s32(a.v, w.value, b)};
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w.value), vget_low_s8(b));
  const int16x8_t high = vmull_s8(vget_high_s8(w.value), vget_high_s8(b));
  return {vaddq_s32(a.v, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))};
#endif
}
inline Ints joined(const Sums (&a)[PARTS]) { return {{a[0].v, a[1].v, a[2].v, a[3].v}}; }
using BlockSums = Sums;  // of int4's products over one block

constexpr int INT_ROWS = 5, FLOAT_ROWS = 5, INT_SUMS = 5, FLOAT_SUMS = 5, VALUE_SUMS = 6, SCORE_ROWS = 2;

// Half of sixteen lanes, and the sums of four, each in the order of `sum`.
struct Piece {
  float32x4_t low, high;
};
using Fours = float32x4_t;
constexpr int PIECES = 2;
inline Piece load_piece(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline Piece load_piece(const uint16_t* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))), vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4)))};
}
inline Piece fma(Piece a, Piece b, Piece c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
inline Fours four_sums(const Piece (&a)[4]) {
  const float32x4_t left = vpaddq_f32(vpaddq_f32(a[0].low, a[0].high), vpaddq_f32(a[1].low, a[1].high));
  const float32x4_t right = vpaddq_f32(vpaddq_f32(a[2].low, a[2].high), vpaddq_f32(a[3].low, a[3].high));
  return vpaddq_f32(left, right);
}
inline void store_fours(float* p, const Fours (&a)[4]) { SPX_QUARTERS(i) vst1q_f32(p + 4 * i, a[i]); }
