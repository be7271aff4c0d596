/* Graphs that a stream captures (ACL graphs). Lines are stored while a graph is captured, and
   written each time it runs, with the streams of the capture. The tasks of a group may be updated
   between two runs, and also after the call that runs the graph, because these tasks wait for their
   update. So a run is written when the next launch, mark or run comes, with the time of its call;
   calls of the host until then are written after it. In virtual time it is written, too, when the
   host waits for it. Its lines are between `HOST replay(n)` and `HOST replay_end(n)`. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
  int64_t ns;
  const struct stream *stream;
  char *words;
};

struct lines {
  struct line *all;
  int count, room;
};

struct graph {
  struct lines lines;
  int number;
};

struct group {
  struct graph *graph;
  int from, to;
};

static struct graph *captured;              /* the graph that is being captured */
static const struct graph *pending;         /* ran, and is not written yet */
static const struct stream *pending_stream;
static int64_t pending_ns;
static struct lines after_pending;          /* calls of the host since then */
static __thread struct group *updated;      /* the group whose tasks are being updated */
static __thread int next;
static int group_from, graphs;

static void keep(struct lines *lines, int at, const struct stream *stream, const char *words,
                 size_t length) {
  if (at >= lines->room)
    lines->all = realloc(lines->all, (size_t)(lines->room = 2 * at + 64) * sizeof *lines->all);
  if (at < lines->count) free(lines->all[at].words);
  else lines->count = at + 1;
  lines->all[at] = (struct line){host_ns(), stream, strndup(words, length)};
}

static void write_call(int64_t ns, const struct stream *stream, const char *name, int number) {
  struct text line = {0};
  put(&line, "HOST "), put(&line, name), put(&line, "("), put_int(&line, number), put(&line, ")");
  write_line(ns, stream, line.data, line.length);
  free(line.data);
}

void write_pending(void) {
  const struct graph *graph = pending;
  if (!graph) return;
  pending = NULL;
  write_call(pending_ns, pending_stream, "replay", graph->number);
  for (int i = 0; i < graph->lines.count; i++) {
    const struct line *line = &graph->lines.all[i];
    write_line(pending_ns, line->stream, line->words, strlen(line->words));
  }
  write_call(pending_ns, pending_stream, "replay_end", graph->number);
  for (int i = 0; i < after_pending.count; i++) {
    const struct line *line = &after_pending.all[i];
    write_line(line->ns, line->stream, line->words, strlen(line->words));
  }
  after_pending.count = 0;
}

void write_before_stream(const struct stream *stream) {
  if (!pending || !is_virtual()) return;
  int is_before = stream == pending_stream;
  for (int i = 0; i < after_pending.count; i++) is_before |= after_pending.all[i].stream == stream;
  if (is_before) write_pending();
}

void write_before_event(int event) {
  if (!pending || !is_virtual()) return;
  char recorded[32];
  snprintf(recorded, sizeof recorded, "HOST record(%d)", event);
  int is_before = 0;
  for (int i = 0; i < after_pending.count; i++)
    is_before |= !strcmp(after_pending.all[i].words, recorded);
  if (is_before) write_pending();
}

int keeps_line(const struct stream *stream, const char *words, size_t length) {
  int is_host = begins(words, "HOST ");
  if (updated && !is_host) {
    struct lines *lines = &updated->graph->lines; /* the task runs on its own stream */
    if (next < updated->to) keep(lines, next, lines->all[next].stream, words, length), next++;
    return 1;
  }
  if (pending && is_host) {
    /* the graph waits for it */
    if (is_virtual() && begins(words, "HOST update(")) run_line(host_ns(), stream, words, length);
    return keep(&after_pending, after_pending.count, stream, words, length), 1;
  }
  write_pending();
  if (!captured || begins(words, "CUSTOM MARK") || begins(words, "HOST synchronize")) return 0;
  keep(&captured->lines, captured->lines.count, stream, words, length);
  return 1;
}

int aclmdlRICaptureBegin(const struct stream *stream, int mode) {
  pause_host();
  write_pending();
  struct graph *graph = calloc(1, sizeof *graph);
  graph->number = ++graphs;
  write_call(host_ns(), stream, "capture", graph->number);
  captured = graph;
  resume_host();
  return 0;
}
int aclmdlRICaptureGetInfo(const struct stream *stream, int *status, void **graph) {
  *status = captured != NULL;
  if (graph) *graph = captured;
  return 0;
}
int aclmdlRICaptureEnd(const struct stream *stream, struct graph **graph) {
  pause_host();
  *graph = captured;
  write_call(host_ns(), stream, "capture_end", captured->number);
  captured = NULL;
  resume_host();
  return 0;
}
int aclmdlRIExecuteAsync(struct graph *graph, const struct stream *stream) {
  pause_host();
  write_pending();
  take_call("HOST replay", strlen("HOST replay"));
  pending_ns = host_ns();
  pending_stream = stream;
  pending = graph;
  resume_host();
  return 0;
}
int aclmdlRIDestroy(struct graph *graph) { return 0; }

int aclmdlRICaptureTaskGrpBegin(const struct stream *stream) {
  group_from = captured ? captured->lines.count : 0;
  return 0;
}
int aclmdlRICaptureTaskGrpEnd(const struct stream *stream, void **handle) {
  struct group *group = calloc(1, sizeof *group);
  *group = (struct group){captured, group_from, captured ? captured->lines.count : 0};
  return *handle = group, 0;
}
int aclmdlRICaptureTaskUpdateBegin(const struct stream *stream, struct group *group) {
  updated = group;
  next = group->from;
  return 0;
}
int aclmdlRICaptureTaskUpdateEnd(const struct stream *stream) { return updated = NULL, 0; }
int aclmdlRICaptureThreadExchangeMode(int *mode) { return 0; }
