/* A profile that a process takes of itself, as torch_npu's profiler does: while it lasts, launches
   are written into a PROF folder, too, which the fake msprof exports. */
#include "fake.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 4096

static char folder[PATH_BYTES - 64];
static int launches = -1;
static atomic_int lasts;

/* acl_prof.h: what is collected of a task. Without the last three, a kernel has no name. */
enum { TASK_TIME_L0 = 0x800, TASK_TIME = 0x2, TASK_TIME_L2 = 0x2000, TASK_TIME_L3 = 0x8000 };
static const uint64_t named = TASK_TIME | TASK_TIME_L2 | TASK_TIME_L3;

int profiled_launches(void) { return atomic_load(&lasts) ? launches : -1; }

static long long now_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int opened(const char *name) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s%s", folder, name);
  return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

static void written(const char *name, const char *words) {
  int file = opened(name);
  if (file >= 0) dprintf(file, "%s", words), close(file);
}

int aclprofInit(const char *path, size_t length) {
  static const char *const parts[] = {"", "/host", "/host/data", "/device_0", "/device_0/data"};
  char stamp[32], begun[160], made[PATH_BYTES];
  long long real_ns = now_ns(CLOCK_REALTIME);
  time_t seconds = real_ns / 1000000000LL;
  struct tm local;
  strftime(stamp, sizeof stamp, "%Y%m%d%H%M%S", localtime_r(&seconds, &local));
  snprintf(folder, sizeof folder, "%.*s/PROF_000001_%s%03lld_WITHIN%d", (int)length, path, stamp,
           real_ns / 1000000 % 1000, (int)getpid());
  for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) {
    snprintf(made, sizeof made, "%s%s", folder, parts[at]);
    mkdir(made, 0750);
  }
  written("/host/sample.json", "{\"metrics\": \"PipeUtilization\", \"level\": \"l1\"}");
  snprintf(begun, sizeof begun,
           "{\"collectionTimeBegin\": \"%lld.%03lld\", \"clockMonotonicRaw\": \"%lld\"}",
           real_ns / 1000, real_ns % 1000, now_ns(CLOCK_MONOTONIC_RAW));
  written("/host/start_info", begun);
  launches = opened("/device_0/data/launches.txt");
  return launches < 0;
}

void *aclprofCreateConfig(uint32_t *devices, uint32_t count, int metrics, const void *events,
                          uint64_t types) {
  uint64_t *config = calloc(1, sizeof types);
  if (config) *config = types;
  return config;
}
int aclprofDestroyConfig(void *config) { return free(config), 0; }
int aclprofStart(const void *config) {
  uint64_t types = *(const uint64_t *)config;
  if (!(types & named)) written("/host/level_0", "");
  return atomic_store(&lasts, (types & (named | TASK_TIME_L0)) != 0), 0;
}
int aclprofStop(const void *config) { return atomic_store(&lasts, 0), 0; }
int aclprofFinalize(void) {
  atomic_store(&lasts, 0);
  if (launches >= 0) close(launches);
  return launches = -1, 0;
}
