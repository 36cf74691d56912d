/* A disk that can be full: while the file FULL_DISK_FILE exists, a process that preloads this extends no file below base/.
   The write-ahead log is left alone: a server without room for it stops. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int has_no_room(int file, off_t end) {
  const char *mark = getenv("FULL_DISK_FILE");
  char link[64], path[4096];
  struct stat found;
  if (!mark || access(mark, F_OK) != 0 || fstat(file, &found) != 0 || end <= found.st_size) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  if (!strstr(path, "/base/")) return 0;
  errno = ENOSPC;
  return 1;
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
  return has_no_room(file, at + (off_t)count) ? -1 : syscall(SYS_pwrite64, file, bytes, count, at);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) { return pwrite64(file, bytes, count, at); }

ssize_t pwritev64(int file, const struct iovec *pieces, int count, off64_t at) {
  off_t size = 0;
  for (int piece = 0; piece < count; piece++) size += (off_t)pieces[piece].iov_len;
  return has_no_room(file, at + size) ? -1 : syscall(SYS_pwritev, file, pieces, count, at, 0);
}

ssize_t pwritev(int file, const struct iovec *pieces, int count, off_t at) { return pwritev64(file, pieces, count, at); }

int posix_fallocate64(int file, off64_t at, off64_t size) {
  if (has_no_room(file, at + size)) return ENOSPC;
  return syscall(SYS_fallocate, file, 0, at, size) == 0 ? 0 : errno;
}

int posix_fallocate(int file, off_t at, off_t size) { return posix_fallocate64(file, at, size); }
