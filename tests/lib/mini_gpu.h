/* mini_gpu.h - a commd-gpu that speaks shm/gpu/session.h and no more: one node, one GPU, and it
 * moves data by hand. For tests of the client's side. It is a process, since nobody can open memory
 * that is its own: the test program itself, called again with the words "mini_gpu" and a
 * descriptor. */
#ifndef COMMD_TEST_MINI_GPU_H
#define COMMD_TEST_MINI_GPU_H

#include <sys/types.h>

/* In main(): does not return if the words are those. */
void mini_gpu_main(int argc, char **argv);
/* Starts one; *ret_control: what arena_commd_gpu() takes. MINI_GPU_REFUSE=memory, order or attach
 * in the environment: it says no to that; lend_less or lend_more: it lends wrong sizes. */
pid_t mini_gpu_start(int *ret_control);
void mini_gpu_kill(pid_t pid);

#endif
