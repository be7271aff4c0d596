/* ATB: operations and contexts are C++ objects, so these have a table of virtual functions.
   An operation's table (atb/operation.h): two destructors, GetName, InferShape, GetInputNum,
   GetOutputNum, Setup, Execute. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define VIRTUALS 64

struct object {
  long (**virtuals)(void);
  const char *name;
};

static long nothing(void) { return 0; }

static int execute(struct object *operation, const void *pack, uint8_t *workspace, uint64_t bytes,
                   void *context) {
  struct text line = {0};
  put(&line, "ATB ");
  put(&line, operation->name);
  put(&line, "()");
  record_line(NULL, line.data, line.length);
  free(line.data);
  return 0;
}

static struct object *object(const char *name) {
  static long (*table[VIRTUALS])(void);
  for (int i = 0; i < VIRTUALS && !table[VIRTUALS - 1]; i++) table[i] = nothing;
  table[7] = (long (*)(void))execute;
  struct object *made = calloc(1, sizeof *made + 256);
  made->virtuals = table;
  made->name = name;
  return made;
}

int fake_atb_operation(const void *parameters, struct object **made, const char *name) {
  *made = object(name);
  return 0;
}

int fake_atb_context(struct object **made) {
  *made = object("context");
  return 0;
}
