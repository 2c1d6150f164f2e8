// What ONNX Runtime calls when a session registers this library.
#include <mutex>

#include "attend.h"
#include "linear.h"

namespace specexport {
const ort::Api* api = nullptr;
const Kernels* kernels = nullptr;

namespace {
ort::Status* make_domain(ort::Domain** domain) {
  using namespace ort;
  constexpr Type f = float32;
#define SPX_LINEAR(label, format, type) \
  static const Operator<Linear<format, type>> label("Linear" #label, {f, type, f, f, f, f}, 2, 2, 1)
#define SPX_EMBEDDING(label, format, type) \
  static const Operator<Embedding<format, type>> table_##label("Embedding" #label, {int64, type, f}, 2, 1, 1)
  SPX_LINEAR(Int8, Format::int8, int8);
  SPX_LINEAR(Int4, Format::int4, uint8);
  SPX_LINEAR(BFloat16, Format::bf16, bfloat16);
  SPX_LINEAR(Float16, Format::fp16, float16);
  SPX_LINEAR(Float, Format::fp32, float32);
  SPX_EMBEDDING(Int8, Format::int8, int8);
  SPX_EMBEDDING(Int4, Format::int4, uint8);
  SPX_EMBEDDING(BFloat16, Format::bf16, bfloat16);
  SPX_EMBEDDING(Float16, Format::fp16, float16);
  SPX_EMBEDDING(Float, Format::fp32, float32);
  static const Operator<Attention<float32>> attention("Attention", {f, f, f, int64, f, f, f, f, f, boolean}, 4, 3, 1);
  constexpr Type h = float16;
  static const Operator<Attention<h>> half("AttentionHalf", {f, h, h, int64, f, f, f, f, f, boolean}, 4, 3, 1, h);
  static const CustomOp* const operators[] = {&Int8,       &Int4,       &BFloat16,       &Float16,       &Float,
                                              &table_Int8, &table_Int4, &table_BFloat16, &table_Float16, &table_Float,
                                              &attention,  &half};
  if (Status* status = api->create_domain("specexport", domain)) return status;
  for (const CustomOp* op : operators)
    if (Status* status = api->add_operator(*domain, op)) return status;
  return nullptr;
}
}  // namespace
}  // namespace specexport

extern "C" __attribute__((visibility("default"))) specexport::ort::Status* RegisterCustomOps(
    specexport::ort::SessionOptions* options, const specexport::ort::ApiBase* base) {
  using namespace specexport;
  static std::mutex mutex;
  static ort::Domain* domain = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!domain) {
    const ort::Api asked(base, ort::VERSION);
    if (!asked.usable())
      return ort::Api(base, ort::OLDEST).error(ort::fail, "specexport: ONNX Runtime is older than 1.17, which is needed");
    static const ort::Api table = asked;
    api = &table;
    const char* why_not = nullptr;
    kernels = kernels_of_this_host(&why_not);
    if (!kernels) return api->error(ort::fail, why_not);
    if (ort::Status* status = make_domain(&domain)) {
      domain = nullptr;
      return status;
    }
  }
  return api->add_domain(options, domain);
}

// The name of the instruction set that this host runs, or null.
extern "C" __attribute__((visibility("default"))) const char* specexport_kernels_set() {
  const char* why_not = nullptr;
  const specexport::Kernels* best = specexport::kernels_of_this_host(&why_not);
  return best ? best->name : nullptr;
}
