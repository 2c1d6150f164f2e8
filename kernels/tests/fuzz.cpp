// Calls every operator with random shapes, types, attributes, positions and values, through a small ONNX Runtime of its
// own. Each call must end with a result or with one line. What a call computes must be what it computes again for one of
// its rows alone, or with other tasks first, and it must not write outside of its tensors: build it with sanitizers.
//
//   fuzz [calls] [seed]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../src/onnxruntime_api.h"

namespace specexport::ort {  // what the library knows by pointer only
struct Status {
  std::string text;
};
struct ShapeInfo {
  const Value* of;
};
struct Value {
  Type type = float32;
  std::vector<int64_t> sizes;
  std::vector<char> own;
  char* data = nullptr;  // own's, or another's

  size_t bytes() const {
    size_t n = type == int64 ? 8 : type == float32 ? 4 : type == float16 || type == bfloat16 ? 2 : 1;
    for (const int64_t size : sizes) n *= static_cast<size_t>(size);
    return n;
  }
  void allocate() {
    own.assign(bytes(), static_cast<char>(0x7f));
    own.shrink_to_fit();
    data = own.empty() ? nullptr : own.data();
  }
};
struct KernelInfo {
  std::map<std::string, double> attributes;
  size_t outputs;
  const std::map<size_t, Value>* constants = nullptr;
};
struct KernelContext {
  std::vector<const Value*> inputs;
  std::vector<Value> outputs;
  std::vector<Type> types;
  std::vector<char*> bound;  // memory for outputs, or null
  int order;                 // of tasks: from the first, from the last, in two threads
};
struct Domain {
  std::vector<const CustomOp*> operators;
};
struct SessionOptions {};
}  // namespace specexport::ort

using namespace specexport::ort;
extern "C" Status* RegisterCustomOps(SessionOptions* options, const ApiBase* base);

namespace {
bool memory_is_short = false;  // every third allocation of the library fails
Domain domain;

[[noreturn]] void wrong(const char* what, const std::string& more) {
  std::fprintf(stderr, "fuzz: %s: %s\n", what, more.c_str());
  std::abort();
}

const void* table[300];
const void* const* get_api(uint32_t version) { return version <= 17 ? table : nullptr; }
const char* runtime_version() { return "fuzz"; }
template <class F>
void entry(size_t place, F* function) {
  table[place] = reinterpret_cast<const void*>(function);
}
template <class T>
Status* attribute_of(const KernelInfo* i, const char* name, T* out) {
  const auto found = i->attributes.find(name);
  if (found == i->attributes.end()) return new Status{"absent"};
  return *out = static_cast<T>(found->second), nullptr;
}
void fill_table() {
  entry(0, +[](ErrorCode, const char* text) { return new Status{text}; });
  entry(93, +[](Status* s) { delete s; });
  entry(26, +[](const char*, Domain** out) -> Status* { return *out = &domain, nullptr; });
  entry(27, +[](Domain* d, const void* op) -> Status* {
    d->operators.push_back(static_cast<const CustomOp*>(op));
    return nullptr;
  });
  entry(28, +[](SessionOptions*, Domain*) -> Status* { return nullptr; });
  entry(51, +[](const Value* v, void** out) -> Status* { return *out = v->data, nullptr; });
  entry(65, +[](const Value* v, ShapeInfo** out) -> Status* { return *out = new ShapeInfo{v}, nullptr; });
  entry(60, +[](const ShapeInfo* s, Type* out) -> Status* { return *out = s->of->type, nullptr; });
  entry(61, +[](const ShapeInfo* s, size_t* out) -> Status* { return *out = s->of->sizes.size(), nullptr; });
  entry(62, +[](const ShapeInfo* s, int64_t* out, size_t n) -> Status* {
    for (size_t i = 0; i < n; ++i) out[i] = s->of->sizes[i];
    return nullptr;
  });
  entry(99, +[](ShapeInfo* s) { delete s; });
  entry(85, attribute_of<float>);
  entry(86, attribute_of<int64_t>);
  entry(90, +[](const KernelContext* c, size_t i, const Value** out) -> Status* {
    return *out = i < c->inputs.size() ? c->inputs[i] : nullptr, nullptr;
  });
  entry(91, +[](KernelContext* c, size_t i, const int64_t* sizes, size_t rank, Value** out) -> Status* {
    Value& v = c->outputs[i];
    v.type = c->types[i];
    v.sizes.assign(sizes, sizes + rank);
    if (c->bound[i]) v.data = c->bound[i];
    else v.allocate();
    return *out = &v, nullptr;
  });
  entry(231, +[](const KernelInfo* i, size_t* out) -> Status* { return *out = i->outputs, nullptr; });
  entry(249, +[](const KernelInfo* i, size_t n, int* is_constant, const Value** out) -> Status* {
    *is_constant = i->constants && i->constants->count(n);
    return *out = *is_constant ? &i->constants->at(n) : nullptr, nullptr;
  });
  entry(274, +[](const KernelContext* c, void (*f)(void*, size_t), size_t count, size_t, void* data) -> Status* {
    if (c->order == 2) {
      std::thread other([&] { for (size_t i = 1; i < count; i += 2) f(data, i); });
      for (size_t i = 0; i < count; i += 2) f(data, i);
      other.join();
    } else {
      for (size_t i = 0; i < count; ++i) f(data, c->order ? count - 1 - i : i);
    }
    return nullptr;
  });
}

struct Random {  // xorshift
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 11;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t a, int64_t b) { return a + below(b - a + 1); }
  bool once_in(int64_t n) { return below(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> some) { return some.begin()[below(static_cast<int64_t>(some.size()))]; }
  float number(bool odd) {
    if (odd && once_in(20))
      return of({NAN, INFINITY, -INFINITY, 1e-40f, -1e-45f, 3e38f, -3e38f, 0.0f, -0.0f, 1e-31f});
    return static_cast<float>(below(2001) - 1000) / 500.0f;
  }
};

Value made(Random& random, Type type, std::vector<int64_t> sizes, bool odd) {
  Value v;
  v.type = type;
  v.sizes = std::move(sizes);
  v.allocate();
  for (char& byte : v.own) byte = static_cast<char>(random.next());
  if (type == float32)
    for (size_t i = 0; i + 4 <= v.own.size(); i += 4) {
      const float x = random.number(odd);
      std::memcpy(&v.own[i], &x, 4);
    }
  if (type == int8)
    for (char& byte : v.own) byte = byte == -128 ? 0 : byte;
  return v;
}

using Inputs = std::map<size_t, Value>;
struct Result {
  std::string refused;
  std::vector<Value> outputs;
};
// Creates the operator and runs it once. bound: memory for outputs.
Result run(const CustomOp* op, const KernelInfo& info, const Inputs& inputs, int order, std::vector<char*> bound = {}) {
  Result result;
  void* kernel = nullptr;
  Status* status = op->create_checked(op, nullptr, &info, &kernel);
  if (!status) {
    KernelContext context{std::vector<const Value*>(op->input_count(op)), std::vector<Value>(op->output_count(op)), {}, bound, order};
    context.bound.resize(context.outputs.size());
    for (size_t i = 0; i < context.outputs.size(); ++i) context.types.push_back(op->output_type(op, i));
    for (const auto& [i, value] : inputs) context.inputs[i] = &value;
    status = op->compute_checked(kernel, &context);
    result.outputs = std::move(context.outputs);
    for (Value& v : result.outputs)
      if (!v.own.empty()) v.data = v.own.data();
    op->destroy(kernel);
  }
  if (status) {
    result.refused = status->text;
    delete status;
    if (result.refused.rfind("specexport.", 0) != 0 || result.refused.find('\n') != std::string::npos)
      wrong("not one line", result.refused);
  }
  return result;
}
std::string row(const Value& v, int64_t i, int64_t rows) {
  const size_t each = v.bytes() / static_cast<size_t>(rows);
  return {v.data + static_cast<size_t>(i) * each, each};
}
Value only_row(const Value& v, int64_t i, size_t dimension) {
  Value one;
  one.type = v.type;
  one.sizes = v.sizes;
  one.sizes[dimension] = 1;
  one.allocate();
  std::memcpy(one.data, v.data + static_cast<size_t>(i) * one.own.size(), one.own.size());
  return one;
}

// Makes some of it wrong: a size, a type, an input that lacks, an attribute.
void spoil(Random& random, KernelInfo& info, Inputs& inputs) {
  auto some = std::next(inputs.begin(), random.below(static_cast<int64_t>(inputs.size())));
  Value& v = some->second;
  switch (random.below(5)) {
    case 0:
      if (!v.sizes.empty()) v.sizes[static_cast<size_t>(random.below(static_cast<int64_t>(v.sizes.size())))] = random.below(40);
      break;
    case 1: v.sizes.push_back(random.below(3)); break;
    case 2: v.sizes.clear(); break;
    case 3: v.type = random.of({float32, uint8, int8, int64, boolean, float16, bfloat16}); break;
    default: {
      auto it = std::next(info.attributes.begin(), random.below(static_cast<int64_t>(info.attributes.size())));
      it->second = random.of({-1.0, 0.0, 1.0, 3.0, 7.0, 48.0, 1e9, 9e18});
      return;
    }
  }
  v = made(random, v.type, v.sizes, true);
}

bool same(const std::string& a, const std::string& b) {  // as bits; which NaN it is may differ
  for (size_t i = 0; i < a.size(); i += 4) {
    float x, y;
    std::memcpy(&x, &a[i], 4);
    std::memcpy(&y, &b[i], 4);
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return a.size() == b.size();
}

// Whether one call was answered with a result. Products: of all rows, and of one of them alone.
bool linear(Random& random, const CustomOp* op, Type type) {
  const bool normed = random.once_in(2), skips = normed && random.once_in(2), in_int8 = type == int8, in_int4 = type == uint8;
  const int64_t rows = random.of<int64_t>({0, 1, 1, 2, 3, 5, 8, 9, 15, 16, 17, 40}), block = random.of({0, 0, 16, 32});
  const int64_t inputs = block ? block * random.between(1, 6) : random.between(1, 130);
  const double gate = random.of({0.0, 0.0, 1.0, 2.0});
  const int64_t outputs = gate > 0 ? 32 * random.between(1, 4) : random.between(1, 150), panels = (outputs + 15) / 16;
  KernelInfo info{{{"num_outputs", outputs}, {"hadamard", block}, {"gate", gate}, {"epsilon", 1e-5}}, skips ? 2u : 1u, nullptr};
  Inputs in;
  in[0] = made(random, float32, {1, rows, inputs}, true);
  if (in_int8) in[1] = made(random, type, {panels, (inputs + 3) / 4, 16, 4}, false);
  else if (in_int4) in[1] = made(random, type, {panels, (inputs + 31) / 32, 4, 64}, false);
  else in[1] = made(random, type, {panels, inputs, 16}, false);
  if (in_int8) in[2] = made(random, float32, {outputs}, false);
  if (in_int4) in[2] = made(random, float32, {panels, (inputs + 31) / 32, 16}, false);
  if (random.once_in(2)) in[3] = made(random, float32, {outputs}, false);
  if (normed) in[4] = made(random, float32, {inputs}, false);
  if (skips) in[5] = made(random, float32, {1, rows, inputs}, true);
  if (random.once_in(3)) spoil(random, info, in);
  if (random.once_in(20)) in.erase(random.below(6));
  if (random.once_in(2)) info.constants = &in;  // which are copied
  const Result whole = run(op, info, in, static_cast<int>(random.below(3)));
  const Value& x = in[0];
  if (!whole.refused.empty() || x.bytes() == 0) return whole.refused.empty();
  const int64_t count = static_cast<int64_t>(x.bytes()) / 4 / x.sizes.back(), one = random.below(count);
  if (x.sizes.size() != 3 || x.sizes[0] != 1) return true;
  Inputs alone = in;
  for (const size_t i : {0, 5})
    if (in.count(i)) alone[i] = only_row(in[i], one, 1);
  const Result again = run(op, info, alone, 0);
  for (size_t i = 0; i < info.outputs && again.refused.empty(); ++i)
    if (!same(row(whole.outputs[i], one, count), row(again.outputs[i], 0, 1))) wrong("a row alone differs", op->name(op));
  return again.refused.empty();
}

bool embedding(Random& random, const CustomOp* op, Type type) {
  const int64_t inputs = random.between(1, 100), panels = random.between(1, 4), rows = panels * 16 - random.below(16);
  KernelInfo info{{{"num_inputs", inputs}, {"num_outputs", random.of<int64_t>({0, rows})}}, 1, nullptr};
  Inputs in;
  in[0] = made(random, int64, {1, random.below(5)}, false);
  for (size_t i = 0; i < in[0].own.size(); i += 8) {
    const int64_t id = random.once_in(20) ? random.of<int64_t>({-1, rows, INT64_MAX, INT64_MIN}) : random.below(rows);
    std::memcpy(&in[0].own[i], &id, 8);
  }
  if (type == int8) in[1] = made(random, type, {panels, (inputs + 3) / 4, 16, 4}, false);
  else if (type == uint8) in[1] = made(random, type, {panels, (inputs + 31) / 32, 4, 64}, false);
  else in[1] = made(random, type, {panels, inputs, 16}, false);
  if (type == int8) in[2] = made(random, float32, {rows}, false);
  if (type == uint8) in[2] = made(random, float32, {panels, (inputs + 31) / 32, 16}, false);
  if (random.once_in(3)) spoil(random, info, in);
  if (random.once_in(20)) in.erase(random.below(3));
  return run(op, info, in, 0).refused.empty();
}

// A pass, in place or not, and one of its rows again.
bool attention(Random& random, const CustomOp* op, Type cache) {
  const int64_t kv_heads = random.between(1, 3), heads = kv_heads * random.between(1, 4), capacity = random.between(1, 300);
  const int64_t size = random.of({16, 32, 48, 64, 80, 128}), rows = std::min(capacity, random.of<int64_t>({0, 1, 1, 2, 5, 8, 15, 16, 33}));
  const int64_t at = random.once_in(3) ? capacity - rows : random.between(0, capacity - rows);
  const bool packed = random.once_in(2);
  KernelInfo info{{{"heads", heads}, {"kv_heads", kv_heads}, {"scale", 0.125}, {"neighbours", random.below(2)},
                   {"window", random.of({0, 0, 1, 3, 100, 130})}, {"soft_cap", random.of({0, 0, 5})}}, 3, nullptr};
  Inputs in;
  in[0] = made(random, float32, {1, rows, (heads + (packed ? 2 * kv_heads : 0)) * size}, true);
  in[1] = made(random, cache, {1, kv_heads, capacity, size}, true);
  in[2] = made(random, cache, {1, kv_heads, capacity, size}, true);
  in[3] = made(random, int64, {1}, false);
  const int64_t position = random.once_in(20) ? random.of<int64_t>({-1, capacity, INT64_MAX, INT64_MIN}) : at;
  std::memcpy(in[3].data, &position, 8);
  if (!packed)
    for (const size_t i : {4, 5}) in[i] = made(random, float32, {1, rows, kv_heads * size}, true);
  const int64_t pairs = random.between(0, size / 2);
  if (pairs)
    for (const size_t i : {6, 7}) in[i] = made(random, float32, {capacity, pairs}, false);
  if (random.once_in(2)) in[8] = made(random, float32, {heads}, false);
  if (random.once_in(2)) {
    in[9] = made(random, boolean, {rows, rows}, false);
    char* sees = in[9].own.data();
    const bool chain = random.once_in(3);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t parent = chain ? i - 1 : random.between(-1, i - 1);
      for (int64_t j = 0; j < rows; ++j) sees[i * rows + j] = j == i || (parent >= 0 && j < i && sees[parent * rows + j]);
    }
    if (rows && random.once_in(8)) sees[random.below(rows * rows)] ^= 1;
  }
  if (random.once_in(3)) spoil(random, info, in);
  if (random.once_in(20)) in.erase(random.below(10));
  const bool in_place = random.once_in(2) && in.count(1) && in.count(2) && in[1].bytes() && in[2].bytes();
  const bool twice = in_place && random.once_in(20);  // both in the same memory
  const Result whole = run(op, info, in, static_cast<int>(random.below(3)),
                           in_place ? std::vector<char*>{nullptr, in[1].data, in[twice ? 1 : 2].data} : std::vector<char*>{});
  if (twice && whole.refused.empty()) wrong("keys and values in the same memory", op->name(op));
  if (!whole.refused.empty() || rows == 0 || in.count(9) || in[0].sizes[1] != rows) return whole.refused.empty();
  const int64_t one = random.below(rows), there = position + one;
  Inputs alone = in;
  for (const size_t i : {0, 4, 5})
    if (in.count(i)) alone[i] = only_row(in[i], one, 1);
  for (const size_t i : {1, 2}) {
    alone[i].own.assign(whole.outputs[i].data, whole.outputs[i].data + whole.outputs[i].bytes());
    alone[i].data = alone[i].own.data();
  }
  std::memcpy(alone[3].data, &there, 8);
  const Result again = run(op, info, alone, 0);
  if (again.refused.empty() && !same(row(whole.outputs[0], one, rows), row(again.outputs[0], 0, 1)))
    wrong("a row alone differs", op->name(op));
  return again.refused.empty();
}
}  // namespace

extern "C" void* __real_aligned_alloc(size_t alignment, size_t size);
extern "C" void* __wrap_aligned_alloc(size_t alignment, size_t size) {
  static thread_local int calls = 0;
  return memory_is_short && ++calls % 3 == 0 ? nullptr : __real_aligned_alloc(alignment, size);
}

int main(int count, char** arguments) {
  const int calls = count > 1 ? std::atoi(arguments[1]) : 20000;
  const ApiBase older{+[](uint32_t version) { return version <= 16 ? static_cast<const void* const*>(table) : nullptr; },
                      runtime_version};
  const ApiBase base{get_api, runtime_version};
  SessionOptions options;
  fill_table();
  std::unique_ptr<Status> status(RegisterCustomOps(&options, &older));
  if (!status || status->text.find("older than 1.17") == std::string::npos) wrong("an older runtime", "is not reported");
  for (int i = 0; i < 2; ++i)
    if (std::unique_ptr<Status> failed{RegisterCustomOps(&options, &base)}) wrong("not registered", failed->text);
  int answered = 0, short_of_memory = 0;
  for (int i = 0; i < calls; ++i) {
    Random random{(static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull + (count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0)};
    for (int n = 0; n < 4; ++n) random.next();
    const CustomOp* op = domain.operators[static_cast<size_t>(random.below(static_cast<int64_t>(domain.operators.size())))];
    const std::string name = op->name(op);
    const Type type = op->input_type(op, 1);
    memory_is_short = random.once_in(10);
    short_of_memory += memory_is_short;
    answered += name.rfind("Linear", 0) == 0      ? linear(random, op, type)
                : name.rfind("Embedding", 0) == 0 ? embedding(random, op, type)
                                                  : attention(random, op, type);
  }
  std::printf("%d calls: %d answered, %d refused; memory was short in %d\n", calls, answered, calls - answered, short_of_memory);
  if (answered < calls / 4) wrong("too few calls were answered", std::to_string(answered));
}
