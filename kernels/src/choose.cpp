// Which instruction set this host runs.
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace specexport {
#define SPX_DECLARE(set)        \
  namespace set {               \
  extern const Kernels kernels; \
  }
SPX_DECLARE(portable)
#if defined(__x86_64__)
SPX_DECLARE(avx2)
SPX_DECLARE(avx_vnni)
SPX_DECLARE(avx512)
SPX_DECLARE(avx512_vnni)
#elif defined(__aarch64__)
SPX_DECLARE(neon)
SPX_DECLARE(neon_dot)
#endif

namespace {
struct Choice {
  const Kernels* kernels;
  bool runs_here;
};

#if defined(__x86_64__)
// From the processor itself: what `__builtin_cpu_supports` calls finds nothing where zig has linked.
struct Cpuid {
  unsigned a, b = 0, c, d = 0;
  Cpuid(unsigned leaf, unsigned subleaf) : a(leaf), c(subleaf) {
    __asm__("cpuid" : "+a"(a), "+b"(b), "+c"(c), "+d"(d));
  }
};

constexpr bool has(unsigned word, unsigned bits) { return (word & bits) == bits; }

unsigned saved_registers() {  // those that the system keeps for each thread
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}
#endif

// The best first.
size_t choices(Choice (&out)[6]) {
  size_t n = 0;
#if defined(__x86_64__)
  const unsigned leaves = Cpuid(0, 0).a, one = Cpuid(1, 0).c;
  const bool avx = leaves >= 7 && has(one, 1u << 12 | 1u << 27 | 1u << 29) && has(saved_registers(), 0x6);  // FMA, F16C
  const Cpuid seven(7, 0);
  const bool two = avx && has(seven.b, 1u << 5);  // AVX2
  const bool wide = two && has(saved_registers(), 0xe6) && has(seven.b, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31);
  out[n++] = {&avx512_vnni::kernels, wide && has(seven.c, 1u << 11)};
  out[n++] = {&avx512::kernels, wide};  // F, DQ, BW, VL
  out[n++] = {&avx_vnni::kernels, two && seven.a >= 1 && has(Cpuid(7, 1).a, 1u << 4)};
  out[n++] = {&avx2::kernels, two};
#elif defined(__aarch64__)
  constexpr unsigned long dot_products = 1ul << 20;  // HWCAP_ASIMDDP
  out[n++] = {&neon_dot::kernels, (getauxval(AT_HWCAP) & dot_products) != 0};
  out[n++] = {&neon::kernels, true};
#endif
  out[n++] = {&portable::kernels, true};
  return n;
}
}  // namespace

const Kernels* kernels_of_this_host(const char** why_not) {
  Choice all[6];
  const size_t count = choices(all);
  const char* wanted = std::getenv("SPECEXPORT_KERNELS");
  for (size_t i = 0; i < count; ++i) {
    if (wanted && *wanted && std::strcmp(wanted, all[i].kernels->name) != 0) continue;
    if (all[i].runs_here) return all[i].kernels;
    if (wanted && *wanted) {
      *why_not = "SPECEXPORT_KERNELS names an instruction set that this processor lacks";
      return nullptr;
    }
  }
  *why_not = "SPECEXPORT_KERNELS names an instruction set that is not known; unset it";
  return nullptr;
}
}  // namespace specexport
