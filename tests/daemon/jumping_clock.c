/* A wall clock that is set by hours every tenth of a millisecond, for every process that is started
   with this in LD_PRELOAD. The monotonic clock is left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

typedef int clock_gettime_t(clockid_t, struct timespec *);

static int original(clockid_t clock, struct timespec *now) {
  static clock_gettime_t *found;
  if (!found) found = (clock_gettime_t *)dlsym(RTLD_NEXT, "clock_gettime");
  return found(clock, now);
}

static long jump_s(void) {
  static const long hours[] = {0, 3, -5, 700};
  struct timespec now;
  original(CLOCK_MONOTONIC, &now);
  return 3600 * hours[(now.tv_nsec / 100000) % 4];
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = original(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += jump_s();
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}
