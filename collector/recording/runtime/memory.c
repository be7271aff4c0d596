/* Device memory, which is the host's: what is copied there can be read back, nothing is computed. */
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
int aclrtMallocHost(void **memory, size_t bytes) { return allocate(memory, bytes); }
int aclrtMallocHostWithCfg(void **memory, uint64_t bytes, void *config) {
  return allocate(memory, bytes);
}
int aclrtFree(void *memory) {
  __atomic_sub_fetch(&taken, malloc_usable_size(memory), __ATOMIC_RELAXED);
  return free(memory), 0;
}
int aclrtFreeHost(void *memory) { return free(memory), 0; }

int aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int kind) {
  return memmove(to, from, bytes), 0;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int kind,
                     void *stream) {
  return memmove(to, from, bytes), 0;
}
int aclrtMemcpyAsyncWithCondition(void *to, size_t room, const void *from, size_t bytes, int kind,
                                  void *stream) {
  return memmove(to, from, bytes), 0;
}
int aclrtMemset(void *memory, size_t room, int32_t value, size_t bytes) {
  return memset(memory, value, bytes), 0;
}
int aclrtMemsetAsync(void *memory, size_t room, int32_t value, size_t bytes, void *stream) {
  return memset(memory, value, bytes), 0;
}

int aclrtGetMemInfo(int kind, size_t *available, size_t *total) {
  const char *size_gb = getenv("FAKE_NPU_MEMORY_GB");
  *total = (size_t)(size_gb && *size_gb ? atoi(size_gb) : 64) << 30;
  *available = *total - ((size_t)1 << 30);
  *available = *available > taken ? *available - taken : 0;
  return 0;
}
