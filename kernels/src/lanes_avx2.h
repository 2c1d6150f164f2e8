// AVX2 with FMA and F16C: sixteen floats in two registers; the 256-bit VNNI where the compiler may use it.


struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};

inline Ints operator+(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats abs(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Floats round(Floats a) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
}
inline Ints to_ints(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline __m256 times_power_of_two(__m256 a, __m256 exponents) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_cvtps_epi32(exponents), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shifted));
}
inline Floats times_power_of_two(Floats a, Floats exponents) {
  return {times_power_of_two(a.low, exponents.low), times_power_of_two(a.high, exponents.high)};
}
inline Floats first(int count, Floats a, Floats otherwise) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), index));
  const __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), index));
  return {_mm256_blendv_ps(otherwise.low, a.low, low), _mm256_blendv_ps(otherwise.high, a.high, high)};
}
inline float sum(Floats a) {
  const __m256 neighbours = _mm256_hadd_ps(a.low, a.high);
  const __m256 fours = _mm256_hadd_ps(neighbours, neighbours);  // of low, of high, and again, in either half
  const __m128 eights = _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1));
  return _mm_cvtss_f32(_mm_add_ss(eights, _mm_movehdup_ps(eights)));
}
inline float largest(Floats a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
template <int STEP>
inline Floats swapped(Floats a) {  // lane i gets lane i ^ STEP
  if constexpr (STEP == 1) return {_mm256_permute_ps(a.low, 0xb1), _mm256_permute_ps(a.high, 0xb1)};
  if constexpr (STEP == 2) return {_mm256_permute_ps(a.low, 0x4e), _mm256_permute_ps(a.high, 0x4e)};
  if constexpr (STEP == 4) return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
  if constexpr (STEP == 8) return {a.high, a.low};
}
inline __m256 widen_bf16(__m128i eight) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}
inline Floats widen_bf16(const uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Floats widen_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void narrow_to_int8(int8_t* p, Floats a) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

constexpr int PARTS = 2;
struct Sums {
  __m256i v;
};
inline __m256i four_of(const int8_t* x) {
  int32_t four;
  memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}
inline __m256i bytes_at(const void* p, int part) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + part);
}
#ifdef __AVXVNNI__
// VNNI multiplies unsigned by signed: weights are shifted by 128, and the sum starts at -128 times the activations'.
struct Weights {
  __m256i shifted;
};
inline Sums start(int32_t sum_of_row) { return {_mm256_set1_epi32(-128 * sum_of_row)}; }
inline Weights weights_of(const int8_t* p, int part) {
  return {_mm256_xor_si256(bytes_at(p, part), _mm256_set1_epi8(-128))};
}
inline Sums add_products(Sums a, const Weights& w, const int8_t* x) {
  return {_mm256_dpbusd_avx_epi32(a.v, w.shifted, four_of(x))};
}
#else
inline __m256i sums_of_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }
// |w| times a with the sign of w: both within 127, so that two products fit into 16 bits.
struct Weights {
  __m256i value, magnitude;
};
inline Sums start(int32_t) { return {_mm256_setzero_si256()}; }
inline Weights weights_of(const int8_t* p, int part) {
  const __m256i w = bytes_at(p, part);
  return {w, _mm256_abs_epi8(w)};
}
inline Sums add_products(Sums a, const Weights& w, const int8_t* x) {
  const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(four_of(x), w.value));
  return {_mm256_add_epi32(a.v, sums_of_pairs(pairs))};
}
#endif
struct Nibbles {
  __m256i value;
};
inline Nibbles nibbles_of(const uint8_t* p, int part, bool high) {
  const __m256i both = bytes_at(p, part);
  return {_mm256_and_si256(high ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15))};
}
inline Ints joined(const Sums (&a)[PARTS]) { return {a[0].v, a[1].v}; }
#ifdef __AVXVNNI__
using BlockSums = Sums;
inline BlockSums add_products(BlockSums a, const Nibbles& w, const int8_t* x) {
  return {_mm256_dpbusd_avx_epi32(a.v, w.value, four_of(x))};
}
#else
struct BlockSums {  // in 16 bits: a block adds sixteen products of at most 15 * 127 to each of them
  __m256i v;
};
inline BlockSums add_products(BlockSums a, const Nibbles& w, const int8_t* x) {
  return {_mm256_add_epi16(a.v, _mm256_maddubs_epi16(w.value, four_of(x)))};
}
inline Ints joined(const BlockSums (&a)[PARTS]) { return {sums_of_pairs(a[0].v), sums_of_pairs(a[1].v)}; }
#endif

constexpr int INT_ROWS = 5, FLOAT_ROWS = 6, INT_SUMS = 4, FLOAT_SUMS = 5, VALUE_SUMS = 6, SCORE_ROWS = 3;

// Half of sixteen lanes, and the sums of four, each in the order of `sum`.
using Piece = __m256;
using Fours = __m128;
constexpr int PIECES = 2;
inline Piece load_piece(const float* p) { return _mm256_loadu_ps(p); }
inline Piece load_piece(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Piece fma(Piece a, Piece b, Piece c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256 add_neighbours(__m256 a, __m256 b) {  // faster than vhaddps
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
inline Fours four_sums(const Piece (&a)[4]) {
  const __m256 halves = add_neighbours(add_neighbours(a[0], a[1]), add_neighbours(a[2], a[3]));
  return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}
inline void store_fours(float* p, const Fours (&a)[4]) {
  for (int i = 0; i < 4; ++i) _mm_storeu_ps(p + 4 * i, a[i]);
}
