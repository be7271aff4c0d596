/* The time of a line. With FAKE_NPU_ORDER=1 it is the time of the host: what its threads computed so
   far, without what this runtime and its hooks did, so that other programs on the machine do not
   count. In virtual time (virtual.c) each thread has a clock: the time that its calls are given, the
   time for which it waits, and with FAKE_NPU_ORDER=1 what it computes. Otherwise a line has the time
   of day.

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

#define BEGIN_NS 1000000000000000LL  /* of virtual time: the same in each process */
#define LONGEST_WAIT 20              /* of a thread that polls: 2^20 us */
static int64_t latest_ns = BEGIN_NS; /* of the threads that launch: where a new one begins */
static __thread int64_t virtual_ns;  /* of this thread, without what it computed; 0: not begun */
static __thread int launches, polls; /* whether it launches; how often it polled since */

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
  virtual_ns = 0;
}

/* These are called between pause_host and resume_host. */
int64_t host_ns(void) {
  if (!is_virtual()) return has_order() ? computed_ns : read_clock(CLOCK_REALTIME);
  if (!virtual_ns) virtual_ns = __atomic_load_n(&latest_ns, __ATOMIC_RELAXED) - own_ns;
  return virtual_ns + own_ns;
}

void take_time(int64_t ns) {
  int64_t now = host_ns() + ns, latest = __atomic_load_n(&latest_ns, __ATOMIC_RELAXED);
  virtual_ns += ns, launches = 1, polls = 0;
  while (now > latest && !__atomic_compare_exchange_n(&latest_ns, &latest, now, 0, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {}
}

void wait_until(int64_t ns) {
  int64_t now = host_ns();
  if (ns > now) virtual_ns += ns - now;
}

/* A thread that polls and launches nothing between waits, longer each time: nothing else would let
   its clock go on. One that never launches (a watchdog, which sleeps between) waits at once. */
int is_past(int64_t ns) {
  int64_t now = host_ns(), step_ns = polls ? 1000LL << polls : 0;
  if (ns <= now) return 1;
  if (!launches) return wait_until(ns), 1;
  if (polls < LONGEST_WAIT) polls++;
  wait_until(ns - now < step_ns ? ns : now + step_ns);
  return ns <= host_ns();
}

void opmeter_fake_cann_pause(void) { pause_host(); }
void opmeter_fake_cann_resume(void) { resume_host(); }

int64_t opmeter_fake_cann_now(void) {
  pause_host();
  int64_t now = host_ns();
  resume_host();
  return now;
}
void opmeter_fake_cann_wait(int64_t ns) {
  pause_host();
  wait_until(ns);
  resume_host();
}

/* Called between pause and resume: what the thread that calls computed so far. */
int64_t opmeter_fake_cann_thread_ns(void) { return own_ns; }
