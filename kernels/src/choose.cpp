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
bool has_avx_vnni() {  // CPUID leaf 7, subleaf 1, EAX bit 4: older compilers do not know its name
  unsigned a = 7, b, c = 1, d;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return a >> 4 & 1;
}
#endif

// The best first.
size_t choices(Choice (&out)[6]) {
  size_t n = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool two = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool wide = two && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  out[n++] = {&avx512_vnni::kernels, wide && __builtin_cpu_supports("avx512vnni")};
  out[n++] = {&avx512::kernels, wide};
  out[n++] = {&avx_vnni::kernels, two && has_avx_vnni()};
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
