/* What the parts of the fake CANN share.

   Device memory is host memory, streams run at once, and no kernel computes: a launch is written
   down with everything it was given. The format of a line is in ../calls.py. */
#ifndef OPMETER_FAKE_CANN_H
#define OPMETER_FAKE_CANN_H

#include <stddef.h>
#include <stdint.h>

/* text.c: a growing line. */
struct text {
  char *data;
  size_t length;
  size_t room;
};

void put(struct text *line, const char *words);
void put_bytes(struct text *line, const char *bytes, size_t count);
void put_int(struct text *line, int64_t number);
void put_float(struct text *line, double number, int digits);
void put_ints(struct text *line, const int64_t *numbers, uint64_t count);
int begins(const char *words, const char *with);

/* names.c */
void put_dtype(struct text *line, int dtype);
void put_format(struct text *line, int format);

/* Registers in which a call passes integers and pointers; 8 others have its numbers. */
#ifdef __aarch64__
#define INTEGERS 8
#else
#define INTEGERS 6
#endif

/* handles.c: what aclCreate... gives out; words_handle takes over the text. */
struct handle;
void *words_handle(struct text line);
void give_back(struct handle *handle);
int is_handle(const void *pointer);
void put_handle(struct text *line, const struct handle *handle);
void put_tensor(struct text *line, int dtype, int format, const int64_t *shape, uint64_t dims);

/* recorder.c: the log of launches. */
struct stream {
  int id;
  int device;
};

void record_line(const struct stream *stream, const char *words, size_t length);
void record_now(const struct stream *stream, const char *words);
void record_host(const struct stream *stream, struct text *line);
void write_line(int64_t ns, const struct stream *stream, const char *words, size_t length);

/* clock.c: what the log's lines have as their time. What runs between pause_host and resume_host is
   work of this runtime, and takes no time of the host. In virtual time, a thread takes the time of a
   call, or waits, also as one that polls. */
int64_t host_ns(void);
void pause_host(void);
void resume_host(void);
void begin_clock(void);
int has_order(void);
void take_time(int64_t ns);
void wait_until(int64_t ns);
int is_past(int64_t ns);
void opmeter_fake_cann_wait(int64_t ns); /* outside of them */
int current_device(void);
void see_devices(void);
void open_log(void);
struct executor;
int fake_aclnn_launch(struct executor *executor, const struct stream *stream);

/* virtual.c: what the device does with a line that the host gave at a time, and when what it has so
   far ends: on a stream, before an event, or all of it. */
int is_virtual(void);
void take_call(const char *words, size_t length);
void run_line(int64_t ns, const struct stream *stream, const char *words, size_t length);
int64_t stream_ns(const struct stream *stream);
int64_t event_ns(int event);
int64_t device_ns(void);

/* Parts that a build may add (those of the tests, tests/npu/fakecann/runtime); NULL without them.
   profiled_launches: the file of launches while the process profiles itself, or -1.
   read_rules, launch_faults: what a launch does instead of running. */
int profiled_launches(void) __attribute__((weak));
void read_rules(void) __attribute__((weak));
void launch_faults(const char *words, int device) __attribute__((weak));

/* capture.c: whether a line is kept in a graph, or until a graph is written, instead of being
   written now. */
int keeps_line(const struct stream *stream, const char *words, size_t length);

/* A graph that runs before the host goes on is written: one for which a wait for a stream, an event
   or all of the device waits. */
void write_before_stream(const struct stream *stream);
void write_before_event(int event);
void write_pending(void);

/* meeting.c: where the ranks of a group wait for each other. */
struct meeting;
void write_root(char *root);
struct meeting *open_meeting(const char *root, uint32_t ranks, uint32_t rank);
void meet(struct meeting *meeting, uint32_t ranks);

#endif
