/* What aclCreateTensor and its like give out: slots of one table, so that an argument of an aclnn
   call is told from a number by where it points. */
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SLOTS 65536
#define DIMS 16

enum kind { FREE, TENSOR, WORDS };

struct tensor {
  int dtype, format;
  uint32_t dims, storage_dims;
  int64_t offset;
  int64_t shape[DIMS], strides[DIMS], storage[DIMS];
};

struct handle {
  enum kind kind;
  struct handle *next;
  union {
    struct tensor tensor;
    char *words;
  };
};

static struct handle *slots, *unused;
static uint32_t taken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* vector registers hold an aclnn call's floats: what lies there from before is marked as such, so
   that recorder.c does not take it for an argument */
static void forget_floats(void) {
  static const uint64_t mark = 0x7ff8dead0badf00dULL;
#ifdef __aarch64__
  __asm__ volatile(
      "fmov d0, %0\n fmov d1, %0\n fmov d2, %0\n fmov d3, %0\n"
      "fmov d4, %0\n fmov d5, %0\n fmov d6, %0\n fmov d7, %0\n"
      :
      : "r"(mark)
      : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7");
#else
  __asm__ volatile(
      "movq %0, %%xmm0\n movq %0, %%xmm1\n movq %0, %%xmm2\n movq %0, %%xmm3\n"
      "movq %0, %%xmm4\n movq %0, %%xmm5\n movq %0, %%xmm6\n movq %0, %%xmm7\n"
      :
      : "m"(mark)
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
#endif
}

static struct handle *take(enum kind kind) {
  pthread_mutex_lock(&lock);
  if (!slots) {
    slots = mmap(NULL, SLOTS * sizeof *slots, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  struct handle *handle = unused;
  if (handle) unused = handle->next;
  else if (taken < SLOTS) handle = &slots[taken++];
  else abort(); /* a leak: 65536 handles alive at once */
  handle->kind = kind;
  pthread_mutex_unlock(&lock);
  return handle;
}

void give_back(struct handle *handle) {
  if (!is_handle(handle)) return;
  pthread_mutex_lock(&lock);
  if (handle->kind == WORDS) free(handle->words);
  if (handle->kind != FREE) {
    handle->kind = FREE;
    handle->next = unused;
    unused = handle;
  }
  pthread_mutex_unlock(&lock);
}

int is_handle(const void *pointer) {
  const char *at = pointer, *first = (const char *)slots;
  if (!slots || at < first || at >= first + taken * sizeof *slots) return 0;
  return (at - first) % sizeof *slots == 0 && ((const struct handle *)pointer)->kind != FREE;
}

static int is_dense(const struct tensor *t) {
  int64_t expected = 1;
  for (int i = (int)t->dims - 1; i >= 0; i--) {
    if (t->shape[i] != 1 && t->strides[i] != expected) return 0;
    expected *= t->shape[i];
  }
  return 1;
}

static int is_whole(const struct tensor *t) {
  int64_t elements = 1;
  for (uint32_t i = 0; i < t->dims; i++) elements *= t->shape[i];
  if (t->offset) return 0;
  if (t->storage_dims == 1 && t->storage[0] == elements) return 1;
  return t->storage_dims == t->dims &&
         !memcmp(t->storage, t->shape, t->dims * sizeof *t->shape);
}

static void put_described(struct text *line, const struct tensor *t) {
  put_dtype(line, t->dtype);
  put(line, "[");
  put_ints(line, t->shape, t->dims);
  put(line, "]:");
  put_format(line, t->format);
  if (!is_dense(t)) put(line, "/"), put_ints(line, t->strides, t->dims);
  if (t->offset) put(line, "+"), put_int(line, t->offset);
  if (!is_whole(t)) put(line, "<"), put_ints(line, t->storage, t->storage_dims), put(line, ">");
}

void put_tensor(struct text *line, int dtype, int format, const int64_t *shape, uint64_t dims) {
  put_dtype(line, dtype);
  put(line, "[");
  put_ints(line, shape, dims);
  put(line, "]:");
  put_format(line, format);
}

void put_handle(struct text *line, const struct handle *handle) {
  if (handle->kind == TENSOR) put_described(line, &handle->tensor);
  else put(line, handle->words);
}

static void copy_dims(int64_t *to, const int64_t *from, uint64_t count) {
  if (from && count) memcpy(to, from, (count < DIMS ? count : DIMS) * sizeof *to);
}

void *aclCreateTensor(const int64_t *shape, uint64_t dims, int dtype, const int64_t *strides,
                      int64_t offset, int format, const int64_t *storage, uint64_t storage_dims,
                      void *data) {
  struct handle *handle = take(TENSOR);
  struct tensor *t = &handle->tensor;
  *t = (struct tensor){.dtype = dtype, .format = format, .offset = offset};
  t->dims = dims < DIMS ? dims : DIMS;
  t->storage_dims = storage_dims < DIMS ? storage_dims : DIMS;
  copy_dims(t->shape, shape, dims);
  copy_dims(t->strides, strides, dims);
  copy_dims(t->storage, storage, storage_dims);
  forget_floats();
  return handle;
}

void *words_handle(struct text line) {
  struct handle *handle = take(WORDS);
  handle->words = line.data;
  forget_floats();
  return handle;
}

int aclDestroyTensor(void *handle) { return give_back(handle), 0; }
int aclDestroyScalar(void *handle) { return give_back(handle), 0; }
int aclDestroyIntArray(void *handle) { return give_back(handle), 0; }
int aclDestroyBoolArray(void *handle) { return give_back(handle), 0; }
int aclDestroyFloatArray(void *handle) { return give_back(handle), 0; }
int aclDestroyTensorList(void *handle) { return give_back(handle), 0; }
int aclDestroyScalarList(void *handle) { return give_back(handle), 0; }

/* How torch_npu learns what an output came to be; nothing is computed, so it is what was given.
   The caller deletes the array. */
int aclGetViewShape(const struct handle *handle, int64_t **shape, uint64_t *dims) {
  *dims = handle->tensor.dims;
  *shape = malloc((*dims + 1) * sizeof **shape);
  copy_dims(*shape, handle->tensor.shape, *dims);
  return 0;
}

/* The legacy path of single operators (aclop.c) describes its tensors in pieces. */
void *aclCreateTensorDesc(int dtype, int dims, const int64_t *shape, int format) {
  int64_t strides[DIMS], step = 1;
  for (int i = dims - 1; i >= 0; i--) {
    if (i < DIMS) strides[i] = step;
    step *= shape[i];
  }
  return aclCreateTensor(shape, dims, dtype, strides, 0, format, shape, dims, NULL);
}

void aclDestroyTensorDesc(void *handle) { give_back(handle); }

int aclSetTensorFormat(void *handle, int format) {
  ((struct handle *)handle)->tensor.format = format;
  return 0;
}

int aclSetTensorShape(void *handle, int dims, const int64_t *shape) {
  struct tensor *t = &((struct handle *)handle)->tensor;
  t->storage_dims = dims < DIMS ? dims : DIMS;
  copy_dims(t->storage, shape, dims);
  return 0;
}
