/* Shifts the wall clock of a process that preloads this, by the seconds that a file says; monotonic clocks stay.
 *
 * The Kafka library waits on condition variables until an instant of the shifted clock, which the kernel compares with
 * the true one; so its waits are shifted back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift_s;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CLOCK_SHIFT_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *seen = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (seen != MAP_FAILED) shift_s = seen;
}

typedef int (*pthread_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int (*c11_wait)(cnd_t *, mtx_t *, const struct timespec *);

static int is_kafka(void *caller) {
  Dl_info found;
  return dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, "librdkafka");
}

int clock_gettime(clockid_t id, struct timespec *at) {
  int failed = (int)syscall(SYS_clock_gettime, id, at);
  if (!failed && shift_s && id == CLOCK_REALTIME) at->tv_sec += *shift_s;
  return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  int failed = (int)syscall(SYS_gettimeofday, at, zone);
  if (!failed && shift_s) at->tv_sec += *shift_s;
  return failed;
}

time_t time(time_t *into) {
  struct timeval at;
  gettimeofday(&at, NULL);
  if (into) *into = at.tv_sec;
  return at.tv_sec;
}

static struct timespec truly(const struct timespec *until, void *caller) {
  struct timespec at = *until;
  if (shift_s && is_kafka(caller)) at.tv_sec -= *shift_s;
  return at;
}

int pthread_cond_timedwait(pthread_cond_t *restrict one, pthread_mutex_t *restrict lock, const struct timespec *restrict until) {
  static pthread_wait next;
  if (!next) next = (pthread_wait)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec at = truly(until, __builtin_return_address(0));
  return next(one, lock, &at);
}

int cnd_timedwait(cnd_t *restrict one, mtx_t *restrict lock, const struct timespec *restrict until) {
  static c11_wait next;
  if (!next) next = (c11_wait)dlsym(RTLD_NEXT, "cnd_timedwait");
  struct timespec at = truly(until, __builtin_return_address(0));
  return next(one, lock, &at);
}
