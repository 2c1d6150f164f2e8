#include "pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace specexport {
struct Chunk {  // at the beginning of its memory
  size_t size, used, copies;
};

namespace {
constexpr size_t SMALL = 4096, LARGE = size_t{1} << 21;
constexpr size_t CHUNK = 128 * LARGE;  // of which only what holds copies is memory
std::mutex mutex;
Chunk* current = nullptr;  // which has room

constexpr size_t up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool has_large_pages() {
  char modes[64] = {};
  if (FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re")) {
    if (!std::fgets(modes, sizeof modes, file)) *modes = 0;
    std::fclose(file);
  }
  return std::strchr(modes, '[') && !std::strstr(modes, "[never]") && sysconf(_SC_PAGESIZE) == SMALL &&
         prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0;
}

Chunk* new_chunk(size_t bytes) {  // null: no memory
  const size_t size = std::max(CHUNK, up(sizeof(Chunk) + bytes, LARGE));
  void* memory = mmap(nullptr, size + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(memory);
  const size_t before = up(reinterpret_cast<uintptr_t>(begin), LARGE) - reinterpret_cast<uintptr_t>(begin);
  if (before) munmap(begin, before);
  if (before < LARGE) munmap(begin + before + size, LARGE - before);
  madvise(begin + before, size, MADV_HUGEPAGE);
  return new (begin + before) Chunk{size, up(sizeof(Chunk), 64), 0};
}

// Whether the page is a file's, and was not changed: it can be had again, where all other memory would lose what it holds.
bool of_file(const char* data) {
  (void)*const_cast<const volatile char*>(data);  // of a page that is not in memory nothing is known
  uint64_t page = 0;
  const int pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pages < 0) return false;
  const auto at = static_cast<off_t>(reinterpret_cast<uintptr_t>(data) / SMALL * sizeof page);
  const ssize_t read = pread(pages, &page, sizeof page, at);
  close(pages);
  return read == sizeof page && page >> 61 & 1;
}
void give_back(const void* data, size_t bytes) {  // the whole pages
  const size_t at = reinterpret_cast<uintptr_t>(data), from = up(at, SMALL), to = (at + bytes) / SMALL * SMALL;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}
}  // namespace

Copy::Copy(const void* data_, size_t bytes) : data(data_), bytes_(bytes) {
  if (bytes < SMALL || !of_file(static_cast<const char*>(data) + bytes / 2) || !has_large_pages()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!current || current->size - current->used < bytes) {
      Chunk* chunk = new_chunk(bytes);
      if (!chunk) return;
      current = chunk;
    }
    chunk_ = current;
    data = reinterpret_cast<char*>(chunk_) + chunk_->used;
    chunk_->used += up(bytes, 64);
    ++chunk_->copies;
  }
  std::memcpy(const_cast<void*>(data), data_, bytes);
  give_back(data_, bytes);
}
Copy::~Copy() {
  const std::lock_guard<std::mutex> lock(mutex);
  const bool last = chunk_ && --chunk_->copies == 0;
  if (last && current == chunk_) current = nullptr;
  if (last) munmap(chunk_, chunk_->size);
  else if (chunk_) give_back(data, bytes_);
}
}  // namespace specexport
