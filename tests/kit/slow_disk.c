/* A disk that takes a while: a process that preloads this waits SLOW_DISK_MS before each write to the disk itself. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_for_the_disk(void) {
  const char *ms = getenv("SLOW_DISK_MS");
  usleep(1000 * (ms ? atoi(ms) : 0));
}

int fsync(int file) {
  wait_for_the_disk();
  return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
  wait_for_the_disk();
  return (int)syscall(SYS_fdatasync, file);
}
