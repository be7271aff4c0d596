/* Device memory, which is the host's: what is copied there can be read back, nothing is computed. */
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

int aclrtMalloc(void **memory, size_t bytes, int policy) { return allocate(memory, bytes); }
int aclrtMallocAlign32(void **memory, size_t bytes, int policy) {
  return allocate(memory, bytes);
}
int aclrtMallocHost(void **memory, size_t bytes) { return allocate(memory, bytes); }
int aclrtMallocHostWithCfg(void **memory, uint64_t bytes, void *config) {
  return allocate(memory, bytes);
}
int aclrtFree(void *memory) { return free(memory), 0; }
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
  *available = (size_t)60 << 30;
  *total = (size_t)64 << 30;
  return 0;
}
