/* gpu_check.h - what the files of gpu_check share. gpu_check.c has the model. */
#ifndef COMMD_GPU_CHECK_H
#define COMMD_GPU_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/gpu/cuda.h"
#include "shm/util/base.h"

enum { CHECK_PASS = 0, CHECK_FAIL = 1, CHECK_SKIP = 77 };
enum { MIB = 1 << 20 };

extern struct cuda cu;  /* loaded; cuInit() was called, and a context of device 0 is current */
extern bool check_fake; /* the driver is tests/fakecuda */
extern bool check_quick;

/* Each prints the line that says how the check went, and returns its exit code. A number is told
 * as NAME=VALUE. */
int pass(const char *format, ...) _printf_(1, 2);
int fail(const char *format, ...) _printf_(1, 2);
int skip(const char *format, ...) _printf_(1, 2);

/* A driver call that has to succeed; else the check has failed, and this process ends. */
void must(cu_result r, const char *what);
#define MUST(call) must(call, #call)
/* The same for a system call. */
void must_sys(long r, const char *what);
/* "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS, 700)", in a static place
 */
const char *text_of(cu_result r);

/* A stream that does not wait for the legacy default stream. */
cu_stream stream_new(void);
cu_ptr device_new(size_t bytes);
/* Memory of the host that the driver knows, at the same address for streams; @fd: of a file. */
void *host_new(size_t bytes, int fd, cu_ptr *ret_device);
/* To or from device memory, and wait. */
void copy_now(cu_ptr to, cu_ptr from, size_t bytes);
/* Within @ms: what the stream holds is done. */
bool drains(cu_stream s, unsigned ms);
/* Does the context still work? A fault would have broken it for good. */
bool context_works(void);
double now_us(void);
/* The smallest of the @n that @permille of them do not exceed; sorts them. */
double percentile(double *us, unsigned n, unsigned permille);

/* ---- another process of this program: a driver does not survive a fork ----------------------- */

struct peer {
    pid_t pid;
    int socket;
};
typedef int (*child_fn)(int socket);

/* Runs the child @name. In the name of @host it is another host for NCCL; NULL: this one. @apart:
 * in a namespace of process numbers of its own; false is returned if that is not allowed here. */
bool peer_new(const char *name, const char *host, bool apart, struct peer *ret_peer);
/* Waits for its end; the exit status, or -signal. */
int peer_end(struct peer *p);
void peer_kill(struct peer *p);
void peer_send(int socket, const void *data, size_t bytes, int fd); /* fd -1: none */
/* false: the other side has ended. ret_fd may be NULL. */
bool peer_receive(int socket, void *data, size_t bytes, int *ret_fd);
int memory_file(size_t bytes);
/* Before the driver begins: what this process is to be, by its environment (check_share.c). */
void role_take(void);

/* ---- the checks -------------------------------------------------------------------------------
 */

int check_device(void);
int check_facts(void);
int check_kernels(void);
int check_words(void);
int check_word_host(void);
int check_batch(void);
int check_queues(void);
int check_depth(void);
int check_host_func(void);
int check_ipc_killed(void);
int check_ipc_killed_busy(void);
int check_ipc_freed(void);
int check_ipc_open(void);
int check_ipc_small(void);
int check_ipc_again(void);
int check_ipc_apart(void);
int check_ipc_confined(void);
int check_ipc_other_user(void);
int check_ipc_sandbox(void);
int check_descriptor(void);
int check_descriptor_apart(void);
int check_range(void);
int check_nccl_version(void);
int check_nccl_twice(void);
int check_nccl_hosts(void);
int check_nccl_imported(void);
int check_nccl_one_process(void);
int check_nccl_abort(void);
int check_nccl_killed(void);
int check_nccl_many(void);
int check_slices(void);
int check_changes(void);
int check_open_large(void);
int check_bandwidth(void);

int child_words(int socket);
int child_exporter(int socket);
int child_small(int socket);
int child_nccl(int socket);
int child_communicators(int socket);
int child_opener(int socket);
int child_busy(int socket);
int child_deeds(int socket);

/* ---- what checks share ------------------------------------------------------------------------
 */

/* Rounds of: a stream writes a word, the host stores another, the stream goes on. NULL, or what
 * is wrong. */
const char *word_rounds(double *us, unsigned n);
/* A kernel that copies @bytes; false: built without kernels. */
bool copies_begin(size_t bytes);
void copies_enqueue(cu_stream s, unsigned n);

#endif
