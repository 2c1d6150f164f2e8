// The operators Linear<Format> and Embedding<Format>: products with packed weights, and the rows of a packed table.
#include "linear.h"

#include <algorithm>

namespace specexport {
namespace {
constexpr int MOST_INPUTS = 1 << 17;  // whose products of int8 do not overflow
constexpr int ROWS_A_TASK = 80; // of them in one task: whole tiles, whose int8 rows stay in the second-level cache
constexpr int TASKS = 32;       // of a narrow product

bool integers(Format format) { return format == Format::int8 || format == Format::int4; }

// Checks the weights' shape, of a product from `inputs` to `outputs`.
void check_weights(Format format, const Tensor& weights, const Tensor& scales, int64_t inputs, int64_t outputs) {
  const int64_t panels = (outputs + PANEL - 1) / PANEL, blocks = (inputs + BLOCK - 1) / BLOCK;
  switch (format) {
    case Format::int8:
      require(weights.has({panels, (inputs + 3) / 4, PANEL, 4}), "weights are not [outputs / 16, inputs / 4, 16, 4]");
      require(scales && scales.has({outputs}), "scales are not [outputs]");
      break;
    case Format::int4:
      require(weights.has({panels, blocks, 4, PANEL * 4}), "weights are not [outputs / 16, inputs / 32, 4, 64]");
      require(scales && scales.has({panels, blocks, PANEL}), "scales are not [outputs / 16, inputs / 32, 16]");
      break;
    default:
      require(weights.has({panels, inputs, PANEL}), "weights are not [outputs / 16, inputs, 16]");
      require(!scales, "weights in floats have no scales");
  }
}
// The copy of a constant, of null if it is none.
Copy copy_of(const Tensor& t, ort::Type type) {
  size_t bytes = type == ort::float32 ? 4 : type == ort::float16 || type == ort::bfloat16 ? 2 : 1;
  for (int i = 0; i < t.rank; ++i) bytes *= static_cast<size_t>(t.sizes[i]);
  return Copy(t.data, bytes);
}
}  // namespace

LinearSettings::LinearSettings(const ort::KernelInfo* info, ort::Type type)
    : outputs(attribute<int64_t>(info, "num_outputs", 0)),
      hadamard(attribute<int64_t>(info, "hadamard", 0)),
      gate(static_cast<Gate>(attribute<int64_t>(info, "gate", 0))),
      epsilon(attribute<float>(info, "epsilon", 0.0f)),
      constants{{}, constant(info, 1, type), constant(info, 2), constant(info, 3), constant(info, 4)},
      weights(copy_of(constants[1], type)),
      scales(copy_of(constants[2], ort::float32)) {
  size_t count = 0;
  check(api->output_count(info, &count));
  gives_total = count > 1;
  require(outputs > 0 && outputs < INT32_MAX / 2, "the attribute `num_outputs` is not a number of outputs");
  require(gate == Gate::none || gate == Gate::silu || gate == Gate::gelu_tanh, "the attribute `gate` is not known");
  require(gate == Gate::none || outputs % (2 * PANEL) == 0, "a gate needs a multiple of 32 outputs");
  require(hadamard == 0 || (hadamard >= 16 && hadamard <= 4096 && (hadamard & (hadamard - 1)) == 0),
          "the attribute `hadamard` is not a power of two from 16 to 4096");
}

void multiply_rows(const LinearSettings& settings, Format format, ort::Type type, ort::KernelContext* c) {
  const auto& known = settings.constants;
  const Tensor x = needed(c, 0), weights = needed(c, 1, type, known[1]), skip = input(c, 5);
  const Tensor scales = input(c, 2, ort::float32, known[2]), bias = input(c, 3, ort::float32, known[3]);
  const Tensor gain = input(c, 4, ort::float32, known[4]);
  require(x.rank >= 1, "the input has no dimensions");
  const int64_t inputs64 = x.sizes[x.rank - 1], rows64 = count_of(x, x.rank - 1);
  require(inputs64 > 0 && inputs64 <= MOST_INPUTS, "the input's last dimension is not within 1 to 2^17");
  require(rows64 <= INT32_MAX / inputs64, "the input is too large");
  check_weights(format, weights, scales, inputs64, settings.outputs);
  require(!bias || bias.has({settings.outputs}), "bias is not [outputs]");
  require(!gain || gain.has({inputs64}), "gain is not [inputs]");
  require(!skip || (gain && std::equal(skip.sizes, skip.sizes + 8, x.sizes) && skip.rank == x.rank),
          "skip is not of the input's shape, or there is no gain");
  require(!settings.gives_total || gain, "there is no sum without a norm");
  require(settings.hadamard == 0 || inputs64 % settings.hadamard == 0, "inputs are no whole number of Hadamard blocks");

  const int inputs = static_cast<int>(inputs64), rows = static_cast<int>(rows64);
  const bool is_gated = settings.gate != Gate::none;
  const Product product{format, inputs, static_cast<int>(settings.outputs),
                        settings.weights.data ? settings.weights.data : weights.data,
                        settings.scales.data ? static_cast<const float*>(settings.scales.data) : scales.as<float>(), bias ? bias.as<float>() : nullptr, settings.gate};
  Tensor shape = x;
  float* total = settings.gives_total ? output(c, 1, shape).as<float>() : nullptr;
  shape.sizes[shape.rank - 1] = is_gated ? settings.outputs / 2 : settings.outputs;
  float* y = output(c, 0, shape).as<float>();
  if (rows == 0) return;

  const size_t stride = static_cast<size_t>(padded(inputs)), count = static_cast<size_t>(rows);
  const bool as_they_are = !integers(format) && !gain && !settings.hadamard && stride == static_cast<size_t>(inputs);
  static thread_local Scratch scratch;
  const size_t values = as_they_are ? 0 : aligned(count * stride * (integers(format) ? 1 : sizeof(float)));
  const size_t offsets_bytes = aligned(count * stride / BLOCK * sizeof(float));
  char* memory = scratch.get(values + offsets_bytes + count * sizeof(Row));
  auto* q = reinterpret_cast<int8_t*>(memory);
  auto* floats = reinterpret_cast<float*>(memory);
  auto* offsets = reinterpret_cast<float*>(memory + values);
  auto* scale_of = reinterpret_cast<Row*>(memory + values + offsets_bytes);

  auto prepare = [&](size_t r) {
    const size_t at = r * static_cast<size_t>(inputs);
    static thread_local Scratch own;
    float* row = integers(format) ? reinterpret_cast<float*>(own.get(stride * sizeof(float))) : floats + r * stride;
    kernels->prepare(x.as<float>() + at, skip ? skip.as<float>() + at : nullptr, gain ? gain.as<float>() : nullptr,
                     settings.epsilon, static_cast<int>(settings.hadamard), inputs, total ? total + at : nullptr, row);
    if (integers(format)) kernels->round_row(row, inputs, q + r * stride,
                                              format == Format::int4 ? offsets + r * stride / BLOCK : nullptr, scale_of + r);
  };
  if (!as_they_are) {
    if (rows < 4) for (size_t r = 0; r < count; ++r) prepare(r);
    else {
      const size_t each = rows < WIDE ? 1 : 8;
      parallel(c, (count + each - 1) / each, [&](size_t i) {
        for (size_t r = i * each; r < std::min(count, (i + 1) * each); ++r) prepare(r);
      });
    }
  }

  const void* prepared = as_they_are ? x.data : memory;
  const int panels = (static_cast<int>(settings.outputs) / (is_gated ? 2 : 1) + PANEL - 1) / PANEL;
  const size_t width = static_cast<size_t>(shape.sizes[shape.rank - 1]);
  if (rows < WIDE) {
    const int each = integers(format) ? 1 : 4, parts = (panels + each - 1) / each, tasks = std::min(parts, TASKS);
    parallel(c, static_cast<size_t>(tasks), [&](size_t i) {
      const int from = static_cast<int>(static_cast<int64_t>(parts) * static_cast<int64_t>(i) / tasks) * each;
      const int to = static_cast<int>(static_cast<int64_t>(parts) * static_cast<int64_t>(i + 1) / tasks) * each;
      kernels->multiply(product, prepared, scale_of, offsets, rows, from, std::min(to, panels), y);
    });
  } else {
    const size_t quads = static_cast<size_t>((panels + 3) / 4);
    const size_t parts = (count + ROWS_A_TASK - 1) / ROWS_A_TASK;
    parallel(c, quads * parts, [&](size_t i) {
      const size_t begin = i / quads * ROWS_A_TASK, n = std::min<size_t>(ROWS_A_TASK, count - begin);
      const int from = static_cast<int>(i % quads) * 4, to = std::min(from + 4, panels);
      const size_t at = begin * stride * (integers(format) ? 1 : sizeof(float));
      kernels->multiply(product, static_cast<const char*>(prepared) + at, scale_of + begin, offsets + begin * stride / BLOCK,
                        static_cast<int>(n), from, to, y + begin * width);
    });
  }
}

void look_up_rows(int64_t inputs, int64_t outputs, Format format, ort::Type type, ort::KernelContext* c) {
  const Tensor ids = needed(c, 0, ort::int64), weights = needed(c, 1, type), scales = input(c, 2);
  require(weights.rank >= 3 && weights.sizes[0] > 0 && weights.sizes[0] < INT32_MAX / PANEL, "the table is empty");
  if (!outputs) outputs = format == Format::int8 && scales && scales.rank == 1 ? scales.sizes[0] : weights.sizes[0] * PANEL;
  require(inputs > 0 && inputs <= MOST_INPUTS, "the attribute `num_inputs` is not within 1 to 2^17");
  check_weights(format, weights, scales, inputs, outputs);
  const int64_t count = count_of(ids, ids.rank);
  for (int64_t i = 0; i < count; ++i)
    require(ids.as<int64_t>()[i] >= 0 && ids.as<int64_t>()[i] < outputs, "a token is not in the table");
  require(ids.rank < 8, "the tokens have too many dimensions");
  Tensor shape = ids;
  shape.sizes[shape.rank++] = inputs;
  float* y = output(c, 0, shape).as<float>();
  const Product table{format, static_cast<int>(inputs), static_cast<int>(outputs), weights.data,
                      scales ? scales.as<float>() : nullptr, nullptr, Gate::none};
  for (int64_t i = 0; i < count; ++i) kernels->look_up(table, static_cast<int>(ids.as<int64_t>()[i]), y + i * inputs);
}
}  // namespace specexport
