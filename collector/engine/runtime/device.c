/* Devices of a fake host: as many as FAKE_NPU_COUNT says, all alike. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* By this symbol a program knows that no number which it measures is a real one. */
int opmeter_fake_cann_runtime(void) { return 1; }

/* A process forked from one that has loaded this runtime begins as if it had loaded it now. */
void opmeter_fake_cann_begin(void) {
  begin_clock();
  open_log();
  if (read_rules) read_rules();
  see_devices();
}

static const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value && *value ? value : otherwise;
}

const char *aclrtGetSocName(void) { return setting("FAKE_NPU_SOC", "Ascend910_9391"); }

/* By CANN's platform tables: each core has one for cubes and two for vectors. */
static int cube_cores(void) {
  const char *soc = aclrtGetSocName();
  int few = strstr(soc, "910B3") || strstr(soc, "910B4") || strstr(soc, "_936") || strstr(soc, "_937");
  return few ? 20 : 24;
}

#define MOST_DEVICES 64

static __thread int device;
static int visible[MOST_DEVICES]; /* the host's number of each device that the process sees */
static int visible_count;

__attribute__((constructor)) void see_devices(void) {
  visible_count = 0;
  int there = atoi(setting("FAKE_NPU_COUNT", "0"));
  char *list = strdup(setting("ASCEND_RT_VISIBLE_DEVICES", "")), *rest = list;
  if (!*list)
    for (; visible_count < there && visible_count < MOST_DEVICES; visible_count++)
      visible[visible_count] = visible_count;
  while (*list && rest && visible_count < MOST_DEVICES) {
    int number = atoi(strsep(&rest, ","));
    if (number < 0 || number >= there) break; /* as CANN: what follows a wrong one is not seen */
    visible[visible_count++] = number;
  }
  free(list);
}

int current_device(void) { return device < visible_count ? visible[device] : device; }

int aclrtGetDeviceCount(uint32_t *count) { return *count = (uint32_t)visible_count, 0; }

int aclrtGetDevice(int32_t *index) { return *index = device, 0; }
int aclrtSetDevice(int32_t index) { return device = index, 0; }
int aclrtGetLogicDevIdByUserDevId(int32_t user, int32_t *logic) { return *logic = user, 0; }

int aclrtGetPrimaryCtxState(int32_t index, uint32_t *flags, int32_t *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return 0;
}

int aclrtGetCurrentContext(void **context) {
  static char only[64];
  *context = only;
  return 0;
}

const char *aclGetRecentErrMsg(void) { return ""; }

int aclrtGetDeviceCapability(int32_t index, int feature, int32_t *value) {
  return *value = 0, 0;
}
int aclrtDeviceCanAccessPeer(int32_t *can, int32_t from, int32_t to) { return *can = 1, 0; }
int aclrtGetDeviceInfo(uint32_t index, int what, int64_t *value) {
  return *value = cube_cores(), 0;
}
int aclGetDeviceCapability(uint32_t index, int what, int64_t *value) {
  return *value = cube_cores(), 0;
}
int aclrtGetDeviceResLimit(int32_t index, int type, uint32_t *value) {
  return *value = cube_cores() << !!type, 0;
}
int aclrtGetStreamResLimit(void *stream, int type, uint32_t *value) {
  return *value = cube_cores() << !!type, 0;
}
int aclrtGetResInCurrentThread(int type, uint32_t *value) {
  return *value = cube_cores() << !!type, 0;
}
int aclrtDeviceGetBareTgid(int32_t *process) { return *process = getpid(), 0; }
int aclrtGetSysParamOpt(int option, int64_t *value) { return *value = 0, 0; }

size_t aclGetCompileoptSize(int option) { return 64; }
int aclGetCompileopt(int option, char *value, size_t length) {
  if (length >= sizeof "disable") strcpy(value, "disable");
  return 0;
}

int aclsysGetVersionStr(char *package, char *version) {
  strcpy(version, setting("FAKE_CANN_VERSION", "8.5.0"));
  return 0;
}
int aclsysGetCANNVersion(int package, char *version) {
  strcpy(version, setting("FAKE_CANN_VERSION", "8.5.0"));
  return 0;
}
