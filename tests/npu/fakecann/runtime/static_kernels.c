/* What builds kernels for one shape: the operators that run are dumped, and CANN reads the packages
   that are installed. Both are lines of the log of launches, which the fake op_compiler and the fake
   msprof read: `CUSTOM DUMP(1)`, `CUSTOM DUMP(0)`, `CUSTOM RESELECT(0)`. */
#include "fake.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int aclopStartDumpArgs(uint32_t type, const char *path) {
  static int dumps;
  char folder[4096], file[4200];
  snprintf(folder, sizeof folder, "%s/%d_opcompile", path, (int)getpid());
  mkdir(folder, 0750);
  snprintf(file, sizeof file, "%s/operators.json", folder);
  FILE *operators = fopen(file, "w");
  /* torchair compiles a file with the same content once */
  if (operators) fprintf(operators, "{\"dump\": %d}\n", dumps++), fclose(operators);
  record_now(NULL, "CUSTOM DUMP(1)");
  return 0;
}

int aclopStopDumpArgs(uint32_t type) { return record_now(NULL, "CUSTOM DUMP(0)"), 0; }

int aclnnReselectStaticKernel(void) { return record_now(NULL, "CUSTOM RESELECT(0)"), 0; }
