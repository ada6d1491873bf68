// liblinkcpp-holes.so: keeps the holes of a backbone file from becoming resident memory.
//
// llama.cpp maps a model's files with MAP_POPULATE and asks for WILLNEED, which turns every hole into zeroed pages: a backbone without
// experts would weigh as much as the whole model. Loaded before everything else (LD_PRELOAD), this library leaves both out for the files
// that LINKCPP_HOLES lists as "DEVICE:INODE,…" (decimal), and passes everything else on untouched. It needs libc only.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr int max_ranges = 64;

struct Range {
  std::uintptr_t begin, end;
};
Range ranges[max_ranges];
int n_ranges = 0;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

/// Whether a descriptor's file is listed. Reads the variable each time: no state to be wrong about, and it is asked rarely.
bool is_hole_file(int fd) {
  if (fd < 0) return false;
  const char* at = std::getenv("LINKCPP_HOLES");
  if (at == nullptr || *at == '\0') return false;
  struct stat status;
  if (fstat(fd, &status) != 0) return false;
  while (*at != '\0') {
    char* end = nullptr;
    const unsigned long long device = std::strtoull(at, &end, 10);
    if (end == at || *end != ':') return false;
    at = end + 1;
    const unsigned long long inode = std::strtoull(at, &end, 10);
    if (end == at) return false;
    if (device == status.st_dev && inode == status.st_ino) return true;
    at = *end == ',' ? end + 1 : end;
    if (*end != ',' && *end != '\0') return false;
  }
  return false;
}

void remember(void* address, std::size_t length) {
  pthread_mutex_lock(&mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  if (n_ranges < max_ranges) ranges[n_ranges++] = {begin, begin + length};
  pthread_mutex_unlock(&mutex);
}

/// A range that was unmapped since may still match; it loses an advice, nothing more.
bool in_holes(void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  bool found = false;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < n_ranges && !found; ++i) found = at >= ranges[i].begin && at < ranges[i].end;
  pthread_mutex_unlock(&mutex);
  return found;
}

using Mmap = void* (*)(void*, std::size_t, int, int, int, off_t);
static_assert(sizeof(off_t) == 8, "mmap and mmap64 are one function here");

void* map(Mmap real, void* address, std::size_t length, int protection, int flags, int fd, off_t offset) {
  const bool holes = (flags & MAP_ANONYMOUS) == 0 && is_hole_file(fd);
  void* mapped = real(address, length, protection, holes ? flags & ~MAP_POPULATE : flags, fd, offset);
  if (holes && mapped != MAP_FAILED) remember(mapped, length);
  return mapped;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void* mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) noexcept {
  static const Mmap real = next<Mmap>("mmap");
  return map(real, address, length, protection, flags, fd, offset);
}
void* mmap64(void* address, std::size_t length, int protection, int flags, int fd, off64_t offset) noexcept {
  static const Mmap real = next<Mmap>("mmap64");
  return map(real, address, length, protection, flags, fd, offset);
}
int madvise(void* address, std::size_t length, int advice) noexcept {
  static const auto real = next<int (*)(void*, std::size_t, int)>("madvise");
  return advice == MADV_WILLNEED && in_holes(address) ? 0 : real(address, length, advice);
}
int posix_madvise(void* address, std::size_t length, int advice) noexcept {
  static const auto real = next<int (*)(void*, std::size_t, int)>("posix_madvise");
  return advice == POSIX_MADV_WILLNEED && in_holes(address) ? 0 : real(address, length, advice);
}
int posix_fadvise(int fd, off_t offset, off_t length, int advice) noexcept {
  static const auto real = next<int (*)(int, off_t, off_t, int)>("posix_fadvise");
  return (advice == POSIX_FADV_WILLNEED || advice == POSIX_FADV_SEQUENTIAL) && is_hole_file(fd) ? 0 : real(fd, offset, length, advice);
}
int posix_fadvise64(int fd, off64_t offset, off64_t length, int advice) noexcept {
  static const auto real = next<int (*)(int, off64_t, off64_t, int)>("posix_fadvise64");
  return (advice == POSIX_FADV_WILLNEED || advice == POSIX_FADV_SEQUENTIAL) && is_hole_file(fd) ? 0 : real(fd, offset, length, advice);
}
}
#pragma GCC visibility pop
