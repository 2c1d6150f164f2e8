// What this library calls of ONNX Runtime's C API.
//
// The API is a table of functions that only grows: an entry keeps its place for ever. The places below are those of
// onnxruntime_c_api.h (version 17, of ONNX Runtime 1.17, which has them all), so no header is needed to build this, and
// the library loads in every newer version.
#pragma once
#include <cstddef>
#include <cstdint>

namespace specexport::ort {
constexpr uint32_t OLDEST = 1, VERSION = 17;

struct Status;
struct Value;
struct ShapeInfo;
struct KernelInfo;
struct KernelContext;
struct Domain;
struct SessionOptions;

enum Type : int { any = 0, float32 = 1, uint8 = 2, int8 = 3, int64 = 7, boolean = 9, float16 = 10, bfloat16 = 16 };
enum ErrorCode : int { fail = 1, invalid_argument = 2 };
enum Characteristic : int { required = 0, optional = 1 };

struct ApiBase {
  const void* const* (*get_api)(uint32_t version);
  const char* (*version)();
};

// Functions return null where they succeed.
class Api {
 public:
  Api(const ApiBase* base, uint32_t version) : table_(base->get_api(version)) {}
  bool usable() const { return table_ != nullptr; }

  Status* error(ErrorCode code, const char* text) const { return at<Status*(ErrorCode, const char*)>(0)(code, text); }
  void release(Status* s) const { at<void(Status*)>(93)(s); }
  Status* create_domain(const char* name, Domain** out) const { return at<Status*(const char*, Domain**)>(26)(name, out); }
  Status* add_operator(Domain* d, const void* op) const { return at<Status*(Domain*, const void*)>(27)(d, op); }
  Status* add_domain(SessionOptions* o, Domain* d) const { return at<Status*(SessionOptions*, Domain*)>(28)(o, d); }
  Status* data(const Value* v, void** out) const { return at<Status*(const Value*, void**)>(51)(v, out); }
  Status* shape_of(const Value* v, ShapeInfo** out) const { return at<Status*(const Value*, ShapeInfo**)>(65)(v, out); }
  Status* type(const ShapeInfo* s, Type* out) const { return at<Status*(const ShapeInfo*, Type*)>(60)(s, out); }
  Status* rank(const ShapeInfo* s, size_t* out) const { return at<Status*(const ShapeInfo*, size_t*)>(61)(s, out); }
  Status* sizes(const ShapeInfo* s, int64_t* out, size_t n) const {
    return at<Status*(const ShapeInfo*, int64_t*, size_t)>(62)(s, out, n);
  }
  void release(ShapeInfo* s) const { at<void(ShapeInfo*)>(99)(s); }
  Status* attribute(const KernelInfo* i, const char* name, float* out) const {
    return at<Status*(const KernelInfo*, const char*, float*)>(85)(i, name, out);
  }
  Status* attribute(const KernelInfo* i, const char* name, int64_t* out) const {
    return at<Status*(const KernelInfo*, const char*, int64_t*)>(86)(i, name, out);
  }
  Status* input(const KernelContext* c, size_t i, const Value** out) const {
    return at<Status*(const KernelContext*, size_t, const Value**)>(90)(c, i, out);
  }
  Status* output(KernelContext* c, size_t i, const int64_t* sizes, size_t rank, Value** out) const {
    return at<Status*(KernelContext*, size_t, const int64_t*, size_t, Value**)>(91)(c, i, sizes, rank, out);
  }
  Status* output_count(const KernelInfo* i, size_t* out) const { return at<Status*(const KernelInfo*, size_t*)>(231)(i, out); }
  Status* constant(const KernelInfo* i, size_t n, int* is_constant, const Value** out) const {
    return at<Status*(const KernelInfo*, size_t, int*, const Value**)>(249)(i, n, is_constant, out);
  }
  // On the session's own threads; returns when all is done. The function must not throw.
  Status* parallel(const KernelContext* c, void (*f)(void*, size_t), size_t count, void* data) const {
    return at<Status*(const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>(274)(c, f, count, 0, data);
  }

 private:
  template <class F>
  F* at(size_t place) const {
    return reinterpret_cast<F*>(const_cast<void*>(table_[place]));
  }
  const void* const* table_;
};

// An operator, in the layout of version 17.
struct CustomOp {
  uint32_t version;
  void* (*create)(const CustomOp*, const void*, const KernelInfo*);
  const char* (*name)(const CustomOp*);
  const char* (*provider)(const CustomOp*);
  Type (*input_type)(const CustomOp*, size_t);
  size_t (*input_count)(const CustomOp*);
  Type (*output_type)(const CustomOp*, size_t);
  size_t (*output_count)(const CustomOp*);
  void (*compute)(void*, KernelContext*);
  void (*destroy)(void*);
  Characteristic (*input_characteristic)(const CustomOp*, size_t);
  Characteristic (*output_characteristic)(const CustomOp*, size_t);
  int (*input_memory)(const CustomOp*, size_t);
  int (*variadic_input_min)(const CustomOp*);
  int (*variadic_input_same)(const CustomOp*);
  int (*variadic_output_min)(const CustomOp*);
  int (*variadic_output_same)(const CustomOp*);
  Status* (*create_checked)(const CustomOp*, const void*, const KernelInfo*, void**);
  Status* (*compute_checked)(void*, KernelContext*);
  Status* (*infer_shapes)(const CustomOp*, void*);
  int (*start_version)(const CustomOp*);
  int (*end_version)(const CustomOp*);
};
}  // namespace specexport::ort
