// Weights in pages of 2 MB: ONNX Runtime maps them from their file in pages of 4 KB, more than a processor has addresses
// of at hand, so that a pass over them waits for tables of pages.
#pragma once
#include <cstddef>

namespace specexport {
struct Chunk;

// A copy of what is mapped from a file at `data`, whose memory is given back; data itself where it is no file's, may be
// null, or where the host has no such pages, or no memory. Copies lie together in chunks, which go with the last in them.
class Copy {
 public:
  Copy(const void* data, size_t bytes);
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy();
  const void* data;

 private:
  size_t bytes_;
  Chunk* chunk_ = nullptr;
};
}  // namespace specexport
