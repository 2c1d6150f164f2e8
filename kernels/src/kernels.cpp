// Compiled once for each instruction set, with its flags.
#include "kernels.h"

#include "attention.h"
#include "products.h"

#define SPX_TEXT(x) SPX_TEXT_OF(x)
#define SPX_TEXT_OF(x) #x

namespace specexport::SPX_SET {
static void prepare(const float* x, const float* skip, const float* gain, float epsilon, int block, int size,
                    float* total, float* y) {
  memset(y + size / 16 * 16, 0, static_cast<size_t>(padded(size) - size / 16 * 16) * sizeof(float));
  if (gain) rms_norm(x, skip, gain, epsilon, size, total, y);
  else memcpy(y, x, static_cast<size_t>(size) * sizeof(float));
  if (block) hadamard(y, size, block);
}

static uint16_t half_of(float x) {  // rounded to nearest, halves to even; too large is infinite
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // a denormal: in units of 2^-24
    float y;
    memcpy(&y, &magnitude, 4);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(__builtin_rintf(y * 0x1p24f)));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
static void to_half(const float* x, int size, uint16_t* y) {
  for (int i = 0; i < size; ++i) y[i] = half_of(x[i]);
}

extern const Kernels kernels;
const Kernels kernels = {SPX_TEXT(SPX_SET), prepare, round_row, multiply, rotate, to_half, attend, merge, finish, look_up};
}  // namespace specexport::SPX_SET
