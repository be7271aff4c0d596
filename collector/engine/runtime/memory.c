/* Device memory, which is the host's: what is copied there can be read back, nothing is computed. */
#include "fake.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 512
#define OUT_OF_MEMORY 207001 /* ACL_ERROR_RT_MEMORY_ALLOCATION */

/* FAKE_NPU_MEMORY=endless: a device that never says that it is full. */
static int allocate(void **memory, size_t bytes) {
  const char *size = getenv("FAKE_NPU_MEMORY");
  if (bytes >> 40 && size && !strcmp(size, "endless")) bytes = ALIGNMENT;
  return posix_memalign(memory, ALIGNMENT, bytes ? bytes : ALIGNMENT) ? OUT_OF_MEMORY : 0;
}

/* Allocated bytes: an engine sizes its cache by the free memory. */
static size_t taken;

static int allocate_device(void **memory, size_t bytes) {
  int wrong = allocate(memory, bytes);
  if (!wrong) __atomic_add_fetch(&taken, malloc_usable_size(*memory), __ATOMIC_RELAXED);
  return wrong;
}
int aclrtMalloc(void **memory, size_t bytes, int policy) { return allocate_device(memory, bytes); }
int aclrtMallocAlign32(void **memory, size_t bytes, int policy) {
  return allocate_device(memory, bytes);
}

/* Pinned memory. A copy from or to other memory is not asynchronous, so torch asks which it is. */
#define MOST_RANGES 65536
static struct range {
  const char *from;
  size_t bytes;
} pinned[MOST_RANGES];
static int ranges;
static int allocate_host(void **memory, size_t bytes) {
  int wrong = allocate(memory, bytes);
  if (!wrong && ranges < MOST_RANGES) {
    int at = __atomic_fetch_add(&ranges, 1, __ATOMIC_RELAXED);
    pinned[at] = (struct range){*memory, bytes};
  }
  return wrong;
}
int aclrtMallocHost(void **memory, size_t bytes) { return allocate_host(memory, bytes); }
int aclrtMallocHostWithCfg(void **memory, uint64_t bytes, void *config) {
  return allocate_host(memory, bytes);
}
struct attributes {
  uint32_t id, type, page, rest[4];
};
int aclrtPointerGetAttributes(const void *memory, struct attributes *found) {
  enum { HOST = 0, UNREGISTERED = 2 };
  *found = (struct attributes){0, UNREGISTERED, 4096, {0}};
  for (int i = 0; i < ranges; i++) {
    const char *from = pinned[i].from, *at = memory;
    if (at >= from && at < from + pinned[i].bytes) found->type = HOST;
  }
  return 0;
}
int aclrtFree(void *memory) {
  __atomic_sub_fetch(&taken, malloc_usable_size(memory), __ATOMIC_RELAXED);
  return free(memory), 0;
}
int aclrtFreeHost(void *memory) {
  for (int i = 0; i < ranges; i++)
    if (pinned[i].from == memory) pinned[i].bytes = 0;
  return free(memory), 0;
}

/* The direction is an aclrtMemcpyKind; FILL is none of them. The host does not move the bytes. */
enum { FILL = 4 };
static int moved(int direction, size_t bytes, int is_blocking, const struct stream *stream) {
  struct text line = {0};
  put(&line, "HOST copy("), put_int(&line, direction), put(&line, ", ");
  put_int(&line, (int64_t)bytes), put(&line, ", "), put_int(&line, is_blocking), put(&line, ")");
  record_host(stream, &line);
  if (is_blocking && is_virtual()) write_before_stream(stream), wait_until(stream_ns(stream));
  resume_host();
  return 0;
}
int aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int kind) {
  pause_host();
  return memmove(to, from, bytes), moved(kind, bytes, 1, NULL);
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int kind,
                     const struct stream *stream) {
  pause_host();
  return memmove(to, from, bytes), moved(kind, bytes, 0, stream);
}
int aclrtMemcpyAsyncWithCondition(void *to, size_t room, const void *from, size_t bytes, int kind,
                                  const struct stream *stream) {
  return aclrtMemcpyAsync(to, room, from, bytes, kind, stream);
}
int aclrtMemset(void *memory, size_t room, int32_t value, size_t bytes) {
  pause_host();
  return memset(memory, value, bytes), moved(FILL, bytes, 1, NULL);
}
int aclrtMemsetAsync(void *memory, size_t room, int32_t value, size_t bytes,
                     const struct stream *stream) {
  pause_host();
  return memset(memory, value, bytes), moved(FILL, bytes, 0, stream);
}

int aclrtGetMemInfo(int kind, size_t *available, size_t *total) {
  const char *size_gb = getenv("FAKE_NPU_MEMORY_GB");
  *total = (size_t)(size_gb && *size_gb ? atoi(size_gb) : 64) << 30;
  *available = *total - ((size_t)1 << 30);
  *available = *available > taken ? *available - taken : 0;
  return 0;
}
