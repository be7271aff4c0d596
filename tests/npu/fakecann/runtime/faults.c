/* What a launch may do instead of running: crash or hang, as ../faults.py wrote it down.

   FAKE_CANN_LAUNCH_FAULTS names a file of lines
   `action<TAB>nth<TAB>times<TAB>device<TAB>state<TAB>words...`: the nth launch on that device (-1:
   any) in this process (0: each) whose line holds one of the words does it, at most `times` times
   (0: always) over all processes; each time leaves a file `state.N`. */
#include "fake.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_RULES 32
#define MOST_WORDS 32

struct rule {
  int hangs, nth, times, device, seen;
  char *state;
  char *words[MOST_WORDS + 1];
};

static struct rule rules[MOST_RULES];
static int rule_count;

static void read_rule(char *line) {
  struct rule *rule = &rules[rule_count++];
  char *rest = line;
  rule->hangs = !strcmp(strsep(&rest, "\t"), "hang");
  rule->nth = atoi(strsep(&rest, "\t"));
  rule->times = atoi(strsep(&rest, "\t"));
  rule->device = atoi(strsep(&rest, "\t"));
  rule->state = strdup(strsep(&rest, "\t"));
  for (int i = 0; i < MOST_WORDS && rest; i++) rule->words[i] = strdup(strsep(&rest, "\t"));
}

__attribute__((constructor)) void read_rules(void) {
  rule_count = 0;
  memset(rules, 0, sizeof rules);
  const char *path = getenv("FAKE_CANN_LAUNCH_FAULTS");
  FILE *file = path && *path ? fopen(path, "r") : NULL;
  char *line = NULL;
  size_t room = 0;
  while (file && rule_count < MOST_RULES && getline(&line, &room, file) > 0) {
    line[strcspn(line, "\n")] = 0;
    if (*line) read_rule(line);
  }
  free(line);
  if (file) fclose(file);
}

static int concerns(const struct rule *rule, const char *words, int device) {
  if (rule->device >= 0 && rule->device != device) return 0;
  for (int i = 0; rule->words[i]; i++)
    if (strstr(words, rule->words[i])) return 1;
  return 0;
}

static int may_fire(const struct rule *rule) {
  for (int i = 0; i < (rule->times ? rule->times : 1); i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", rule->state, i);
    int file = open(path, O_WRONLY | O_CREAT | (rule->times ? O_EXCL : 0), 0644);
    if (file < 0) continue;
    close(file);
    return 1;
  }
  return 0;
}

void launch_faults(const char *words, int device) {
  for (int i = 0; i < rule_count; i++) {
    struct rule *rule = &rules[i];
    if (!concerns(rule, words, device)) continue;
    int seen = __atomic_add_fetch(&rule->seen, 1, __ATOMIC_RELAXED);
    if ((rule->nth && seen != rule->nth) || !may_fire(rule)) continue;
    if (rule->hangs)
      for (;;) pause();
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
}
