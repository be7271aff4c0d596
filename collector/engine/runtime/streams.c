/* Streams, on which everything has run as soon as it is launched, unless time is virtual, and
   events. */
#include "fake.h"

#include <stdlib.h>
#include <time.h>

static int streams;

static int create(void **made) {
  struct stream *stream = calloc(1, sizeof *stream);
  stream->id = __atomic_add_fetch(&streams, 1, __ATOMIC_RELAXED);
  stream->device = current_device();
  *made = stream;
  return 0;
}

int aclrtCreateStream(void **stream) { return create(stream); }
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) {
  return create(stream);
}
int aclrtStreamGetId(const struct stream *stream, int32_t *id) {
  return *id = stream ? stream->id : 0, 0;
}
int aclrtGetStreamOverflowSwitch(void *stream, uint32_t *flag) { return *flag = 0, 0; }

#define EXTERNAL 32 /* ACL_EVENT_EXTERNAL: a graph waits for it, and the host records it */

struct event {
  struct timespec at;
  int id, is_external;
};
static int events;

int aclrtCreateEventExWithFlag(struct event **event, uint32_t flag) {
  struct event *made = calloc(1, sizeof *made);
  made->id = __atomic_add_fetch(&events, 1, __ATOMIC_RELAXED);
  made->is_external = !!(flag & EXTERNAL);
  return *event = made, 0;
}
int aclrtCreateEventWithFlag(struct event **event, uint32_t flag) {
  return aclrtCreateEventExWithFlag(event, flag);
}
int aclrtCreateEvent(struct event **event) { return aclrtCreateEventExWithFlag(event, 0); }
int aclrtDestroyEvent(struct event *event) { return free(event), 0; } /* a graph has its number */

static int record_call(const char *name, int64_t number, const struct stream *stream) {
  struct text line = {0};
  put(&line, "HOST "), put(&line, name), put(&line, "("), put_int(&line, number), put(&line, ")");
  return record_host(stream, &line), 0;
}
int aclrtRecordEvent(struct event *event, const struct stream *stream) {
  clock_gettime(CLOCK_MONOTONIC, &event->at);
  return record_call(event->is_external ? "update" : "record", event->id, stream);
}
int aclrtStreamWaitEvent(const struct stream *stream, const struct event *event) {
  return record_call(event->is_external ? "await_update" : "wait", event->id, stream);
}

static int wait(int64_t ns) {
  if (is_virtual()) opmeter_fake_cann_wait(ns);
  return 0;
}
int aclrtSynchronizeEvent(const struct event *event) {
  record_call("synchronize_event", event->id, NULL);
  write_before_event(event->id);
  return wait(event_ns(event->id));
}
int aclrtSynchronizeStream(const struct stream *stream) {
  record_call("synchronize_stream", 0, stream);
  write_before_stream(stream);
  return wait(stream_ns(stream));
}
int aclrtSynchronizeStreamWithTimeout(const struct stream *stream, int32_t limit) {
  return aclrtSynchronizeStream(stream);
}
int aclrtSynchronizeDevice(void) {
  record_call("synchronize_device", 0, NULL);
  if (is_virtual()) write_pending();
  return wait(device_ns());
}
int aclrtSynchronizeDeviceWithTimeout(int32_t limit) { return aclrtSynchronizeDevice(); }

static int has_come(int64_t ns) {
  if (!is_virtual()) return 1;
  pause_host();
  int found = is_past(ns);
  resume_host();
  return found;
}
static int has_run(const struct event *event) {
  write_before_event(event->id);
  return has_come(event_ns(event->id));
}
int aclrtQueryEventStatus(const struct event *event, int *status) {
  return *status = has_run(event), 0; /* 1: recorded */
}
int aclrtQueryEventWaitStatus(const struct event *event, int *status) {
  return *status = !has_run(event), 0; /* 0: complete */
}
int aclrtStreamQuery(const struct stream *stream, int *status) {
  write_before_stream(stream);
  return *status = !has_come(stream_ns(stream)), 0; /* 0: complete */
}
int aclrtEventElapsedTime(float *ms, const struct event *from, const struct event *to) {
  const struct timespec *begin = &from->at, *end = &to->at;
  if (is_virtual()) *ms = (float)((event_ns(to->id) - event_ns(from->id)) / 1e6);
  else *ms = (float)((end->tv_sec - begin->tv_sec) * 1e3 + (end->tv_nsec - begin->tv_nsec) / 1e6);
  return 0;
}
