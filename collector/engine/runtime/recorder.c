/* Writes launches down: one line and one write() each, so that a log is whole up to a crash.

   An aclnn call comes in two steps: aclnnXGetWorkspaceSize(arguments..., size *, executor **)
   receives the arguments, aclnnX(workspace, size, executor, stream) launches. The first one's text
   travels as the executor. Which arguments there are is not known here: integers and pointers are
   read as the calling convention of x86-64 or of AArch64 lays them out, up to the pair of pointers
   that ends them. */
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_ARGUMENTS 64
#define STACK_REACH (1 << 16) /* how far above this frame the caller's locals may lie */

/* entry.S: what the registers held. */
struct registers {
  uint64_t integers[INTEGERS];
  struct {
    uint64_t low, high;
  } vectors[8];
};

/* A call between its two steps. Those of Atb... are kept by the caller and passed again. */
struct executor {
  struct executor *kept;
  int64_t ns; /* of the first step, which another thread may do */
  struct text line;
};

static struct executor *all_kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int log_file = -1;

__attribute__((constructor)) void open_log(void) {
  const char *path = getenv("FAKE_CANN_LOG");
  if (log_file >= 0) close(log_file);
  log_file = -1;
  if (path && *path) log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

void record_line(const struct stream *stream, const char *words, size_t length) {
  pause_host();
  take_call(words, length);
  if (!keeps_line(stream, words, length)) write_line(host_ns(), stream, words, length);
  resume_host();
}

/* A call that launches nothing: `HOST name(arguments)`. It takes over the text. */
void record_host(const struct stream *stream, struct text *line) {
  if (has_order() || is_virtual()) record_line(stream, line->data, line->length);
  free(line->data);
}

void write_line(int64_t ns, const struct stream *stream, const char *words, size_t length) {
  if (is_virtual()) run_line(ns, stream, words, length);
  if (launch_faults) launch_faults(words, stream ? stream->device : current_device());
  int profile = profiled_launches ? profiled_launches() : -1;
  if (log_file < 0 && profile < 0) return;
  static __thread struct text line;
  line.length = 0;
  put_int(&line, ns);
  put(&line, " ");
  put_int(&line, stream ? stream->device : current_device());
  put(&line, " ");
  put_int(&line, stream ? stream->id : 0);
  put(&line, " ");
  put_bytes(&line, words, length);
  put(&line, "\n");
  /* a full disk shows as a log that is cut off */
  if (log_file >= 0 && write(log_file, line.data, line.length) < 0) return;
  if (profile >= 0 && write(profile, line.data, line.length) < 0) return;
}

void record_now(const struct stream *stream, const char *words) {
  record_line(stream, words, strlen(words));
}

/* For kernels that Python registers (vLLM-Ascend's): `CUSTOM name(arguments)`. */
void opmeter_fake_cann_record(const char *words) { record_now(NULL, words); }
void opmeter_fake_cann_record_on(const char *words, const struct stream *stream) {
  record_now(stream, words);
}

static int is_near(uint64_t value, const void *frame) {
  uint64_t here = (uint64_t)frame;
  return value > here && value - here < STACK_REACH && value % 8 == 0;
}

static int is_kept(const struct executor *executor) {
  const struct executor *known = all_kept;
  while (known && known != executor) known = known->kept;
  return known != NULL;
}

/* The workspace size and the executor: two locals of the caller, both zero before the call, or
   the second one kept from an earlier call. */
static int ends_at(uint64_t size, uint64_t executor, const void *frame) {
  if (!is_near(size, frame) || !is_near(executor, frame)) return 0;
  const struct executor *given = *(struct executor *const *)executor;
  return *(const uint64_t *)size == 0 && (!given || is_kept(given));
}

/* Text at an address that may be anything: the kernel reads it, so that nothing is touched. */
static int is_text(uint64_t address, char *words, size_t room) {
  if (address < 4096 || address >> 47) return 0;
  struct iovec to = {words, room - 1}, from = {(void *)address, room - 1};
  ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  if (got <= 0) return 0;
  words[got] = 0;
  size_t length = strlen(words);
  for (size_t i = 0; i < length; i++)
    if (words[i] < 32 || words[i] > 126) return 0;
  return length + 1 < room;
}

static void put_integer(struct text *line, uint64_t value) {
  char words[64];
  int64_t number = (int64_t)value;
  if (is_handle((void *)value)) {
    put_handle(line, (void *)value);
  } else if (is_text(value, words, sizeof words)) {
    put(line, "\"");
    put(line, words);
    put(line, "\"");
  } else if (value >> 40 && number != INT64_MAX && number > INT64_MIN / 2 && number > 0) {
    put_int(line, (int32_t)value); /* a 32-bit argument in a slot that held an address before */
  } else {
    put_int(line, number);
  }
}

/* No call is given such a number: it is what a register happens to hold. */
static int is_nan(uint64_t low) {
  if (low < 1ULL << 32) return (low & 0x7f800000) == 0x7f800000 && low & 0x7fffff;
  return (low & 0x7ff0000000000000ULL) == 0x7ff0000000000000ULL && low & 0xfffffffffffffULL;
}

/* A float or double argument leaves the upper half of its register zero, and is no subnormal
   number; what moved memory or integers is otherwise, and handles.c marked the rest. A zero may
   be either: it counts between two numbers. */
static int holds_number(uint64_t low, uint64_t high) {
  if (high || is_nan(low)) return 0;
  return low == 0 || low >> 52 || (low < 1ULL << 32 && low >> 23);
}

static void put_vectors(struct text *line, const struct registers *given) {
  int count = 0, written = 0;
  for (int i = 0; i < 8; i++) {
    uint64_t low = given->vectors[i].low;
    if (!holds_number(low, given->vectors[i].high)) break;
    if (low) count = i + 1;
  }
  for (int i = 0; i < count; i++) {
    uint64_t low = given->vectors[i].low;
    double number;
    float single;
    /* the compiler copies an argument by way of the next register: what repeats is a copy */
    if (i && low == given->vectors[i - 1].low) continue;
    memcpy(&number, &low, sizeof number);
    memcpy(&single, &low, sizeof single);
    put(line, written++ ? ", " : "; ");
    if (low && low < 1ULL << 32) put_float(line, single, 9);
    else put_float(line, number, 17);
  }
}

static struct executor *new_executor(int keep) {
  struct executor *made = calloc(1, sizeof *made);
  if (keep) {
    pthread_mutex_lock(&lock);
    made->kept = all_kept;
    all_kept = made;
    pthread_mutex_unlock(&lock);
  }
  return made;
}

/* aclnn...GetWorkspaceSize; `more` is where the caller laid the arguments that have no register. */
int fake_aclnn_arguments(const char *name, const struct registers *given, const uint64_t *more) {
  static __thread struct text line;
  uint64_t all[MOST_ARGUMENTS];
  pause_host();
  for (int i = 0; i < MOST_ARGUMENTS; i++) all[i] = i < INTEGERS ? given->integers[i] : more[i - INTEGERS];
  line.length = 0;
  put(&line, "ACLNN ");
  put(&line, name);
  put(&line, "(");
  int i = 0;
  for (; i + 1 < MOST_ARGUMENTS && !ends_at(all[i], all[i + 1], given); i++) {
    if (i) put(&line, ", ");
    put_integer(&line, all[i]);
  }
  if (i + 1 == MOST_ARGUMENTS) abort(); /* the end was not found: the layout is another one */
  put_vectors(&line, given);
  put(&line, ")");
  struct executor **place = (struct executor **)all[i + 1];
  if (!*place) *place = new_executor(!strncmp(name, "Atb", 3));
  (*place)->line.length = 0;
  put_bytes(&(*place)->line, line.data, line.length);
  (*place)->ns = host_ns();
  resume_host();
  return 0;
}

int fake_aclnn_launch(struct executor *executor, const struct stream *stream) {
  if (!executor) return 0;
  if (is_virtual()) opmeter_fake_cann_wait(executor->ns);
  record_line(stream, executor->line.data, executor->line.length);
  if (is_kept(executor)) return 0;
  free(executor->line.data);
  free(executor);
  return 0;
}
