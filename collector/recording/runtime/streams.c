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

int aclrtCreateEvent(void **event) {
  *event = calloc(1, sizeof(struct timespec));
  return 0;
}
int aclrtCreateEventWithFlag(void **event, uint32_t flag) { return aclrtCreateEvent(event); }
int aclrtCreateEventExWithFlag(void **event, uint32_t flag) { return aclrtCreateEvent(event); }
int aclrtDestroyEvent(void *event) { return free(event), 0; }
int aclrtRecordEvent(void *event, void *stream) { return clock_gettime(CLOCK_MONOTONIC, event); }
int aclrtQueryEventStatus(void *event, int *status) { return *status = 1, 0; } /* recorded */
int aclrtQueryEventWaitStatus(void *event, int *status) { return *status = 0, 0; }
int aclrtEventElapsedTime(float *ms, const struct timespec *from, const struct timespec *to) {
  *ms = (float)((to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) / 1e6);
  return 0;
}
