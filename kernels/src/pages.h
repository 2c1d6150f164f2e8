// Weights in pages of 2 MB: ONNX Runtime maps them from their file in pages of 4 KB, more than a processor has addresses
// of at hand, so that a pass over them waits for tables of pages.
#pragma once
#include <cstddef>

namespace specexport {
struct Chunk;

// A copy of `data`, which may be null; data itself where the host has no such pages, or no memory. What is mapped from a
// file is given back once it is copied. Copies lie together in chunks of memory, which go with the last in them.
class Copy {
 public:
  Copy(const void* data, size_t bytes);
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy();
  const void* data;

 private:
  Chunk* chunk_ = nullptr;
};
}  // namespace specexport
