/* Where the ranks of a group wait for each other: a page that their processes share. A root names
   it; whoever comes last takes the name away, so that nothing is left behind. */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME "/opmeter-fake-hccl-%d-%d"
#define LOOK_US 50

struct meeting {
  uint32_t came, turn; /* how many ranks came so far, and how often all have */
};

void write_root(char *root) {
  static int roots;
  sprintf(root, NAME, getpid(), __atomic_add_fetch(&roots, 1, __ATOMIC_RELAXED));
}

struct meeting *open_meeting(const char *root, uint32_t ranks, uint32_t rank) {
  if (getenv("FAKE_NPU_ALONE")) return NULL; /* no other rank exists: do not wait */
  int file = ranks > 1 ? shm_open(root, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (file < 0 || ftruncate(file, sizeof(struct meeting))) return NULL;
  void *page = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (page == MAP_FAILED) return NULL;
  meet(page, ranks);
  if (rank == 0) shm_unlink(root);
  return page;
}

void meet(struct meeting *meeting, uint32_t ranks) {
  if (!meeting) return;
  uint32_t turn = __atomic_load_n(&meeting->turn, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&meeting->came, 1, __ATOMIC_ACQ_REL) % ranks == 0)
    __atomic_add_fetch(&meeting->turn, 1, __ATOMIC_RELEASE);
  else
    while (__atomic_load_n(&meeting->turn, __ATOMIC_ACQUIRE) == turn) usleep(LOOK_US);
}
