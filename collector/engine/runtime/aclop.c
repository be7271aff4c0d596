/* The legacy path of single operators (GE types like Identity), with attributes by name. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct attributes {
  struct text line;
};

void *aclopCreateAttr(void) { return calloc(1, sizeof(struct attributes)); }

void aclopDestroyAttr(struct attributes *attributes) {
  free(attributes->line.data);
  free(attributes);
}

static struct text *named(struct attributes *attributes, const char *name) {
  struct text *line = &attributes->line;
  put(line, ", ");
  put(line, name);
  put(line, "=");
  return line;
}

int aclopSetAttrBool(void *attributes, const char *name, uint8_t value) {
  return put_int(named(attributes, name), value), 0;
}
int aclopSetAttrInt(void *attributes, const char *name, int64_t value) {
  return put_int(named(attributes, name), value), 0;
}
int aclopSetAttrFloat(void *attributes, const char *name, float value) {
  return put_float(named(attributes, name), value, 9), 0;
}
int aclopSetAttrString(void *attributes, const char *name, const char *value) {
  struct text *line = named(attributes, name);
  put(line, "\"");
  put(line, value);
  put(line, "\"");
  return 0;
}
int aclopSetAttrListInt(void *attributes, const char *name, int count, const int64_t *values) {
  struct text *line = named(attributes, name);
  put(line, "ints(");
  put_ints(line, values, (uint64_t)count);
  put(line, ")");
  return 0;
}

static void put_all(struct text *line, int count, struct handle *const *tensors) {
  for (int i = 0; i < count; i++) {
    if (i) put(line, ", ");
    if (is_handle(tensors[i])) put_handle(line, tensors[i]);
    else put(line, "0");
  }
}

static int launch(const char *type, int inputs, struct handle *const *in, int outputs,
                  struct handle *const *out, const struct attributes *attributes,
                  const struct stream *stream) {
  struct text line = {0};
  put(&line, "ACLOP ");
  put(&line, type);
  put(&line, "(");
  put_all(&line, inputs, in);
  put(&line, " -> ");
  put_all(&line, outputs, out);
  if (attributes && attributes->line.length) put(&line, attributes->line.data);
  put(&line, ")");
  record_line(stream, line.data, line.length);
  free(line.data);
  return 0;
}

int aclopCompileAndExecute(const char *type, int inputs, struct handle *const *in, void **buffers,
                           int outputs, struct handle *const *out, void **out_buffers,
                           void *attributes, int engine, int compile, const char *path,
                           void *stream) {
  return launch(type, inputs, in, outputs, out, attributes, stream);
}
int aclopCompileAndExecuteV2(const char *type, int inputs, struct handle *const *in,
                             void **buffers, int outputs, struct handle *const *out,
                             void **out_buffers, void *attributes, int engine, int compile,
                             const char *path, void *stream) {
  return launch(type, inputs, in, outputs, out, attributes, stream);
}

void *aclCreateDataBuffer(void *data, size_t bytes) { return malloc(16); }
int aclDestroyDataBuffer(void *buffer) { return free(buffer), 0; }
