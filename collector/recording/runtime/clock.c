/* The time of a line. With FAKE_NPU_ORDER=1 it is the time of the host: what its threads computed so
   far, without what this runtime and its hooks did, so that other programs on the machine do not
   count. Otherwise it is the time of day. */
#include "fake.h"

#include <stdlib.h>
#include <time.h>

static int64_t computed_ns; /* by all threads */
static __thread int64_t counted_ns; /* of what this thread computed */
static __thread int pauses;

int has_order(void) {
  static int found = -1;
  if (found < 0) {
    const char *value = getenv("FAKE_NPU_ORDER");
    found = value && *value == '1';
  }
  return found;
}

static int64_t read_clock(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void pause_host(void) {
  if (pauses++ || !has_order()) return;
  __atomic_add_fetch(&computed_ns, read_clock(CLOCK_THREAD_CPUTIME_ID) - counted_ns, __ATOMIC_RELAXED);
}

void resume_host(void) {
  if (--pauses == 0 && has_order()) counted_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* In a process that was forked the clock of its thread begins again. */
void begin_clock(void) { counted_ns = read_clock(CLOCK_THREAD_CPUTIME_ID), computed_ns = 0; }

/* Called between pause_host and resume_host. */
int64_t host_ns(void) { return has_order() ? computed_ns : read_clock(CLOCK_REALTIME); }

void opmeter_fake_cann_pause(void) { pause_host(); }
void opmeter_fake_cann_resume(void) { resume_host(); }
