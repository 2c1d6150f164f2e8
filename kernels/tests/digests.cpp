// Prints one line for each case: its name and a digest of the bits of its results, by the instruction set that
// SPECEXPORT_KERNELS names. Lines are the same on every host and with every set.
#include <cstdio>
#include <vector>

#include "../src/kernels.h"

using namespace specexport;

namespace {
struct Random {  // xorshift: the same numbers everywhere
  uint64_t state = 88172645463325252ull;
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<uint32_t>(state >> 32);
  }
  float uniform() { return static_cast<float>(static_cast<int32_t>(next())) * 0x1p-31f; }
  std::vector<float> floats(size_t n) {
    std::vector<float> out(n);
    for (float& x : out) x = uniform();
    return out;
  }
};

void print(const char* name, int a, int b, int c, const void* data, size_t bytes) {
  uint64_t hash = 14695981039346656037ull;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
  std::printf("%s %d %d %d %016llx\n", name, a, b, c, static_cast<unsigned long long>(hash));
}

void products(const Kernels* k, int inputs, int outputs, int rows, Gate gate) {
  Random random;
  random.state += static_cast<uint64_t>(inputs * 31 + outputs);
  const size_t stride = static_cast<size_t>(padded(inputs)), count = static_cast<size_t>(rows);
  const std::vector<float> x = random.floats(count * static_cast<size_t>(inputs)), skip = random.floats(x.size());
  const std::vector<float> gain = random.floats(static_cast<size_t>(inputs));
  std::vector<float> prepared(count * stride), total(x.size());
  std::vector<int8_t> q(count * stride);
  std::vector<float> offsets(count * stride / BLOCK);
  std::vector<Row> scales(count);
  for (size_t r = 0; r < count; ++r) {
    const size_t at = r * static_cast<size_t>(inputs);
    k->prepare(&x[at], &skip[at], gain.data(), 1e-5f, inputs % 32 ? 0 : 32, inputs, &total[at], &prepared[r * stride]);
    k->round_row(&prepared[r * stride], inputs, &q[r * stride], &offsets[r * stride / BLOCK], &scales[r]);
  }
  print("prepared", inputs, rows, 0, prepared.data(), prepared.size() * 4);
  print("rounded", inputs, rows, 0, q.data(), q.size());
  const size_t panels = static_cast<size_t>(outputs + PANEL - 1) / PANEL;
  const std::vector<float> bias = random.floats(static_cast<size_t>(outputs));
  const size_t width = static_cast<size_t>(gate == Gate::none ? outputs : outputs / 2);
  std::vector<float> y(count * width);
  for (Format format : {Format::int8, Format::int4, Format::bf16, Format::fp16, Format::fp32}) {
    const bool integers = format == Format::int8 || format == Format::int4;
    const size_t blocks = stride / BLOCK;
    std::vector<uint8_t> weights(panels * PANEL * stride * 4);
    for (uint8_t& w : weights) w = static_cast<uint8_t>(random.next());
    if (format == Format::int8)
      for (uint8_t& w : weights) w = w == 128 ? 127 : w;
    if (const size_t bytes = format == Format::fp32 ? 4 : 2; !integers)  // finite, denormals among them
      for (size_t i = bytes - 1; i < weights.size(); i += bytes) weights[i] = weights[i] & 0xbb;
    const std::vector<float> weight_scales = random.floats(panels * PANEL * blocks);
    const Product product{format, inputs, outputs, weights.data(), integers ? weight_scales.data() : nullptr, bias.data(),
                          gate};
    const void* in = integers ? static_cast<const void*>(q.data()) : prepared.data();
    const int last = static_cast<int>(gate == Gate::none ? panels : panels / 2);
    k->multiply(product, in, scales.data(), offsets.data(), rows, 0, last / 2, y.data());
    k->multiply(product, in, scales.data(), offsets.data(), rows, last / 2, last, y.data());
    print("product", static_cast<int>(format), inputs, outputs, y.data(), y.size() * 4);
    std::vector<float> row(static_cast<size_t>(inputs));
    k->look_up(product, outputs - 1, row.data());
    print("row", static_cast<int>(format), inputs, outputs, row.data(), row.size() * 4);
  }
}

void attention(const Kernels* k, int size, int rows, int capacity, bool half, float soft_cap) {
  Random random;
  random.state += static_cast<uint64_t>(size * 31 + rows);
  const size_t n = static_cast<size_t>(size), count = static_cast<size_t>(rows);
  const std::vector<float> keys = random.floats(n * static_cast<size_t>(capacity)), values = random.floats(keys.size());
  std::vector<uint16_t> half_keys(keys.size()), half_values(keys.size());
  k->to_half(keys.data(), static_cast<int>(keys.size()), half_keys.data());
  k->to_half(values.data(), static_cast<int>(values.size()), half_values.data());
  const Head head{half ? static_cast<const void*>(half_keys.data()) : keys.data(),
                  half ? static_cast<const void*>(half_values.data()) : values.data(), capacity, size, half, soft_cap,
                  capacity / 2};
  std::vector<float> queries(count * n), scratch(count * KEYS + 16 * n), sums(count * n), now(count * n), y(count * n);
  const std::vector<float> raw = random.floats(count * n), angles = random.floats(n);
  for (size_t r = 0; r < count; ++r)
    k->rotate(&raw[r * n], angles.data(), &angles[n / 2], size / 2 / 16 * 16, r % 2 == 1, 3.0f, size, &queries[r * n]);
  print("rotated", size, rows, 0, queries.data(), queries.size() * 4);
  std::vector<Sight> sights(count);
  std::vector<int> path;  // every second row of the pass, for every third row of queries
  for (int at = capacity / 2; at < capacity; ++at) path.push_back(at / 2 * 2 + 1 < capacity ? at / 2 * 2 + 1 : at);
  std::vector<Partial> partial(count), other(count);
  for (int block = 0; block * KEYS < capacity; ++block) {
    const int there = capacity - block * KEYS < KEYS ? capacity - block * KEYS : KEYS;
    for (int r = 0; r < rows; ++r) {
      const int begin = block ? 0 : r % there, end = there - (r * 7 % (there - begin));
      sights[static_cast<size_t>(r)] = {block * KEYS + begin, block * KEYS + end, r % 3 == 1 ? path.data() : nullptr};
    }
    k->attend(head, queries.data(), sights.data(), rows, block, scratch.data(), block ? other.data() : partial.data(),
              block ? now.data() : sums.data());
    if (block)
      for (size_t r = 0; r < count; ++r) k->merge(&partial[r], &sums[r * n], other[r], &now[r * n], size);
  }
  for (size_t r = 0; r < count; ++r) k->finish(partial[r], &sums[r * n], size, &y[r * n]);
  print(half ? "attention16" : "attention", size, rows, capacity, y.data(), y.size() * 4);
}
}  // namespace

int main() {
  const char* why_not = nullptr;
  const Kernels* k = kernels_of_this_host(&why_not);
  if (!k) {
    std::fprintf(stderr, "%s\n", why_not);
    return 2;
  }
  std::fprintf(stderr, "%s\n", k->name);
  for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 23})
    for (int inputs : {32, 20, 100, 576}) {
      products(k, inputs, 96, rows, Gate::silu);
      products(k, inputs, 64, rows, Gate::gelu_tanh);
      products(k, inputs, 37, rows, Gate::none);
    }
  for (int rows : {1, 2, 3, 5, 6, 7, 8, 13, 40})
    for (int size : {16, 48, 64, 128, 256})
      for (int capacity : {1, 15, 128, 200, 300}) {
        attention(k, size, rows, capacity, false, capacity == 200 ? 2.0f : 0.0f);
        attention(k, size, rows, capacity, true, 0.0f);
      }
}
