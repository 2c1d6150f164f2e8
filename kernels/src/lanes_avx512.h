// AVX-512 (F, BW, VL, DQ): sixteen floats in one register; VNNI's products where the compiler may use them.


struct Floats {
  __m512 v;
};
// Typed as what the sums' instruction returns: a variable that is both this and __m512i would take two registers.
#ifdef __AVX512VNNI__
typedef int IntLanes __attribute__((vector_size(64)));
#else
typedef unsigned IntLanes __attribute__((vector_size(64)));
#endif
struct Ints {
  IntLanes v;
};
inline __m512i bits(Ints a) { return reinterpret_cast<__m512i>(a.v); }
inline Ints ints(__m512i a) { return {reinterpret_cast<IntLanes>(a)}; }

inline Ints operator+(Ints a, Ints b) { return ints(_mm512_add_epi32(bits(a), bits(b))); }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline Floats all(float x) { return {_mm512_set1_ps(x)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats round(Floats a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Ints to_ints(Floats a) { return ints(_mm512_cvtps_epi32(a.v)); }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(bits(a))}; }
inline Floats times_power_of_two(Floats a, Floats exponents) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_cvtps_epi32(exponents.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), shifted))};
}
inline __mmask16 mask_of(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}
inline Floats first(int count, Floats a, Floats otherwise) {
  return {_mm512_mask_mov_ps(otherwise.v, mask_of(count), a.v)};
}
inline float sum(Floats a) {
  __m128 q = _mm512_castps512_ps128(a.v), r = _mm512_extractf32x4_ps(a.v, 1);
  __m128 s = _mm512_extractf32x4_ps(a.v, 2), t = _mm512_extractf32x4_ps(a.v, 3);
  const __m128 pairs = _mm_hadd_ps(_mm_hadd_ps(q, r), _mm_hadd_ps(s, t));  // one sum of each quarter
  const __m128 halves = _mm_hadd_ps(pairs, pairs);
  return _mm_cvtss_f32(_mm_hadd_ps(halves, halves));
}
inline float largest(Floats a) { return _mm512_reduce_max_ps(a.v); }
template <int STEP>
inline Floats swapped(Floats a) {  // lane i gets lane i ^ STEP
  if constexpr (STEP == 1) return {_mm512_permute_ps(a.v, 0xb1)};
  if constexpr (STEP == 2) return {_mm512_permute_ps(a.v, 0x4e)};
  if constexpr (STEP == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  if constexpr (STEP == 8) return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}
inline Floats widen_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline Floats widen_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void narrow_to_int8(int8_t* p, Floats a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

constexpr int PARTS = 1;
using Sums = Ints;
inline __m512i four_of(const int8_t* x) {
  int32_t four;
  memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}
#ifdef __AVX512VNNI__
// VNNI multiplies unsigned by signed: weights are shifted by 128, and the sum starts at -128 times the activations'.
struct Weights {
  __m512i shifted;
};
inline Sums start(int32_t sum_of_row) { return ints(_mm512_set1_epi32(-128 * sum_of_row)); }
inline Weights weights_of(const int8_t* p, int) {
  return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))};
}
inline Sums add_products(Sums a, const Weights& w, const int8_t* x) {
  return ints(_mm512_dpbusd_epi32(bits(a), w.shifted, four_of(x)));
}
#else
// |w| times a with the sign of w: both within 127, so that two products fit into 16 bits.
struct Weights {
  __m512i magnitude;
  __mmask64 negative;
};
inline Sums start(int32_t) { return ints(_mm512_setzero_si512()); }
inline Weights weights_of(const int8_t* p, int) {
  const __m512i w = _mm512_loadu_si512(p);
  return {_mm512_abs_epi8(w), _mm512_movepi8_mask(w)};
}
inline __m512i sums_of_pairs(__m512i words) { return _mm512_madd_epi16(words, _mm512_set1_epi16(1)); }
inline Sums add_products(Sums a, const Weights& w, const int8_t* x) {
  const __m512i four = four_of(x), with_sign = _mm512_mask_sub_epi8(four, w.negative, _mm512_setzero_si512(), four);
  return ints(_mm512_add_epi32(bits(a), sums_of_pairs(_mm512_maddubs_epi16(w.magnitude, with_sign))));
}
#endif
struct Nibbles {
  __m512i value;
};
inline Nibbles nibbles_of(const uint8_t* p, int, bool high) {
  const __m512i both = _mm512_loadu_si512(p);
  return {_mm512_and_si512(high ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15))};
}
inline Ints joined(const Sums (&a)[PARTS]) { return a[0]; }
#ifdef __AVX512VNNI__
using BlockSums = Sums;
inline BlockSums add_products(BlockSums a, const Nibbles& w, const int8_t* x) {
  return ints(_mm512_dpbusd_epi32(bits(a), w.value, four_of(x)));
}
#else
struct BlockSums {  // in 16 bits: a block adds sixteen products of at most 15 * 127 to each of them
  __m512i v;
};
inline BlockSums add_products(BlockSums a, const Nibbles& w, const int8_t* x) {
  return {_mm512_add_epi16(a.v, _mm512_maddubs_epi16(w.value, four_of(x)))};
}
inline Ints joined(const BlockSums (&a)[PARTS]) { return ints(sums_of_pairs(a[0].v)); }
#endif

constexpr int INT_ROWS = 8, FLOAT_ROWS = 8, INT_SUMS = 24, FLOAT_SUMS = 20, VALUE_SUMS = 24, SCORE_ROWS = 5;

// All sixteen lanes, and the sums of four, each in the order of `sum`: first of quarters, in which four sums fill the
// lanes, then of all when sixteen are stored.
using Piece = Floats;
using Fours = Floats;
constexpr int PIECES = 1;
inline Piece load_piece(const float* p) { return load(p); }
inline Piece load_piece(const uint16_t* p) { return widen_fp16(p); }
inline __m512 add_neighbours(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
inline __m512 add_quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
inline Fours four_sums(const Piece (&a)[4]) {
  return {add_neighbours(add_neighbours(a[0].v, a[1].v), add_neighbours(a[2].v, a[3].v))};
}
inline void store_fours(float* p, const Fours (&a)[4]) {
  _mm512_storeu_ps(p, add_quarters(add_quarters(a[0].v, a[1].v), add_quarters(a[2].v, a[3].v)));
}
