// What the operators share: tensors that are checked, errors of one line, scratch memory, the session's threads.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <type_traits>

#include "kernels.h"
#include "onnxruntime_api.h"

namespace specexport {
struct Error {
  const char* text;
};
inline void require(bool holds, const char* text) {
  if (!holds) throw Error{text};
}
// Set by `RegisterCustomOps` before any operator exists.
extern const ort::Api* api;
inline void check(ort::Status* status) {
  if (status) {
    api->release(status);
    throw Error{"ONNX Runtime refused a call"};
  }
}

struct Tensor {
  void* data = nullptr;
  int rank = 0;
  int64_t sizes[8] = {};

  explicit operator bool() const { return data != nullptr; }
  template <class T>
  T* as() const { return static_cast<T*>(data); }
  bool has(std::initializer_list<int64_t> expected) const {
    if (rank != static_cast<int>(expected.size())) return false;
    int i = 0;
    for (int64_t size : expected)
      if (sizes[i++] != size) return false;
    return true;
  }
};
// How many rows or tokens the first `dimensions` hold.
inline int64_t count_of(const Tensor& t, int dimensions) {
  int64_t count = 1;
  for (int i = 0; i < dimensions; ++i)
    require(!__builtin_mul_overflow(count, t.sizes[i], &count) && count <= INT32_MAX, "the input is too large");
  return count;
}
inline Tensor tensor_of(const ort::Value* value, ort::Type type) {
  Tensor t;
  if (!value) return t;
  ort::ShapeInfo* info = nullptr;
  check(api->shape_of(value, &info));
  size_t rank = 0;
  ort::Type found = ort::any;
  ort::Status* status = api->rank(info, &rank);
  if (!status) status = api->type(info, &found);
  if (!status && rank <= 8) status = api->sizes(info, t.sizes, rank);
  api->release(info);
  check(status);
  require(rank <= 8, "a tensor has more than 8 dimensions");
  require(found == type, "a tensor has another type than the operator's");
  t.rank = static_cast<int>(rank);
  check(api->data(value, &t.data));
  static char nothing;
  if (!t.data) t.data = &nothing;  // an empty tensor may have no memory
  return t;
}
// known: a constant, which was looked at once; or none.
inline Tensor input(const ort::KernelContext* c, size_t i, ort::Type type = ort::float32, const Tensor& known = {}) {
  if (known) return known;
  const ort::Value* value = nullptr;
  check(api->input(c, i, &value));
  return tensor_of(value, type);
}
inline Tensor needed(const ort::KernelContext* c, size_t i, ort::Type type = ort::float32, const Tensor& known = {}) {
  const Tensor t = input(c, i, type, known);
  require(bool(t), "an input is absent that is needed");
  return t;
}
// Of an operator that is made: a constant input, or none.
inline Tensor constant(const ort::KernelInfo* info, size_t i, ort::Type type = ort::float32) {
  int is_constant = 0;
  const ort::Value* value = nullptr;
  check(api->constant(info, i, &is_constant, &value));
  return tensor_of(is_constant ? value : nullptr, type);
}
inline Tensor output(ort::KernelContext* c, size_t i, const Tensor& like, ort::Type type = ort::float32) {
  ort::Value* value = nullptr;
  check(api->output(c, i, like.sizes, static_cast<size_t>(like.rank), &value));
  return tensor_of(value, type);
}
template <class T>
T attribute(const ort::KernelInfo* info, const char* name, T otherwise) {
  T value;
  if (ort::Status* status = api->attribute(info, name, &value)) {
    api->release(status);
    return otherwise;
  }
  return value;
}

// Calls each(0) to each(count - 1) on the session's threads. ONNX Runtime's pool must not see an exception: the only one
// that a task throws, of memory, is thrown again when all are done.
template <class F>
void parallel(const ort::KernelContext* c, size_t count, F&& each) {
  if (count == 1) return each(size_t{0});
  struct Shared {
    std::remove_reference_t<F>* each;
    std::atomic<bool> out_of_memory{false};
  } shared{&each};
  auto call = [](void* data, size_t i) {
    auto* its = static_cast<Shared*>(data);
    try {
      (*its->each)(i);
    } catch (const std::bad_alloc&) {
      its->out_of_memory = true;
    }
  };
  check(api->parallel(c, call, count, &shared));
  if (shared.out_of_memory) throw std::bad_alloc();
}

// Memory of one thread that is kept for its next call. It grows to the largest call, and no further.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }
  char* get(size_t bytes) {
    if (bytes > size_) {
      std::free(memory_);
      size_ = (bytes + 4095) / 4096 * 4096;
      memory_ = static_cast<char*>(std::aligned_alloc(64, size_));
      if (!memory_) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return memory_;
  }

 private:
  char* memory_ = nullptr;
  size_t size_ = 0;
};
inline size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// An operator of the domain `specexport`: K has K(const KernelInfo*) and compute(KernelContext*); both may throw.
template <class K>
struct Operator : ort::CustomOp {
  const char* label;
  ort::Type types[12];
  size_t inputs, needed_inputs, outputs, needed_outputs;
  ort::Type other_outputs;  // the first is float32

  Operator(const char* name_, std::initializer_list<ort::Type> types_, size_t needed, size_t outputs_,
           size_t needed_out, ort::Type others = ort::float32)
      : ort::CustomOp{}, label(name_), inputs(types_.size()), needed_inputs(needed), outputs(outputs_),
        needed_outputs(needed_out), other_outputs(others) {
    size_t n = 0;
    for (ort::Type t : types_) types[n++] = t;
    using Op = const ort::CustomOp*;
    version = ort::VERSION;
    name = [](Op o) { return self(o)->label; };
    provider = [](Op) -> const char* { return nullptr; };
    input_type = [](Op o, size_t i) { return self(o)->types[i]; };
    input_count = [](Op o) { return self(o)->inputs; };
    output_type = [](Op o, size_t i) { return i == 0 ? ort::float32 : self(o)->other_outputs; };
    output_count = [](Op o) { return self(o)->outputs; };
    destroy = [](void* k) { delete static_cast<K*>(k); };
    input_characteristic = [](Op o, size_t i) { return i < self(o)->needed_inputs ? ort::required : ort::optional; };
    output_characteristic = [](Op o, size_t i) { return i < self(o)->needed_outputs ? ort::required : ort::optional; };
    input_memory = [](Op, size_t) { return 0; };
    variadic_input_min = variadic_input_same = variadic_output_min = variadic_output_same = [](Op) { return 0; };
    create_checked = [](Op o, const void*, const ort::KernelInfo* info, void** kernel) {
      return guarded(self(o)->label, [&] { *kernel = new K(info); });
    };
    compute_checked = [](void* k, ort::KernelContext* c) {
      return guarded(K::NAME, [&] { static_cast<K*>(k)->compute(c); });
    };
    start_version = [](Op) { return 1; };
    end_version = [](Op) { return 1; };
  }

 private:
  static const Operator* self(const ort::CustomOp* op) { return static_cast<const Operator*>(op); }
  template <class F>
  static ort::Status* guarded(const char* who, F&& body) {
    try {
      body();
      return nullptr;
    } catch (const Error& error) {
      return failed(who, error.text, ort::invalid_argument);
    } catch (const std::bad_alloc&) {
      return failed(who, "out of memory", ort::fail);
    }
  }
  static ort::Status* failed(const char* who, const char* what, ort::ErrorCode code) {
    char line[200];
    std::snprintf(line, sizeof line, "specexport.%s: %s", who, what);
    return api->error(code, line);
  }
};
}  // namespace specexport
