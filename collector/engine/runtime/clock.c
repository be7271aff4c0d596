/* The time of a line. With FAKE_NPU_ORDER=1 it is the time of the host: what its threads computed so
   far, without what this runtime and its hooks did, so that other programs on the machine do not
   count. Otherwise it is the time of day.

   To read the clock of a thread is a system call of some 0.5 us. Of each two readings between which
   the host runs, about one such call is counted as the host's: it is subtracted. */
#include "fake.h"

#include <stdlib.h>
#include <time.h>

static int64_t computed_ns; /* by all threads */
static int64_t reading_ns = -1;      /* what two readings of the clock differ by at least */
static __thread int64_t counted_ns; /* of what this thread computed */
static __thread int64_t own_ns;     /* computed by this thread */
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

static int64_t time_of_reading(void) {
  int64_t least = INT64_MAX, before = read_clock(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < 1000; i++) {
    int64_t now = read_clock(CLOCK_THREAD_CPUTIME_ID);
    if (now - before < least) least = now - before;
    before = now;
  }
  return least;
}

void pause_host(void) {
  if (pauses++ || !has_order()) return;
  int64_t spent_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - counted_ns;
  if (reading_ns < 0) reading_ns = time_of_reading();
  if (spent_ns <= reading_ns) return;
  own_ns += spent_ns - reading_ns;
  __atomic_add_fetch(&computed_ns, spent_ns - reading_ns, __ATOMIC_RELAXED);
}

void resume_host(void) {
  if (--pauses == 0 && has_order()) counted_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* In a process that was forked the clock of its thread begins again. */
void begin_clock(void) {
  counted_ns = read_clock(CLOCK_THREAD_CPUTIME_ID), computed_ns = own_ns = 0;
}

/* Called between pause_host and resume_host. */
int64_t host_ns(void) { return has_order() ? computed_ns : read_clock(CLOCK_REALTIME); }

void opmeter_fake_cann_pause(void) { pause_host(); }
void opmeter_fake_cann_resume(void) { resume_host(); }

/* Called between them: what the thread that calls computed so far. */
int64_t opmeter_fake_cann_thread_ns(void) { return own_ns; }
