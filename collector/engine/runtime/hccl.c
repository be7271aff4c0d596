/* Collectives: they are recorded and wait for the other ranks. They move no data, except that each
   rank of a small all-gather receives its own part in the place of all parts. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define ROOT_INFO_BYTES 4108

struct group {
  uint32_t ranks;
  struct meeting *meeting; /* NULL where nobody said how to find it */
};

static int create(void **group, uint32_t ranks, struct meeting *meeting) {
  struct group *made = calloc(1, 64);
  *made = (struct group){ranks, meeting};
  return *group = made, 0;
}

int HcclGetRootInfo(void *root) {
  memset(root, 0, ROOT_INFO_BYTES);
  return write_root(root), 0;
}
int HcclCommInitRootInfo(uint32_t ranks, const void *root, uint32_t rank, void **group) {
  return create(group, ranks, open_meeting(root, ranks, rank));
}
int HcclCommInitRootInfoConfig(uint32_t ranks, const void *root, uint32_t rank,
                               const void *config, void **group) {
  return HcclCommInitRootInfo(ranks, root, rank, group);
}
int HcclCommInitClusterInfoConfig(const char *file, uint32_t rank, void *config, void **group) {
  return create(group, 1, NULL); /* how many stands in the file */
}
int HcclCreateSubCommConfig(void **group, uint32_t ranks, uint32_t *ids, uint64_t id,
                            uint32_t rank, void *config, void **made) {
  return create(made, ranks, NULL);
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

static void put_elements(struct text *line, uint64_t count, int type) {
  int64_t shape[] = {(int64_t)count};
  put_tensor(line, dtype_of(type), 2, shape, 1);
}

static void begin(struct text *line, const char *name) {
  put(line, "HCCL ");
  put(line, name);
  put(line, "(");
}

/* Written down when this rank comes, done when all have. A line ends with the group's ranks. */
static int end(struct text *line, struct group *group, const struct stream *stream) {
  put(line, ", ranks=");
  put_int(line, group->ranks);
  put(line, ")");
  record_line(stream, line->data, line->length);
  free(line->data);
  meet(group->meeting, group->ranks);
  return 0;
}

static int collective(const char *name, uint64_t count, int type, int operation,
                      struct group *group, const struct stream *stream) {
  struct text line = {0};
  begin(&line, name);
  put_elements(&line, count, type);
  if (operation >= 0) put(&line, ", "), put_int(&line, operation);
  return end(&line, group, stream);
}

/* Small messages are counts and splits, which host code reads: every rank is assumed to send the
   same ones. */
#define SMALL (1 << 20)
static size_t width_of(int type) {
  static const size_t widths[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
  return type >= 0 && type < (int)(sizeof widths / sizeof *widths) ? widths[type] : 0;
}
static void arrive(const char *from, char *to, uint64_t count, int type, uint32_t times) {
  size_t bytes = count * width_of(type);
  if (bytes > SMALL) return;
  for (uint32_t i = 0; i < times; i++) memmove(to + i * bytes, from, bytes);
}

int HcclAllReduce(void *from, void *to, uint64_t count, int type, int operation, void *group,
                  void *stream) {
  return collective("HcclAllReduce", count, type, operation, group, stream);
}
int HcclBroadcast(void *data, uint64_t count, int type, uint32_t root, void *group,
                  void *stream) {
  return collective("HcclBroadcast", count, type, (int)root, group, stream);
}
int HcclReduceScatter(void *from, void *to, uint64_t count, int type, int operation, void *group,
                      void *stream) {
  return collective("HcclReduceScatter", count, type, operation, group, stream);
}
int HcclAllGather(void *from, void *to, uint64_t count, int type, void *group, void *stream) {
  arrive(from, to, count, type, ((struct group *)group)->ranks);
  return collective("HcclAllGather", count, type, -1, group, stream);
}
int HcclReduce(void *from, void *to, uint64_t count, int type, int operation, uint32_t root,
               void *group, void *stream) {
  return collective("HcclReduce", count, type, operation, group, stream);
}
int HcclSend(void *from, uint64_t count, int type, uint32_t to, void *group, void *stream) {
  return collective("HcclSend", count, type, (int)to, group, stream);
}
int HcclRecv(void *to, uint64_t count, int type, uint32_t from, void *group, void *stream) {
  return collective("HcclRecv", count, type, (int)from, group, stream);
}
int HcclAlltoAll(const void *from, uint64_t count, int type, const void *to, uint64_t received,
                 int received_type, void *group, void *stream) {
  return collective("HcclAlltoAll", count, type, -1, group, stream);
}
/* What goes to each rank of the group, in one list. */
int HcclAlltoAllV(const void *from, const void *counts, const void *starts, int type, void *to,
                  const void *received, const void *received_starts, int received_type, void *group,
                  void *stream) {
  struct text line = {0};
  begin(&line, "HcclAlltoAllV");
  put(&line, "{");
  for (uint32_t rank = 0; rank < ((struct group *)group)->ranks; rank++) {
    if (rank) put(&line, ", ");
    put_elements(&line, ((const int64_t *)counts)[rank], type);
  }
  put(&line, "}");
  return end(&line, group, stream);
}

struct item { /* HcclSendRecvItem of hccl_types.h */
  int receives;
  void *buffer;
  uint64_t count;
  int type;
  uint32_t other;
};

/* What is sent and what is received, each with the other rank. */
int HcclBatchSendRecv(struct item *items, uint32_t count, void *group, void *stream) {
  struct text line = {0};
  begin(&line, "HcclBatchSendRecv");
  put(&line, "{");
  for (uint32_t at = 0; at < count; at++) {
    if (at) put(&line, ", ");
    put_elements(&line, items[at].count, items[at].type);
  }
  put(&line, "}");
  for (uint32_t at = 0; at < count; at++) {
    put(&line, items[at].receives ? ", from=" : ", to=");
    put_int(&line, items[at].other);
  }
  return end(&line, group, stream);
}
