/* The clock and the names of a machine that has trouble, for the processes that preload this library.
 *
 * CAMPAIGN_MACHINE names a file of two 64-bit integers, which the campaign changes while they run: nanoseconds that the
 * clock is wrong, and whether the name server is down. Monotonic clocks stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char name[] = "server.campaign.test";
static const volatile int64_t *machine;

__attribute__((constructor)) static void open_machine(void) {
  const char *path = getenv("CAMPAIGN_MACHINE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *map = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (map != MAP_FAILED) machine = map;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int failed = (int)syscall(SYS_clock_gettime, clock, at);
  if (!failed && machine && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = at->tv_nsec + machine[0] % 1000000000;
    at->tv_sec += machine[0] / 1000000000 + (ns >= 1000000000) - (ns < 0);
    at->tv_nsec = ns + (ns < 0 ? 1000000000 : 0) - (ns >= 1000000000 ? 1000000000 : 0);
  }
  return failed;
}

time_t time(time_t *out) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (out) *out = at.tv_sec;
  return at.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec at;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &at);
  out->tv_sec = at.tv_sec;
  out->tv_usec = at.tv_nsec / 1000;
  return 0;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  static int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "getaddrinfo");
  if (node && !strcmp(node, name)) {
    if (machine && machine[1]) return EAI_AGAIN;
    return next("127.0.0.1", service, hints, found);
  }
  return next(node, service, hints, found);
}
