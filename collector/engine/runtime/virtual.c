/* Virtual time. With FAKE_NPU_DURATIONS, the socket of ../durations.py, a call takes the time that the
   other process gives for its text: of the thread that makes it, whose clock is in clock.c, and of
   its stream. Streams wait for events, and threads for streams: who waits goes on at the time for
   which it waits, and nothing really waits.

   The streams of a graph that runs are its own. It begins when its stream has run what came before,
   and this stream goes on when all of the graph has run. */
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KNOWN 65536
#define STREAMS 65536
#define EVENTS (1 << 22)
#define SOURCES 16

struct duration {
  int64_t host_ns, device_ns, source; /* of the latter: a number that means nothing here */
};

static struct known {
  char *words;
  struct duration duration;
  int64_t times; /* how often it ran on the device since the other process was told */
} known[KNOWN]; /* by the hash of the words; the last one of two with the same hash */
static struct {
  int64_t end_ns, run, run_end_ns;
} streams[STREAMS]; /* when what they have so far ends, also in a run of a graph */
static int64_t events_ns[EVENTS], end_ns, runs;
static int64_t sources_ns[SOURCES]; /* time of the device by source */
static __thread struct {
  int64_t number, begin_ns, end_ns;
} run; /* of the graph whose lines come; its number is 0 outside */

int is_virtual(void) {
  static int found = -1;
  if (found < 0) found = getenv("FAKE_NPU_DURATIONS") != NULL;
  return found;
}

static int connect_to(const char *path) {
  struct sockaddr_un address = {AF_UNIX};
  strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (made < 0 || connect(made, (struct sockaddr *)&address, sizeof address)) perror(path), abort();
  return made;
}

static struct duration ask(const char *words, size_t length) {
  static int other, owner; /* a process that was forked has a connection of its own */
  struct duration found;
  if (owner != getpid()) owner = getpid(), other = connect_to(getenv("FAKE_NPU_DURATIONS"));
  int is_lost = send(other, words, length, MSG_NOSIGNAL) < 0 ||
                recv(other, &found, sizeof found, 0) != sizeof found;
  if (is_lost) perror("the process that gives durations ended"), abort();
  return found;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(struct known *place) {
  free(place->words);
  *place = (struct known){NULL};
}

static void report(struct known *place) {
  char *words;
  if (!place->times) return;
  int length = asprintf(&words, "TIMES %lld %s", (long long)place->times, place->words);
  if (length < 0) abort();
  ask(words, (size_t)length);
  free(words);
  place->times = 0;
}

/* A load is served again, perhaps with other durations: the other process is told so. */
void opmeter_fake_cann_begin_run(int number) {
  char words[32];
  pthread_mutex_lock(&lock);
  for (int i = 0; i < KNOWN; i++) forget(&known[i]);
  memset(sources_ns, 0, sizeof sources_ns);
  ask(words, (size_t)snprintf(words, sizeof words, "RUN %d", number));
  pthread_mutex_unlock(&lock);
}

/* The other process is told how often each call ran on the device. */
void opmeter_fake_cann_end_run(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < KNOWN; i++) report(&known[i]);
  pthread_mutex_unlock(&lock);
}

int64_t opmeter_fake_cann_source_ns(int source) { return sources_ns[source % SOURCES]; }

static struct duration duration_of(const char *words, size_t length, int times) {
  uint64_t hash = 1469598103934665603ULL;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)words[i]) * 1099511628211ULL;
  pthread_mutex_lock(&lock);
  struct known *place = &known[hash % KNOWN];
  if (!place->words || strncmp(place->words, words, length) || place->words[length]) {
    report(place);
    forget(place);
    *place = (struct known){strndup(words, length), ask(words, length)};
  }
  place->times += times;
  struct duration found = place->duration;
  pthread_mutex_unlock(&lock);
  return found;
}

/* The time that the thread takes for a call. Of a call that launches nothing only its name counts. */
void take_call(const char *words, size_t length) {
  if (!is_virtual() || begins(words, "CUSTOM MARK")) return;
  int is_named = begins(words, "HOST ") && !begins(words, "HOST copy(");
  take_time(duration_of(words, is_named ? strcspn(words, "(") : length, 0).host_ns);
}

static int64_t later(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t *end_of(const struct stream *stream) {
  int id = stream ? stream->id % STREAMS : 0;
  if (!run.number) return &streams[id].end_ns;
  if (streams[id].run != run.number)
    streams[id].run = run.number, streams[id].run_end_ns = run.begin_ns;
  return &streams[id].run_end_ns;
}

/* Whether a line is `HOST name(number)`. */
static int is_call(const char *words, const char *name, int *number) {
  size_t length = strlen(name);
  if (!begins(words, "HOST ") || strncmp(words + 5, name, length)) return 0;
  *number = atoi(words + 5 + length + 1);
  return words[5 + length] == '(';
}

void run_line(int64_t ns, const struct stream *stream, const char *words, size_t length) {
  int number;
  int64_t *stream_end_ns = end_of(stream);
  if (is_call(words, "record", &number) || is_call(words, "update", &number)) {
    events_ns[number % EVENTS] = later(*stream_end_ns, ns);
  } else if (is_call(words, "wait", &number) || is_call(words, "await_update", &number)) {
    *stream_end_ns = later(*stream_end_ns, events_ns[number % EVENTS]);
  } else if (is_call(words, "replay", &number)) {
    run.number = __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED);
    run.begin_ns = run.end_ns = later(*stream_end_ns, ns);
  } else if (is_call(words, "replay_end", &number)) {
    run.number = 0;
    *end_of(stream) = run.end_ns;
  } else if (is_call(words, "copy", &number) ||
             !(begins(words, "HOST ") || begins(words, "CUSTOM MARK"))) {
    struct duration duration = duration_of(words, length, 1);
    *stream_end_ns = later(*stream_end_ns, ns) + duration.device_ns;
    sources_ns[duration.source % SOURCES] += duration.device_ns;
    run.end_ns = later(run.end_ns, *stream_end_ns);
    end_ns = later(end_ns, *stream_end_ns);
  }
}

int64_t stream_ns(const struct stream *stream) { return *end_of(stream); }
int64_t event_ns(int event) { return events_ns[event % EVENTS]; }
int64_t device_ns(void) { return end_ns; }
