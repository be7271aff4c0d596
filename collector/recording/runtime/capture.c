/* Graphs that a stream captures (ACL graphs). Launches are stored while a graph is captured, and
   recorded each time it runs. The tasks of a group may be updated between two runs, and also after
   the call that runs the graph, because these tasks wait for their update. So a run is recorded
   when the next launch, mark or run comes. Its launches are between the lines `CUSTOM
   GRAPH(1)` and `CUSTOM GRAPH(0)`. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct graph {
  char **lines;
  int count, room;
};

struct group {
  struct graph *graph;
  int from, to;
};

static struct graph *captured;              /* the graph that is being captured */
static const struct graph *pending;         /* ran, and is not recorded yet */
static const struct stream *pending_stream;
static __thread struct group *updated;      /* the group whose tasks are being updated */
static __thread int next;
static int group_from;

static void keep(struct graph *graph, int at, const char *words, size_t length) {
  if (at >= graph->room) graph->lines = realloc(graph->lines, (size_t)(graph->room = 2 * at + 64) * sizeof *graph->lines);
  if (at < graph->count) free(graph->lines[at]);
  else graph->count = at + 1;
  graph->lines[at] = strndup(words, length);
}

static void write_pending(void) {
  const struct graph *graph = pending;
  if (!graph) return;
  pending = NULL;
  record_now(pending_stream, "CUSTOM GRAPH(1)");
  for (int i = 0; i < graph->count; i++) record_now(pending_stream, graph->lines[i]);
  record_now(pending_stream, "CUSTOM GRAPH(0)");
}

/* Return 1 if a launch is stored in a graph instead of running. */
int captures_launch(const char *words, size_t length) {
  if (updated) {
    if (next < updated->to) keep(updated->graph, next++, words, length);
    return 1;
  }
  write_pending();
  if (!captured || !strncmp(words, "CUSTOM MARK", 11)) return 0;
  keep(captured, captured->count, words, length);
  return 1;
}

int aclmdlRICaptureBegin(const struct stream *stream, int mode) {
  write_pending();
  captured = calloc(1, sizeof *captured);
  return 0;
}
int aclmdlRICaptureGetInfo(const struct stream *stream, int *status, void **graph) {
  *status = captured != NULL;
  if (graph) *graph = captured;
  return 0;
}
int aclmdlRICaptureEnd(const struct stream *stream, void **graph) {
  *graph = captured;
  captured = NULL;
  return 0;
}
int aclmdlRIExecuteAsync(struct graph *graph, const struct stream *stream) {
  write_pending();
  pending_stream = stream;
  pending = graph;
  return 0;
}
int aclmdlRIDestroy(struct graph *graph) { return 0; }

int aclmdlRICaptureTaskGrpBegin(const struct stream *stream) {
  group_from = captured ? captured->count : 0;
  return 0;
}
int aclmdlRICaptureTaskGrpEnd(const struct stream *stream, void **handle) {
  struct group *group = calloc(1, sizeof *group);
  *group = (struct group){captured, group_from, captured ? captured->count : 0};
  return *handle = group, 0;
}
int aclmdlRICaptureTaskUpdateBegin(const struct stream *stream, struct group *group) {
  updated = group;
  next = group->from;
  return 0;
}
int aclmdlRICaptureTaskUpdateEnd(const struct stream *stream) { return updated = NULL, 0; }
int aclmdlRICaptureThreadExchangeMode(int *mode) { return 0; }
