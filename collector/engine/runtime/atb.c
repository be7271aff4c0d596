/* ATB: operations and contexts are C++ objects, so these have a table of virtual functions.

   The order of the functions and the layout of what they receive are those that torch_npu 2.13.0's
   libop_plugin_atb.so was compiled for. An operation's parameters (head counts, scales) are a
   structure for each type, whose layout is not in the wheel: they are not written down. */
#include "fake.h"

#include <stdlib.h>

#define VIRTUALS 64
#define EXECUTE 7            /* of an operation: behind its destructors and five other functions */
#define SET_EXECUTE_STREAM 2 /* of a context: behind its destructors */
#define LISTED 65            /* tensors that a list holds in itself; no operation has more */

struct object {
  long (**virtuals)(void);
  const char *name;
  const struct stream *stream;
  char room[256]; /* nobody outside looks into these objects; it is kept all the same */
};

struct tensor {
  int32_t dtype, format;
  int64_t shape[8];
  uint64_t dims;
  void *device, *host;
  uint64_t bytes;
};

struct list {
  uint64_t unused, count;
  struct tensor tensors[LISTED];
  void *more;
};

struct pack {
  struct list inputs, outputs;
};

static long nothing(void) { return 0; }

static void put_list(struct text *line, const struct list *list) {
  for (uint64_t i = 0; i < list->count; i++) {
    const struct tensor *tensor = &list->tensors[i];
    if (i) put(line, ", ");
    if (tensor->device || tensor->host)
      put_tensor(line, tensor->dtype, tensor->format, tensor->shape, tensor->dims);
    else put(line, "0");
  }
}

static int execute(const struct object *operation, const struct pack *pack, uint8_t *workspace,
                   uint64_t bytes, const struct object *context) {
  struct text line = {0};
  put(&line, "ATB ");
  put(&line, operation->name);
  put(&line, "(");
  put_list(&line, &pack->inputs);
  put(&line, " -> ");
  put_list(&line, &pack->outputs);
  put(&line, ")");
  record_line(context ? context->stream : NULL, line.data, line.length);
  free(line.data);
  return 0;
}

static int set_execute_stream(struct object *context, const struct stream *stream) {
  return context->stream = stream, 0;
}

static struct object *object(const char *name, int place, void *function) {
  struct object *made = calloc(1, sizeof *made);
  made->virtuals = calloc(VIRTUALS, sizeof *made->virtuals);
  for (int i = 0; i < VIRTUALS; i++) made->virtuals[i] = nothing;
  made->virtuals[place] = (long (*)(void))function;
  made->name = name;
  return made;
}

/* Atb... calls go by their arguments as aclnn... ones do, and are launched in a context. */
int fake_atb_launch(struct executor *executor, const struct object *context) {
  return fake_aclnn_launch(executor, context ? context->stream : NULL);
}

/* Both are reached from stubs.S, which knows the name of the template's type. */
int fake_atb_operation(const void *parameters, struct object **made, const char *name) {
  return *made = object(name, EXECUTE, execute), 0;
}

int fake_atb_context(struct object **made) {
  return *made = object("context", SET_EXECUTE_STREAM, set_execute_stream), 0;
}
