/* Streams, on which everything has run as soon as it is launched, and events. */
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
int aclrtStreamQuery(void *stream, int *status) { return *status = 0, 0; } /* complete */
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
int aclrtSynchronizeEvent(const struct event *event) {
  return record_call("synchronize_event", event->id, NULL);
}
int aclrtSynchronizeStream(const struct stream *stream) {
  return record_call("synchronize_stream", 0, stream);
}
int aclrtSynchronizeStreamWithTimeout(const struct stream *stream, int32_t limit) {
  return aclrtSynchronizeStream(stream);
}
int aclrtSynchronizeDevice(void) { return record_call("synchronize_device", 0, NULL); }
int aclrtSynchronizeDeviceWithTimeout(int32_t limit) { return aclrtSynchronizeDevice(); }
int aclrtQueryEventStatus(void *event, int *status) { return *status = 1, 0; } /* recorded */
int aclrtQueryEventWaitStatus(void *event, int *status) { return *status = 0, 0; }
int aclrtEventElapsedTime(float *ms, const struct timespec *from, const struct timespec *to) {
  *ms = (float)((to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) / 1e6);
  return 0;
}
