// Linear<Format>: [norm of x + skip | Hadamard turn], rounding to int8 (int8, int4), product, bias, [gate].
//
//   inputs   x [..., inputs], weights and scales (`Product`), bias [outputs], gain [inputs], skip [..., inputs]
//   outputs  y [..., outputs], or [..., outputs / 2] with a gate; x + skip [..., inputs]
//   attributes  num_outputs, epsilon, hadamard (0, or the size of its blocks), gate (0, 1 silu, 2 gelu_tanh)
//
// Embedding<Format>: rows of a table in the same layout: ids [...], weights, scales -> [..., inputs]; attributes
// num_inputs and num_outputs: how many rows it has (absent: as many as fit into its panels).
#pragma once
#include "operators.h"
#include "pages.h"

namespace specexport {
extern const Kernels* kernels;

struct LinearSettings {
  int64_t outputs, hadamard;
  Gate gate;
  float epsilon;
  bool gives_total;
  Tensor constants[5];   // weights, scales, bias and gain, where they are: they are looked at once
  Copy weights, scales;  // of constants, or null
  LinearSettings(const ort::KernelInfo* info, ort::Type type);
};
void multiply_rows(const LinearSettings& settings, Format format, ort::Type type, ort::KernelContext* c);
void look_up_rows(int64_t inputs, int64_t outputs, Format format, ort::Type type, ort::KernelContext* c);

template <Format F, ort::Type T>
struct Linear : LinearSettings {
  static constexpr const char* NAME = "Linear";
  explicit Linear(const ort::KernelInfo* info) : LinearSettings(info, T) {}
  void compute(ort::KernelContext* c) { multiply_rows(*this, F, T, c); }
};
template <Format F, ort::Type T>
struct Embedding {
  static constexpr const char* NAME = "Embedding";
  int64_t inputs, outputs;
  explicit Embedding(const ort::KernelInfo* info)
      : inputs(attribute<int64_t>(info, "num_inputs", 0)), outputs(attribute<int64_t>(info, "num_outputs", 0)) {}
  void compute(ort::KernelContext* c) { look_up_rows(inputs, outputs, F, T, c); }
};
}  // namespace specexport
