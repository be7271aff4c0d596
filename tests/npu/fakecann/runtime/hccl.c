/* Collectives: they are written down and move nothing. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define ROOT_INFO_BYTES 4108

/* A group is its number of ranks. */
static int create(void **group, uint32_t ranks) {
  uint32_t *made = calloc(1, 64);
  *made = ranks;
  return *group = made, 0;
}

int HcclGetRootInfo(void *root) { return memset(root, 7, ROOT_INFO_BYTES), 0; }
int HcclCommInitRootInfo(uint32_t ranks, const void *root, uint32_t rank, void **group) {
  return create(group, ranks);
}
int HcclCommInitRootInfoConfig(uint32_t ranks, const void *root, uint32_t rank,
                               const void *config, void **group) {
  return create(group, ranks);
}
int HcclCommInitClusterInfoConfig(const char *file, uint32_t rank, void *config, void **group) {
  return create(group, 1); /* how many stands in the file */
}
int HcclCreateSubCommConfig(void **group, uint32_t ranks, uint32_t *ids, uint64_t id,
                            uint32_t rank, void *config, void **made) {
  return create(made, ranks);
}
int HcclGetCommName(void *group, char *name) { return strcpy(name, "fake_hccl"), 0; }
int HcclGetCommAsyncError(void *group, int *error) { return *error = 0, 0; }
const char *HcclGetErrorString(int error) { return "fake"; }
uint32_t HcclGetCommConfigCapability(void) { return 0; }

/* HcclDataType of hccl_types.h -> aclDataType */
static int dtype_of(int type) {
  static const int acl[] = {2, 6, 3, 1, 0, 9, 10, 4, 7, 8, 11, 27};
  return type >= 0 && type < (int)(sizeof acl / sizeof *acl) ? acl[type] : -1;
}

static int collective(const char *name, uint64_t count, int type, int operation,
                      const struct stream *stream) {
  struct text line = {0};
  int64_t shape[] = {(int64_t)count};
  put(&line, "HCCL ");
  put(&line, name);
  put(&line, "(");
  put_tensor(&line, dtype_of(type), 2, shape, 1);
  if (operation >= 0) put(&line, ", "), put_int(&line, operation);
  put(&line, ")");
  record_line(stream, line.data, line.length);
  free(line.data);
  return 0;
}

int HcclAllReduce(void *from, void *to, uint64_t count, int type, int operation, void *group,
                  void *stream) {
  return collective("HcclAllReduce", count, type, operation, stream);
}
int HcclBroadcast(void *data, uint64_t count, int type, uint32_t root, void *group,
                  void *stream) {
  return collective("HcclBroadcast", count, type, (int)root, stream);
}
int HcclReduceScatter(void *from, void *to, uint64_t count, int type, int operation, void *group,
                      void *stream) {
  return collective("HcclReduceScatter", count, type, operation, stream);
}
int HcclAllGather(void *from, void *to, uint64_t count, int type, void *group, void *stream) {
  return collective("HcclAllGather", count, type, -1, stream);
}
int HcclReduce(void *from, void *to, uint64_t count, int type, int operation, uint32_t root,
               void *group, void *stream) {
  return collective("HcclReduce", count, type, operation, stream);
}
int HcclSend(void *from, uint64_t count, int type, uint32_t to, void *group, void *stream) {
  return collective("HcclSend", count, type, (int)to, stream);
}
int HcclRecv(void *to, uint64_t count, int type, uint32_t from, void *group, void *stream) {
  return collective("HcclRecv", count, type, (int)from, stream);
}
int HcclAlltoAll(const void *from, uint64_t count, int type, const void *to, uint64_t received,
                 int received_type, void *group, void *stream) {
  return collective("HcclAlltoAll", count, type, -1, stream);
}
/* What goes to each rank of the group, in one list. */
int HcclAlltoAllV(const void *from, const void *counts, const void *starts, int type, void *to,
                  const void *received, const void *received_starts, int received_type, void *group,
                  void *stream) {
  struct text line = {0};
  put(&line, "HCCL HcclAlltoAllV({");
  for (uint32_t rank = 0; rank < *(uint32_t *)group; rank++) {
    int64_t shape[] = {((const int64_t *)counts)[rank]};
    if (rank) put(&line, ", ");
    put_tensor(&line, dtype_of(type), 2, shape, 1);
  }
  put(&line, "})");
  record_line(stream, line.data, line.length);
  free(line.data);
  return 0;
}
